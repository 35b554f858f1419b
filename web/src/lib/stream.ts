/** The WebSocket: messages as they come, and again after a lost connection. */
import { held } from "./report";
import type { Finding, Frame, Num, Where } from "./types";

export type Message =
  | { type: "layers"; layers: string[] }
  | { type: "frame"; step: number; last_step: number; metrics: Record<string, string>; scalars: Record<string, Num> }
  | { type: "step"; step: number; last_step: number; scalars: Record<string, Num> } // between two frames
  | ({ type: "state" } & Where)
  | { type: "hit"; step: number; layer: string | null; breakpoints: number[] }
  | { type: "finding"; finding?: Finding; withdrawn?: string }
  | { type: "error"; error: string }
  | { type: "state_change" | "execution_progress" | "done" | "breakpoints" };

const [FIRST_WAIT_MS, LONGEST_WAIT_MS] = [500, 8000];
const GOING_AWAY = 1012; // what our server says when it is ended

const native = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> }).fromBase64;

export function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  if (native) return native(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

export function frameOf(message: { step: number; metrics: Record<string, string> }, layers: string[]): Frame {
  const metrics = Object.fromEntries(Object.entries(message.metrics).map(([name, text]) => [name, new Float32Array(bytesOf(text).buffer)]));
  return { step: message.step, layers, metrics };
}

export interface Listener {
  message(message: Message): void;
  connected(yes: boolean, gone: boolean): void; // gone: not only the connection, but the server
  lastStep(): number | null;
}

/** Returns what ends it. */
export function listen(run: string | null, listener: Listener): () => void {
  let [over, gone, wait] = [false, false, FIRST_WAIT_MS];
  let [socket, timer]: [WebSocket | null, ReturnType<typeof setTimeout> | undefined] = [null, undefined];
  if (held) return () => undefined; // nothing changes any more
  const open = () => {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    socket = new WebSocket(`${scheme}://${location.host}/api/events${run ? `?run=${encodeURIComponent(run)}` : ""}`);
    socket.onopen = () => {
      wait = FIRST_WAIT_MS;
      listener.connected(true, false);
      const last = listener.lastStep();
      if (last !== null) socket?.send(JSON.stringify({ last_step: last }));
    };
    socket.onmessage = (event: MessageEvent<string>) => listener.message(JSON.parse(event.data) as Message);
    socket.onclose = (event) => {
      if (over) return;
      gone = event.code === GOING_AWAY || (gone && wait > FIRST_WAIT_MS) || wait === LONGEST_WAIT_MS;
      listener.connected(false, gone);
      timer = setTimeout(open, wait);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    };
  };
  open();
  return () => void ((over = true), clearTimeout(timer), socket?.close());
}
