import { describe, expect, it } from "vitest";
import { marked } from "../src/lib/ranks";
import type { RankEntry } from "../src/lib/types";

const rank = (number: number, more: Partial<RankEntry> = {}): RankEntry => ({ rank: number, ended: false, last_step: 9, loss: 1, step_time_s: 0.1, ...more });
const signs = (ranks: RankEntry[], slowest: number | null = null) => {
  const { sign } = marked({ ranks, slowest });
  return ranks.map(sign);
};

describe("marks of ranks", () => {
  it("go by a rank's own work where waiting was measured, since the steps of all take as long", () => {
    expect(signs([rank(0, { step_time_s: 0.101, sync_s: 0.05 }), rank(1, { sync_s: 0.001 })], 1)).toEqual(["", "◆ slowest"]);
    expect(signs([rank(0, { sync_s: 0.05 }), rank(1, { sync_s: 0.05 })])).toEqual(["", ""]);
  });
  it("go by the time of a step where it was not", () => {
    expect(signs([rank(0, { step_time_s: 0.2 }), rank(1)])).toEqual(["◆ slowest", ""]);
    expect(signs([rank(0)])).toEqual([""]);
  });
  it("tell of those that are behind or stand", () => {
    expect(signs([rank(0), rank(1, { last_step: 5 }), rank(2, { standing: "backward" })])).toEqual(["◆ slowest", "▲ behind", "■ in backward"]);
  });
});
