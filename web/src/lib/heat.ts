import type { Heat } from "../parts/HeatCanvas.svelte";
import { NOT_MEASURED } from "./chart";
import { bytesOf } from "./stream";
import type { HeatAnswer } from "./types";

/** The rows of some layers, in the order asked for. */
export function heatOf(answer: HeatAnswer, layers: string[]): Heat {
  const columns = Math.max(0, answer.edges.length - 1);
  const cells = bytesOf(answer.cells);
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
