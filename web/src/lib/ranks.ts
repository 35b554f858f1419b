import { real } from "./numbers";
import type { RankEntry } from "./types";

export interface RanksAnswer { ranks: RankEntry[]; slowest?: number | null; to?: number | null }

const timesOf = (ranks: RankEntry[]) => ranks.map((one) => real(one.step_time_s) ?? NaN).filter(Number.isFinite).sort((a, b) => a - b);

/** Ranks that train together all take as long: the slowest is the one with the most work of its own, where waiting was measured. */
function slowestOf(answer: RanksAnswer, times: number[]): number | null {
  if (answer.ranks.some((one) => real(one.sync_s) !== null)) return answer.slowest ?? null;
  const last = times.length > 1 ? answer.ranks.find((one) => one.step_time_s === times.at(-1)) : undefined;
  return last?.rank ?? null;
}

/** How ranks are marked: who is behind, who stands where, for whom the others wait. */
export function marked(answer: RanksAnswer) {
  const ranks = answer.ranks;
  const [times, ahead] = [timesOf(ranks), Math.max(...ranks.map((one) => one.last_step ?? 0))];
  const slowest = slowestOf(answer, times);
  const behind = (one?: RankEntry) => !!one && (one.last_step ?? 0) < ahead - 1;
  const sign = (one: RankEntry) => (behind(one) ? "▲ behind" : one.standing ? `■ in ${one.standing}` : one.rank === slowest ? "◆ slowest" : "");
  return { times, behind, sign };
}
