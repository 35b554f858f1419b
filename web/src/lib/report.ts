/** A run that lies in the page itself (`neural report --format html`): what this page asks is answered out of it. */
import { columnOf } from "./chart";
import { bytesOf } from "./stream";
import type { HeatAnswer, Span } from "./types";

interface Curves { layers: string[]; edges: number[]; max: string; min: string | null; single: boolean; of: number }
interface Held {
  answers: Record<string, unknown>; layers: string[]; flops: (number | null)[];
  frames: { step: number; metrics: Record<string, string> }[]; // some steps, every layer in numbers
  flames: { step: number; spans: Span[] }[];
  heats: Record<string, HeatAnswer>; curves: Record<string, Curves>; histograms: Record<string, Record<string, object>>;
}

const packed = typeof document === "undefined" ? null : document.getElementById("report")?.textContent;
export const held: Promise<Held> | null = packed ? unpacked(packed) : null;

async function unpacked(text: string): Promise<Held> {
  const plain = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(plain).json()) as Held;
}

/** undefined where this file has no answer. */
export function answer(file: Held, path: string): unknown {
  const { pathname, searchParams: given } = new URL(path, "http://report");
  const [metric, layer, kind] = ["metric", "layer", "kind"].map((name) => given.get(name) ?? "") as [string, string, string];
  const [from, to] = [Number(given.get("from") ?? 0), Number(given.get("step") ?? given.get("to") ?? Infinity)];
  if (pathname === "/api/moment") return moment(file, to, layer);
  if (pathname === "/api/heatmap/cells") return file.heats[metric] && cut(file.heats[metric], from, to);
  if (pathname === "/api/series" && layer) return file.curves[metric] && curve(file.curves[metric], layer, from, to);
  if (pathname === "/api/histogram") return { kind, histograms: [], ...file.histograms[kind]?.[layer] };
  const whole = file.answers[metric ? `${pathname}?metric=${metric}` : pathname];
  const most = Number(given.get("limit") ?? Infinity);
  return pathname === "/api/summary" ? { ...(whole as object), layers: (whole as { layers: object[] }).layers.slice(0, most) } : whole;
}

const before = <T extends { step: number }>(all: T[], step: number): T | undefined => all[columnOf(step, [...all.map((one) => one.step), Infinity])];

function moment(file: Held, step: number, layer: string): object {
  const [frame, flame] = [before(file.frames, step), before(file.flames, step)];
  const history = layer ? entries(file, layer).filter((one) => (one["step"] ?? 0) <= (frame?.step ?? 0)).slice(-100) : [];
  const about = (file.answers["/api/run"] as { layers: { name: string }[] }).layers.find((one) => one.name === layer);
  const inspected = layer ? { ...about, layer, step: history.at(-1)?.["step"] ?? null, latest: history.at(-1) ?? {}, history } : null;
  return { step: frame?.step ?? null, metrics: frame?.metrics ?? {}, layers: file.layers, flops: file.flops, timed_step: flame?.step ?? null, spans: flame?.spans ?? [], inspected };
}

/** One layer at every step that the file has in numbers. */
function entries(file: Held, layer: string): Record<string, number | null>[] {
  const at = file.layers.indexOf(layer);
  const from = Math.floor((4 * Math.max(at, 0)) / 3) * 4; // in base64, so that the other layers need not be decoded
  const known = (text: string) => (at < 0 ? NaN : new DataView(bytesOf(text.slice(from, from + 12)).buffer).getFloat32(4 * at - (from / 4) * 3, true));
  return file.frames.map(({ step, metrics }) => {
    const numbers = Object.entries(metrics).map(([name, text]) => [name, known(text)] as const);
    return { step, flops: file.flops[at] ?? null, ...Object.fromEntries(numbers.map(([name, value]) => [name, Number.isNaN(value) ? null : value])) };
  });
}

function cut(heat: HeatAnswer, from: number, to: number): HeatAnswer {
  const [first, end, wide] = [columnOf(from, heat.edges), columnOf(to, heat.edges) + 1, heat.edges.length - 1];
  const cells = typeof heat.cells === "string" ? bytesOf(heat.cells) : heat.cells;
  const rows = heat.layers.map((_, row) => cells.subarray(row * wide + first, row * wide + end));
  const kept = new Uint8Array(rows.length * (end - first));
  rows.forEach((row, at) => kept.set(row, at * (end - first)));
  return { ...heat, edges: heat.edges.slice(first, end + 1), cells: kept, sources: heat.sources?.slice(first, end) };
}

const IS_NAN = 0x7fe00000; // a NaN that was measured: any other says that nothing was
function curve({ layers, edges, max, min, single, of }: Curves, layer: string, from: number, to: number): object | undefined {
  const [at, wide] = [layers.indexOf(layer), edges.length - 1];
  if (at < 0) return undefined;
  const row = (text: string) => bytesOf(text).buffer.slice(4 * at * wide, 4 * (at + 1) * wide);
  const [bits, high, low] = [new Uint32Array(row(max)), new Float32Array(row(max)), new Float32Array(row(min ?? max))];
  const known = [...high.keys()].filter((each) => (!Number.isNaN(high[each]) || bits[each] === IS_NAN) && edges[each + 1]! > from && edges[each]! <= to);
  const found = { steps: known.map((each) => edges[each]!), min: known.map((each) => low[each]!), max: known.map((each) => high[each]!) };
  return { ...found, nan_steps: [], measured: single ? known.length : null, of: Math.min(to + 1, of) - from };
}
