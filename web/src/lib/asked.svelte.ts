import { untrack } from "svelte";
import { ask, Refused } from "./api";

const SLOW_MS = 1000; // from when on it is said
const HUNG_MS = 10_000; // from when on another question does not wait for it
const about = (path: string | null) => path?.replace(/#.*|\b(from|to|step|points|width)=\d+&?/g, ""); // whichever steps of it
export const RETRY_MS = 2000; // a server that was started anew is found again

/** An answer that follows its question: `path` is asked again whenever it changes; the old answer stays until then. One
 * request at a time: while the question changes fast, those between the one under way and the newest are left out. */
export class Asked<T> {
  data = $state.raw<T | null>(null);
  error = $state<string | null>(null);
  loading = $state(false);
  slow = $state(false);
  #again = $state(0);
  #wanted = $state<string | null>(null);
  #answered = $state<string | null>(null);
  stale = $derived(this.data !== null && about(this.#wanted) !== about(this.#answered)); // of another layer or metric than is asked for
  #asking: { path: string; since: number; stop: AbortController } | null = null;

  constructor(path: () => string | null) {
    const now = $derived(path()); // the same words are the same question, whatever they are made of
    $effect(() => {
      void this.#again;
      const wanted = now;
      untrack(() => this.#want(wanted));
    });
    $effect(() => () => this.#want(null));
  }

  #want(path: string | null): void {
    this.#wanted = path;
    const hung = this.#asking && performance.now() - this.#asking.since > HUNG_MS && path?.split("#")[0] !== this.#asking.path.split("#")[0];
    if (path === null || hung) this.#asking?.stop.abort();
    if (path === null) [this.data, this.error, this.#asking, this.loading, this.slow] = [null, null, null, false, false];
    else if (!this.#asking || hung) void this.#fetch(path);
  }

  async #fetch(path: string): Promise<void> {
    const mine = (this.#asking = { path, since: performance.now(), stop: new AbortController() });
    this.loading = true;
    const timer = setTimeout(() => (this.slow = this.#asking === mine), SLOW_MS);
    let [data, wrong]: [T | null, unknown] = [null, null];
    await ask<T>(path, mine.stop.signal).then((answer) => (data = answer), (error: unknown) => (wrong = error));
    clearTimeout(timer);
    if (this.#asking !== mine) return;
    this.#asking = null;
    this.loading = this.slow = false;
    this.error = wrong instanceof Refused ? wrong.message : wrong ? "the server does not answer" : null;
    if (data || wrong instanceof Refused) [this.data, this.#answered] = [data, path]; // never an older answer under a newer question
    if (this.#wanted !== null && this.#wanted !== path) void this.#fetch(this.#wanted);
    else if (wrong && !(wrong instanceof Refused && wrong.status !== 503)) setTimeout(() => this.#again++, RETRY_MS);
  }
}
