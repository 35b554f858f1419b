/** One table for what the keys do and for the sheet that says so. */
import { session } from "./session.svelte";

const move = (key: string, by: number, does: string) => ({ key, does, held: true, act: () => session.goto(session.step + by) });

export const KEYS: { key: string; does: string; act: () => void; held?: boolean }[] = [ // held: again while it is kept down
  { key: "p", does: "pause at the next layer", act: () => void session.control("pause") },
  { key: "c", does: "continue", act: () => void session.control("continue") },
  { key: "n", does: "run the next layer", act: () => void session.control("step", "layer") },
  { key: "s", does: "run the next step", act: () => void session.control("step", "step") },
  { key: "b", does: "break on the selected layer", act: () => void (session.layer && session.breakAt(session.layer)) },
  { key: "j", does: "next layer", held: true, act: () => session.nextLayer(1) },
  { key: "k", does: "layer before", held: true, act: () => session.nextLayer(-1) },
  move("[", -1, "one step back"), move("]", 1, "one step on"),
  move("{", -100, "100 steps back"), move("}", 100, "100 steps on"),
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
  requestAnimationFrame(() => field()?.focus());
}

let going = -Infinity; // when g was pressed

const TYPING = "textarea, select, dialog, [contenteditable], input:not([type=range]):not([type=checkbox])";

/** True where the key meant something. Keys typed into a field, or held with a modifier, are not ours. */
export function pressed(event: KeyboardEvent, help: () => void): boolean {
  if ((event.target as HTMLElement).closest(TYPING) || event.ctrlKey || event.metaKey || event.altKey) return false;
  const known = event.key === "?" ? { act: help, held: false } : KEYS.find((one) => one.key === event.key);
  const goes = performance.now() - going < 1500 ? GOES[event.key as keyof typeof GOES] : undefined;
  if (event.repeat && !known?.held) return known !== undefined; // one question a press
  going = event.key === "g" && !goes ? performance.now() : -Infinity;
  if (goes) session.show(goes);
  else known?.act();
  return known !== undefined || goes !== undefined || event.key === "g";
}
