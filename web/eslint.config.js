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
  },
  {
    rules: {
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
      "@typescript-eslint/no-non-null-assertion": "off", // indexed access is checked by noUncheckedIndexedAccess
      "svelte/no-navigation-without-resolve": "off", // SvelteKit's; this page is plain Svelte
    },
  },
);
