/** Numbers as people read them. What is not known is a dash, never a zero. */
import type { Num } from "./types";

export const UNKNOWN = "–";
export const SIGNS = { critical: "✖", warning: "▲", info: "○", healthy: "✔", undecided: "●" };
export const CLASSES = { critical: "bad", warning: "warn", info: "muted", healthy: "ok", undecided: "muted" };

/** A number, NaN and the infinities included; null where nothing is known. */
export function real(value: Num | string | undefined): number | null {
  if (typeof value === "number") return value;
  if (value === "nan") return NaN;
  if (value === "inf") return Infinity;
  if (value === "-inf") return -Infinity;
  return null;
}

/** For charts: what cannot be drawn is a gap. */
export function drawable(value: Num | undefined): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

export function short(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return UNKNOWN;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(digits - 2).replace(".0e", "e") : String(Number(value.toPrecision(digits)));
  return text.replace("e+", "e").replaceAll("-", "−");
}

export function shown(value: Num | string | undefined, digits = 3): string {
  if (typeof value === "string" && real(value) === null) return value;
  return short(real(value), digits);
}

const THOUSANDS = new Intl.NumberFormat("en-US"); // made once: toLocaleString makes one a number

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? UNKNOWN : THOUSANDS.format(value);
}

const UNITS: [number, string][] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

export function compact(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return short(value);
  for (const [size, unit] of UNITS) {
    if (Math.abs(value) >= size) return `${short(value / size)}${unit}`;
  }
  return short(value);
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return short(value);
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${short(value * 1e6)} µs`;
  if (size < 1) return `${short(value * 1e3)} ms`;
  if (size < 120) return `${short(value)} s`;
  return `${Math.floor(value / 60)}m ${Math.round(value % 60)}s`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return short(value);
  return `${compact(value)}B`.replace(/(\d)([kMGT]?B)$/, "$1 $2");
}

export function percent(share: number | null | undefined, digits = 2): string {
  return share === null || share === undefined || !Number.isFinite(share) ? short(share) : `${short(share * 100, digits)} %`;
}

/** `grad_norm` as a person says it. */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

export function plural(number: number, word: string): string {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}
