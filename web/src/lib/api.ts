/** Questions to the server. Every request goes to where this page came from; a page with a run in it makes none. */
import { answer, held } from "./report";

export class Refused extends Error {
  constructor(readonly status: number, message: string, readonly details: Record<string, unknown>) { super(message); }
}

export function query(path: string, given: Record<string, string | number | boolean | null | undefined>): string {
  const known = Object.entries(given).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const rest = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString();
  return rest ? `${path}?${rest}` : path;
}

export async function ask<T>(path: string, signal?: AbortSignal): Promise<T> {
  if (!held) return answered<T>(await fetch(path, { signal, headers: { accept: "application/json" } }));
  const found = answer(await held, path);
  if (found === undefined) throw new Refused(404, "this report does not hold that", {});
  return found as T;
}

export async function send<T>(method: "POST" | "PATCH" | "DELETE", path: string, body: unknown = {}): Promise<T> {
  if (held) throw new Refused(503, "this is a report: no training process is attached", {});
  return answered<T>(await fetch(path, { method, headers: { "content-type": "application/json" }, body: JSON.stringify(body) }));
}

async function answered<T>(response: Response): Promise<T> {
  if (response.ok) return (await response.json()) as T;
  const details = ((await response.json().catch(() => null)) ?? {}) as Record<string, unknown>;
  throw new Refused(response.status, String(details["error"] ?? `${response.status} ${response.statusText}`), details);
}
