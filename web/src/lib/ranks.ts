import { real } from "./numbers";
import type { RankEntry } from "./types";

export interface RanksAnswer { ranks: RankEntry[]; slowest?: number | null; to?: number | null }

/** How ranks are marked: who is behind, who stands where, who is the slowest. Those that train together all take as long: where waiting was measured, that is who has the most work of its own. */
export function marked({ ranks, slowest = null }: RanksAnswer) {
  const times = ranks.map((one) => real(one.step_time_s) ?? NaN).filter(Number.isFinite).sort((a, b) => a - b);
  const ahead = Math.max(...ranks.map((one) => one.last_step ?? 0));
  const longest = times.length > 1 ? ranks.find((one) => one.step_time_s === times.at(-1))?.rank : null;
  const last = ranks.some((one) => real(one.sync_s) !== null) ? slowest : longest;
  const behind = (one?: RankEntry) => !!one && (one.last_step ?? 0) < ahead - 1;
  const sign = (one: RankEntry) => (behind(one) ? "▲ behind" : one.standing ? `■ in ${one.standing}` : one.rank === last ? "◆ slowest" : "");
  return { times, behind, sign };
}
