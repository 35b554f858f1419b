import { columnOf, MINUS_INF, NAN, NOT_MEASURED, place, PLUS_INF, TOP, valueAt } from "./chart";
import { short } from "./numbers";
import { bytesOf } from "./stream";
import type { HeatAnswer } from "./types";

export type Heat = Omit<HeatAnswer, "metric" | "cells"> & { rows: Uint8Array[] }; // one byte a cell

/** The rows of some layers, in the order asked for. */
export function heatOf(answer: HeatAnswer, layers: string[]): Heat {
  const columns = Math.max(0, answer.edges.length - 1);
  const cells = typeof answer.cells === "string" ? bytesOf(answer.cells) : answer.cells;
  const at = new Map(answer.layers.map((layer, row) => [layer, row]));
  const known = layers.filter((layer) => at.has(layer));
  const rows = known.map((layer) => cells.subarray(at.get(layer)! * columns, (at.get(layer)! + 1) * columns));
  const measured = known.map((layer, row) => ({ layer, row: rows[row]! })).filter(({ row }) => row.some((cell) => cell !== NOT_MEASURED));
  return { ...answer, layers: measured.map((one) => one.layer), rows: measured.map((one) => one.row) };
}

/** The gravest cell of a row: NaN before infinities, those before any number, and any of them before nothing. */
export function worst(row: Uint8Array): number {
  return row.reduce((most, cell) => (cell > most ? cell !== NOT_MEASURED : most === NOT_MEASURED) ? cell : most, NOT_MEASURED);
}

/** The cells as they are drawn, in so many points: of those that share one the gravest, so that none is lost. */
export function points(heat: Heat, wide: number, tall: number): Uint8Array {
  const [first, last] = [heat.edges[0] ?? 0, heat.edges.at(-1) ?? 1];
  const column = Int32Array.from({ length: wide + 1 }, (_, x) => (x < wide ? columnOf(first + (x / wide) * (last - first), heat.edges) : heat.edges.length - 1));
  const found = new Uint8Array(wide * tall).fill(NOT_MEASURED);
  heat.rows.forEach((row, at) => {
    const y = Math.floor((at / heat.rows.length) * tall) * wide;
    for (let x = 0; x < wide; x++) {
      const from = column[x]!;
      const to = Math.max(column[x + 1]!, from + 1);
      for (let each = from; each < to; each++) if (row[each]! > found[y + x]! ? row[each] !== NOT_MEASURED : found[y + x] === NOT_MEASURED) found[y + x] = row[each]!;
    }
  });
  return found;
}

const TIMES = { low: 1e-3, high: 1e3, log: true }; // from which on a ratio looks the same
const MOST_COLUMNS = 300;

/** How many times larger `a` is than `b`, over the layers and steps that both have. */
export function ratioOf(a: Heat, b: Heat): Heat {
  const layers = a.layers.filter((layer) => b.layers.includes(layer));
  const last = Math.min(a.edges.at(-1) ?? 0, b.edges.at(-1) ?? 0);
  const columns = Math.min(last, MOST_COLUMNS);
  const edges = Array.from({ length: columns + 1 }, (_, column) => Math.floor((column / Math.max(columns, 1)) * last));
  const rows = layers.map((layer) => {
    const of = (heat: Heat, step: number) => numberAt(heat, heat.rows[heat.layers.indexOf(layer)]?.[columnOf(step, heat.edges)]);
    return Uint8Array.from({ length: columns }, (_, column) => {
      const [x, y] = [of(a, edges[column]!), of(b, edges[column]!)];
      if (x === null || y === null) return NOT_MEASURED;
      const times = x === 0 && y === 0 ? 1 : x / y;
      return Number.isNaN(times) ? NAN : times === Infinity ? PLUS_INF : Math.round(place(times, TIMES) * TOP);
    });
  });
  return { layers, edges, rows, min: TIMES.low, max: TIMES.high, log: true };
}

/** null where nothing was measured. */
export function numberAt(heat: Heat, cell: number | undefined): number | null {
  if (cell === NAN) return NaN;
  if (cell === PLUS_INF || cell === MINUS_INF) return cell === PLUS_INF ? Infinity : -Infinity;
  if (cell === undefined || cell === NOT_MEASURED || heat.min === null || heat.max === null) return null;
  return valueAt(cell / TOP, { low: heat.min, high: heat.max, log: heat.log });
}

/** A cell in words: its colour tells a number only roughly. */
export function said(heat: Heat, cell: number | undefined): string {
  const value = numberAt(heat, cell);
  return value === null ? "not measured" : Number.isFinite(value) ? `≈ ${short(value)}` : short(value);
}
