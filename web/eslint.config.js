import svelte from "eslint-plugin-svelte";
import ts from "typescript-eslint";
import config from "./svelte.config.js";

export default ts.config(
  { ignores: ["node_modules/", "dist/"] },
  ...ts.configs.strict,
  ...svelte.configs.recommended,
  {
    files: ["**/*.svelte", "**/*.svelte.ts"],
    languageOptions: { parserOptions: { parser: ts.parser, svelteConfig: config } },
    rules: {
      "svelte/prefer-svelte-reactivity": "off", // sets and maps live within one derivation here
    },
  },
  {
    rules: {
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "off", // $props() and $state() are `let` by custom
      "@typescript-eslint/no-non-null-assertion": "off", // indexed access is checked by noUncheckedIndexedAccess
      "svelte/no-navigation-without-resolve": "off", // SvelteKit's; this page is plain Svelte
    },
  },
);
