/** The arithmetic of our charts: no drawing, no page. */
import type { Finding, Frame, Octaves, Span } from "./types";

export interface Scale { low: number; high: number; log: boolean }

const LOG_FROM = 100; // a range that spans more is shown by powers of ten, as in the terminal
const TINY = 1e-14; // as is one this close to zero: the charts know no smaller steps

/** A scale for what can be drawn; by powers of ten where the values span many of them. */
export function scaleOf(values: Iterable<number | null>, log?: boolean): Scale {
  let [low, high, least] = [Infinity, -Infinity, Infinity];
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
    if (value > 0) least = Math.min(least, value);
  }
  if (low > high) return { low: 0, high: 1, log: false };
  const spread = low >= 0 && Number.isFinite(least) && (high > LOG_FROM * least || high < TINY);
  if ((log ?? spread) && Number.isFinite(least)) return { low: least, high: high > least ? high : least * 10, log: true };
  return { low, high: high > low ? high : low + 1, log: false };
}

/** Where a value lies in its scale, 0 to 1. */
export function place(value: number, scale: Scale): number {
  const share = scale.log
    ? Math.log(Math.max(value, scale.low) / scale.low) / Math.log(scale.high / scale.low)
    : (value - scale.low) / (scale.high - scale.low);
  return Math.min(1, Math.max(0, share));
}

/** What lies at a share of the scale. */
export function valueAt(share: number, scale: Scale): number {
  return scale.log ? scale.low * (scale.high / scale.low) ** share : scale.low + share * (scale.high - scale.low);
}

/** The column that holds a step: `edges` are the first steps of the columns and, last, the step after them. */
export function columnOf(step: number, edges: number[]): number {
  let [low, high] = [0, edges.length - 2];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((edges[middle] ?? 0) <= step) low = middle;
    else high = middle - 1;
  }
  return Math.max(0, low);
}

/** Round steps to name on an axis, no more than there is room for. */
export function ticks(from: number, to: number, most: number): number[] {
  const least = Math.max(1, (to - from) / Math.max(1, most));
  const power = 10 ** Math.floor(Math.log10(least));
  const every = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least) ?? 1;
  return Array.from({ length: Math.floor(to / every) - Math.ceil(from / every) + 1 }, (_, at) => (Math.ceil(from / every) + at) * every);
}

/** What a curve has at a step: the point that holds it, null before the first; and the steps that it is of. */
export function pointAt(step: number, steps: number[]): { at: number; from: number; to: number } | null {
  const at = columnOf(step, [...steps, Infinity]);
  return (steps[at] ?? Infinity) > step ? null : { at, from: steps[at]!, to: (steps[at + 1] ?? step + 1) - 1 };
}

export interface Stretch { from: number; to: number }

/** A stretch of steps, zoomed around one of them and kept inside the whole. */
export function zoomed(now: Stretch, around: number, factor: number, whole: Stretch): Stretch {
  const length = Math.min(Math.max(Math.round((now.to - now.from) * factor), 4), whole.to - whole.from);
  const share = now.to > now.from ? (around - now.from) / (now.to - now.from) : 0.5;
  return inside({ from: Math.round(around - share * length), to: Math.round(around - share * length) + length }, whole);
}

export const moved = (now: Stretch, by: number, whole: Stretch): Stretch => inside({ from: now.from + by, to: now.to + by }, whole);

function inside(stretch: Stretch, whole: Stretch): Stretch {
  const length = Math.min(stretch.to - stretch.from, whole.to - whole.from);
  const from = Math.max(whole.from, Math.min(stretch.from, whole.to - length));
  return { from, to: from + length };
}

// -- colours ----------------------------------------------------------------------------------------------------------
const rgb = (hex: string): number[] => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
const VIRIDIS = ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"].map(rgb);
export const [TOP, MINUS_INF, PLUS_INF, NOT_MEASURED, NAN] = [250, 252, 253, 254, 255] as const; // cells: the scale has 0 to TOP
export const ODD = { [NAN]: ["NaN", "--nan"], [PLUS_INF]: ["inf", "--inf"], [MINUS_INF]: ["−inf", "--minus-inf"] } as const; // their signs and colours

export function viridis(share: number): [number, number, number] {
  const at = Math.min(1, Math.max(0, share)) * (VIRIDIS.length - 1);
  const [below, above] = [VIRIDIS[Math.floor(at)]!, VIRIDIS[Math.ceil(at)]!];
  const rest = at - Math.floor(at);
  const mix = (part: number) => Math.round(below[part]! + (above[part]! - below[part]!) * rest);
  return [mix(0), mix(1), mix(2)];
}

/** 256 colours as RGBA: the scale, what is no number by the theme (as #rrggbb), and nothing at all where nothing was measured. */
export function palette(colour: (name: string) => string): Uint8ClampedArray {
  const colours = new Uint8ClampedArray(256 * 4);
  for (let value = 0; value <= TOP; value++) colours.set([...viridis(value / TOP), 255], value * 4);
  for (const [cell, [, name]] of Object.entries(ODD)) colours.set([...rgb(colour(name).slice(1)), 255], Number(cell) * 4);
  return colours;
}

// -- flame graph ------------------------------------------------------------------------------------------------------
export interface Box { span: Span; x: number; width: number; row: number }

/** The spans with the time between the outermost calls cut short: what the script did between them is not ours to show. */
export function withoutGaps(spans: Span[]): Span[] {
  const outer = spans.filter((span) => span.depth === 0);
  const least = 0.01 * outer.reduce((sum, span) => sum + span.duration, 0);
  let [cut, end] = [0, 0];
  return spans.map((span) => {
    if (span.depth === 0) {
      cut += Math.max(0, span.start - end - least);
      end = Math.max(end, span.end);
    }
    return { ...span, start: span.start - cut, end: span.end - cut };
  });
}

/** The boxes of a stretch of time, 0 to 1 wide; those too narrow to be seen are left out. */
export function boxesOf(spans: Span[], from: number, to: number, narrowest: number): Box[] {
  const length = to - from;
  if (!(length > 0)) return [];
  const found: Box[] = [];
  for (const span of spans) {
    if (span.end <= from || span.start >= to) continue;
    const x = Math.max(0, (span.start - from) / length);
    const width = Math.min(1, (span.end - from) / length) - x;
    if (width >= narrowest) found.push({ span, x, width, row: span.depth });
  }
  return found;
}

/** The box beside, above or under one, by the key pressed; undefined where there is none, or the key says nothing. */
export function beside(boxes: Box[], now: Span | null, key: string): Span | undefined {
  const at = boxes.find((box) => box.span === now);
  if (!at) return key.startsWith("Arrow") ? boxes[0]?.span : undefined;
  const row = boxes.filter((box) => box.row === at.row);
  if (key === "ArrowRight" || key === "ArrowLeft") return row[row.indexOf(at) + (key === "ArrowRight" ? 1 : -1)]?.span;
  if (key === "ArrowDown") return boxes.find((box) => box.row === at.row + 1 && box.x + box.width > at.x && box.x < at.x + at.width)?.span;
  return key === "ArrowUp" ? boxes.findLast((box) => box.row === at.row - 1 && box.x <= at.x)?.span : undefined;
}

// -- histograms -------------------------------------------------------------------------------------------------------
/** The magnitude below which this share of the values lies; zeros are below all, and a bin's values its upper edge. */
export function magnitudeAt(row: Octaves | undefined, share: number): number | null {
  if (!row || row.looked_at <= row.not_finite) return null;
  let left = share * (row.looked_at - row.not_finite) - row.zero;
  if (left <= 0) return 0;
  const bin = row.counts.findIndex((count) => (left -= count) <= 0);
  return 2 ** (row.from + (bin < 0 ? row.counts.length : bin + 1));
}

// -- marks ------------------------------------------------------------------------------------------------------------
export interface Mark { step: number; kind: "finding" | "hit" | "checkpoint"; label: string }

const GRAVER = ["checkpoint", "hit", "finding"];

/** Marks that would lie on one another become one, which says all they say. */
export function clustered(marks: Mark[], last: number, width: number, least = 14): (Mark & { x: number; labels: string[] })[] {
  const found: ReturnType<typeof clustered> = [];
  for (const mark of [...marks].sort((a, b) => a.step - b.step)) {
    const x = (Math.min(mark.step, last) / Math.max(last, 1)) * width;
    const before = found.at(-1);
    if (before && x - before.x < least) {
      before.labels.push(mark.label);
      if (GRAVER.indexOf(mark.kind) > GRAVER.indexOf(before.kind)) before.kind = mark.kind;
    } else found.push({ ...mark, x, labels: [mark.label] });
  }
  return found;
}

// -- health -----------------------------------------------------------------------------------------------------------
export type Health = "bad" | "warn" | "ok" | "unknown";
export const MOSTLY_DEAD = 0.9;

/** What is wrong with a layer at a step: what was `found` by then, and what its numbers say. */
export function healthOf(layer: string, frame: Frame | null, at: number, found: Finding[]): [Health, string] {
  const here = found.filter((one) => one.layer === layer);
  const critical = here.find((one) => one.severity === "critical");
  if (critical) return ["bad", critical.kind];
  const number = (metric: string) => frame?.metrics[metric]?.[at] ?? NaN;
  if (number("nan_count") > 0) return ["bad", "NaN"];
  if (number("inf_count") > 0) return ["bad", "Inf"];
  if (number("grad_nan_count") > 0) return ["bad", "NaN gradient"];
  if (number("grad_inf_count") > 0 || number("grad_norm") === Infinity) return ["bad", "Inf gradient"];
  const warning = here.find((one) => one.severity === "warning");
  if (warning) return ["warn", warning.kind];
  if (number("dead_ratio") >= MOSTLY_DEAD) return ["warn", `${Math.round(number("dead_ratio") * 100)} % zero`];
  const measured = Object.values(frame?.metrics ?? {}).some((column) => Number.isFinite(column[at] ?? NaN));
  return measured ? ["ok", "ok"] : ["unknown", ""];
}
