/** Numbers as people read them. What is not known is a dash, never a zero. */
import type { Num } from "./types";

export const UNKNOWN = "–";
export const SIGNS = { critical: "✖", warning: "▲", info: "○", healthy: "✔", undecided: "●" };
export const CLASSES = { critical: "bad", warning: "warn", info: "muted", healthy: "ok", undecided: "muted" };

/** A number, NaN and the infinities included; null where nothing is known. */
export function real(value: Num | string | undefined): number | null {
  const words: Record<string, number> = { nan: NaN, inf: Infinity, "-inf": -Infinity };
  return typeof value === "number" ? value : (words[value ?? ""] ?? null);
}

export function short(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return UNKNOWN;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "−inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(digits - 2).replace(".0e", "e") : String(Number(value.toPrecision(digits)));
  return text.replace("e+", "e").replaceAll("-", "−");
}

export const shown = (value: Num | string | undefined, digits = 3): string => (typeof value === "string" && real(value) === null ? value : short(real(value), digits));

const THOUSANDS = new Intl.NumberFormat("en-US"); // made once: toLocaleString makes one a number
export const count = (value: number | null | undefined): string => (value === null || value === undefined ? UNKNOWN : THOUSANDS.format(value));

const UNITS: [number, string][] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

export function compact(value: number | null | undefined): string {
  const [size, unit] = UNITS.find(([size]) => Number.isFinite(value) && Math.abs(value!) >= size) ?? [1, ""];
  return unit ? short(value! / size) + unit : short(value);
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

export const bytes = (value: number | null | undefined): string => (Number.isFinite(value) ? `${compact(value)}B`.replace(/(\d)([kMGT]?B)$/, "$1 $2") : short(value));

export const percent = (share: number | null | undefined, digits = 2): string => (Number.isFinite(share) ? `${short(share! * 100, digits)} %` : short(share));

const NAMES: Record<string, string> = {
  lr: "learning rate", step_time_s: "time of a step", cpu_percent: "CPU of the machine, %", process_cpu_percent: "CPU of the process, %",
  rss_bytes: "memory of the process", device_bytes: "memory on the device",
};
/** `grad_norm` as a person says it, and a series of the run. */
export const words = (name: string): string => name.replaceAll("_", " ").replace(/\bnan\b/, "NaN").replace(/\binf\b/, "Inf");
export const named = (series: string): string => NAMES[series] ?? words(series);
/** The end of a name that is too long: layers differ there. */
export const clipped = (name: string, letters: number): string => (name.length > letters ? `…${name.slice(1 - Math.max(2, letters))}` : name);
export const until = (step: number | null | undefined): string => (step === null || step === undefined ? "whole run" : `up to step ${count(step)}`);
export const shape = (dims: number[] | null | undefined): string => (dims ? `[${dims.join(" × ")}]` : "–");
export const plural = (number: number, word: string): string => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
