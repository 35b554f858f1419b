/** What components take from the library. Its files take it from each other. */
export * from "./address";
export * from "./api";
export * from "./asked.svelte";
export * from "./canvas";
export * from "./chart";
export * from "./heat";
export * from "./keys";
export * from "./numbers";
export * from "./ranks";
export * from "./session.svelte";
export type * from "./types";
