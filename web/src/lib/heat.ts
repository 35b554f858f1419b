import type { Heat } from "../parts/HeatCanvas.svelte";
import { columnOf, NAN, NOT_MEASURED, place, valueAt } from "./chart";
import { bytesOf } from "./stream";
import type { HeatAnswer } from "./types";

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

/** The largest cell of a row; NaN is larger than any number. */
export function worst(row: Uint8Array): number {
  return row.reduce((most, cell) => (cell === NOT_MEASURED ? most : Math.max(most, cell)), -1);
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
    const [here, there] = [a, b].map((heat) => ({ heat, row: heat.rows[heat.layers.indexOf(layer)]! }));
    return Uint8Array.from({ length: columns }, (_, column) => {
      const cells = [here!, there!].map(({ heat, row }) => row[columnOf(edges[column]!, heat.edges)]);
      const [x, y] = [numberAt(a, cells[0]), numberAt(b, cells[1])];
      if (cells.includes(NAN)) return NAN;
      return x && y ? Math.round(place(x / y, TIMES) * 253) : NOT_MEASURED;
    });
  });
  return { layers, edges, rows, min: TIMES.low, max: TIMES.high, log: true };
}

/** null where nothing was measured, or no number. */
export function numberAt(heat: Heat, cell: number | undefined): number | null {
  if (cell === undefined || cell >= NOT_MEASURED || heat.min === null || heat.max === null) return null;
  return valueAt(cell / 253, { low: heat.min, high: heat.max, log: heat.log });
}
