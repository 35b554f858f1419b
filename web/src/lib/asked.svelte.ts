import { ask, Refused } from "./api";

const SLOW_MS = 1000;

/** An answer that follows its question: `path` is asked again whenever it changes; the old answer stays until then. */
export class Asked<T> {
  data = $state.raw<T | null>(null);
  error = $state<string | null>(null);
  loading = $state(false);
  slow = $state(false);
  #again = $state(0);

  constructor(path: () => string | null) {
    $effect(() => {
      const now = path();
      void this.#again;
      if (now === null) {
        this.data = null;
        this.error = null;
        return;
      }
      const stop = new AbortController();
      void this.#fetch(now, stop.signal);
      return () => stop.abort();
    });
  }

  again(): void {
    this.#again++;
  }

  async #fetch(path: string, signal: AbortSignal): Promise<void> {
    this.loading = true;
    const timer = setTimeout(() => (this.slow = !signal.aborted), SLOW_MS);
    try {
      this.data = await ask<T>(path, signal);
      this.error = null;
    } catch (error) {
      if (signal.aborted) return;
      this.error = error instanceof Refused ? error.message : "the server does not answer";
      if (error instanceof Refused && error.status === 404) this.data = null;
    } finally {
      clearTimeout(timer);
      if (!signal.aborted) this.loading = this.slow = false;
    }
  }
}
