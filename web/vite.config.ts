import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// `npm run dev` against a server that `neural view` or `neural debug` has started.
const server = process.env.PAGE_SERVER ?? "http://127.0.0.1:8050";

export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: process.env.PAGE_OUT ?? "../neuraldbg/surfaces/web/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/api": { target: server, ws: true, changeOrigin: true }, "/favicon.svg": server } },
});
