/** What the page shows, in its address: a link opens the same view, layer and step. */

export const VIEWS = {
  overview: "Overview", why: "Why", heatmap: "Heatmap", layer: "Layer", breakpoints: "Breakpoints", performance: "Performance", compare: "Compare",
  "execution-trace": "Execution Trace", "gradient-analysis": "Gradient Analysis", "activation-statistics": "Activation Statistics",
  "memory-profiling": "Memory Profiling", "anomaly-detection": "Anomaly Detection",
} as const;
export type View = keyof typeof VIEWS;
const NAMES = Object.keys(VIEWS) as View[];
export const MAIN_VIEWS = NAMES.slice(0, 7);
export const LAYER_TABS = NAMES.slice(7); // the five of the original dashboard

export interface Address {
  view: View;
  run: string | null;
  step: number | null;
  layer: string | null;
  finding: string | null;
  other: string | null; // the run compared with
  align: "epoch" | "time" | null; // what both losses are shown over; null: the steps
}

export function read(search: string): Address {
  const given = new URLSearchParams(search);
  const named = (given.get("view") ?? "").toLowerCase().replaceAll(" ", "-");
  const view = named === "memory" ? "memory-profiling" : named;
  const step = Number(given.get("step") ?? NaN);
  return {
    view: view in VIEWS ? (view as View) : "overview",
    step: Number.isInteger(step) && step >= 0 && given.has("step") ? step : null,
    run: given.get("run"), layer: given.get("layer"), finding: given.get("finding"), other: given.get("other"),
    align: (["epoch", "time"] as const).find((by) => by === given.get("align")) ?? null,
  };
}

export function written(now: Address): string {
  const known = Object.entries(now).filter(([name, value]) => value !== null && !(name === "view" && value === "overview"));
  const text = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : "";
}

/** What a browser may refuse (in a private window, in a file, when asked too often): the page goes on without. */
export function tried<T>(action: () => T): T | null {
  try { return action(); } catch { return null; }
}
