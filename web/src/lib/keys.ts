/** One table for what the keys do and for the sheet that says so. */
import { session } from "./session.svelte";

export interface Key {
  key: string;
  does: string;
  act: () => void;
}

export const KEYS: Key[] = [
  { key: "p", does: "pause at the next layer", act: () => void session.control("pause") },
  { key: "c", does: "continue", act: () => void session.control("continue") },
  { key: "n", does: "run the next layer", act: () => void session.control("step", "layer") },
  { key: "s", does: "run the next step", act: () => void session.control("step", "step") },
  { key: "b", does: "break on the selected layer", act: () => void (session.layer && session.breakAt(session.layer)) },
  { key: "j", does: "next layer", act: () => session.nextLayer(1) },
  { key: "k", does: "layer before", act: () => session.nextLayer(-1) },
  { key: "[", does: "one step back", act: () => session.goto(session.step - 1) },
  { key: "]", does: "one step on", act: () => session.goto(session.step + 1) },
  { key: "{", does: "100 steps back", act: () => session.goto(session.step - 100) },
  { key: "}", does: "100 steps on", act: () => session.goto(session.step + 100) },
  { key: "End", does: "follow the newest step (LIVE)", act: () => session.goto(null) },
  { key: "f", does: "next finding", act: () => session.nextFinding() },
  { key: "/", does: "search a layer", act: search },
  { key: "t", does: "dark or light", act: () => session.setTheme(session.theme === "dark" ? "light" : "dark") },
];

export const GOES = {
  o: "overview", w: "why", h: "heatmap", l: "layer", b: "breakpoints", p: "performance", c: "compare",
  e: "execution-trace", g: "gradient-analysis", a: "activation-statistics", m: "memory-profiling", d: "anomaly-detection",
} as const;

function search(): void {
  const field = () => document.querySelector<HTMLInputElement>("[data-search]");
  if (!field()) session.show("overview");
  if (field()) field()?.focus();
  else requestAnimationFrame(() => field()?.focus());
}

const NEVER = -Infinity;
let going = NEVER; // when g was pressed

/** True where the key meant something. Keys typed into a field, or held with a modifier, are not ours. */
export function pressed(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  const typing = target.closest("textarea, select, dialog, [contenteditable], input:not([type=range]):not([type=checkbox])");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return false;
  if (performance.now() - going < 1500 && event.key in GOES) {
    going = NEVER;
    session.show(GOES[event.key as keyof typeof GOES]);
    return true;
  }
  if (event.key === "g") {
    going = performance.now();
    return true;
  }
  const known = KEYS.find((one) => one.key === event.key);
  known?.act();
  return known !== undefined;
}
