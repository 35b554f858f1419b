"""One rank for which the others wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.rank_steps import PHASES, RankSteps, rank_steps
from neuraldbg.analysis.ranks import named, processes
from neuraldbg.records import Finding, Severity

ENOUGH_STEPS = 10
MOST_STEPS = 0.8  # of the steps, in which one and the same rank is the last
SHARE = 0.2  # of a step, by which it is later than the others
NEARLY_ALL, SHARE_OF_THOSE = 0.95, 0.1  # where it is the last in so many, half as much is no chance
NOW_AND_THEN = 0.1  # of the whole time lost to one rank that is late in some steps only
LATE = 3.0  # times the typical own time of a step: that step was a late one
LEAST_S = 1.0  # lost in all: below it nobody cares
LATELY = (2, 4, 8)  # where no rank stands out in all steps: the latest half, quarter, eighth of them
ENOUGH_LATELY = 20


@dataclass(frozen=True, slots=True)
class Lag:
    rank: int
    also: tuple[int, ...]  # ranks that are as far behind
    share: float  # of the steps in which it is the last, or as late as the last
    excess_s: float  # of a typical step, over the rank in the middle of the others
    step_s: float
    lost_s: float  # in all
    steps: int
    first: int
    phase: str
    phase_s: float
    lately: bool  # of the latest steps, not of all

    @property
    def persistent(self) -> bool:
        least = SHARE_OF_THOSE if self.share > NEARLY_ALL else SHARE
        return self.share > MOST_STEPS and self.excess_s > least * self.step_s and self.lost_s > LEAST_S


def steps_of_ranks(evidence: Evidence) -> RankSteps | None:
    return evidence.once("rank steps", lambda: rank_steps(evidence.trace))


@cause("straggler_rank", group="sys", auto="N", explains=("data_bound", "slow_dataloader"))
def straggler_rank(evidence: Evidence) -> Iterator[Finding]:
    """One rank is slower than the others, and they wait for it.

    Finds: a rank, or a few, whose own work takes longer than that of the others in more than four of five steps, by
    more than a fifth of a step (a tenth where it is the last in nearly all), in the whole run or since some step of it;
    as information, one that is late now and then and costs a tenth of the time.
    Why it matters: with synchronous training every step takes as long as its slowest rank needs.
    Decides by: each rank's time of a step less what it spent in collectives and waiting for the gradients of others,
    step by step beside that of the other ranks; the phase is the one in which it is furthest behind.
    Usual cures: look at that rank's loader, host or device; split the data so that every rank has as much to do; move
    logging, evaluation and checkpoints out of the step, or spread them.
    """
    times = steps_of_ranks(evidence)
    lag = None if times is None else lag_of(times)
    if lag is None:
        return
    slow = sorted((lag.rank, *lag.also))
    yield Finding(
        "straggler_rank",
        Severity.WARNING if lag.persistent else Severity.INFO,
        f"{named(slow)}{_host_of(evidence, slow)} {_how(lag)}, {PHASES[lag.phase]}",
        step=lag.first,
        evidence={
            "share_of_steps": lag.share,
            "behind_ms": lag.excess_s * 1e3,
            "step_ms": lag.step_s * 1e3,
            "phase": lag.phase,
            "phase_behind_ms": lag.phase_s * 1e3,
            "seconds_lost": lag.lost_s,
            "steps_compared": lag.steps,
            "ranks": ", ".join(map(str, slow[:16])),
        },
        rank=lag.rank,
        confidence=0.93 if lag.persistent else 0.7,
        inference="the others spend that time waiting in their collectives",
    )


def _how(lag: Lag) -> str:
    late, step = f"{lag.excess_s * 1e3:.3g} ms", f"{lag.step_s * 1e3:.3g} ms"
    if not lag.persistent:
        return f"is late now and then: in {lag.share:.0%} of the steps, by {late} where a step takes {step}"
    those = f"the last {lag.steps} steps" if lag.lately else "the steps"
    return f"{'are' if lag.also else 'is'} the last in {lag.share:.0%} of {those}, {late} of {step} behind the others"


def _host_of(evidence: Evidence, slow: list[int]) -> str:
    """Where they are all that a host has, and there are others."""
    group = processes(evidence.trace)
    hosts = {group[rank].host for rank in slow}
    of_them = [rank for rank, one in group.items() if one.host in hosts]
    alone = len(hosts) == 1 and None not in hosts and sorted(of_them) == slow and len(slow) < len(group)
    return f", all of {hosts.pop()}," if alone and len(slow) > 1 else ""


def lag_of(times: RankSteps) -> Lag | None:
    """The rank that is behind the others in all steps, in the latest of them, or now and then; None for none."""
    times = times.of_those_that_told()
    known = np.flatnonzero(times.known())
    if len(times.ranks) < 2 or len(known) < ENOUGH_STEPS:
        return None
    own = times.own_s[:, known]
    for latest in (len(known), *(len(known) // part for part in LATELY)):
        if latest < len(known) and latest < ENOUGH_LATELY:
            break
        last = own[:, -latest:].argmax(axis=0)
        lag = _lag(times, known, int(np.bincount(last).argmax()), latest)
        if lag.persistent:
            return lag
    late = _late_now_and_then(own, float(np.median(times.step_s[:, known], axis=0).sum()))
    if late is None:
        return None
    row, steps, excess_s = late
    lag = replace(_lag(times, known, row, len(known)), also=(), first=int(times.steps[known[steps.argmax()]]))
    return replace(lag, share=float(steps.mean()), excess_s=excess_s)


def _lag(times: RankSteps, known: NDArray[np.int64], row: int, latest: int) -> Lag:
    chosen = known[-latest:]
    own = times.own_s[:, chosen]
    excess = _excess(own, row)
    usual = float(np.median(excess))
    behind = {phase: float(_excess(np.nan_to_num(grid[:, chosen]), row).mean()) for phase, grid in times.phases.items()}
    phase = max(behind, key=lambda name: behind[name])  # by means: what comes in every third step counts too
    as_late = np.median(own - own[row], axis=1) > -max(usual, 0.0) / 2
    since = _begins(_excess(times.own_s[:, known], row), usual)
    return Lag(
        rank=times.ranks[row],
        also=tuple(rank for at, rank in enumerate(times.ranks) if as_late[at] and at != row) if usual > 0 else (),
        share=float(_last(own, row, excess, max(usual, 0.0) / 2).mean()),
        excess_s=usual,
        step_s=float(np.median(times.step_s[:, chosen])),
        lost_s=float(np.maximum(excess, 0).sum()),
        steps=len(chosen),
        first=int(times.steps[known[since]]),
        phase=phase,
        phase_s=behind[phase],
        lately=latest < len(known),
    )


def _last(own: NDArray[np.float64], row: int, excess: NDArray[np.float64], near: float) -> NDArray[np.bool_]:
    """By step: whether it is the last, or one of several that are as late."""
    last = own.max(axis=0)
    found: NDArray[np.bool_] = (own[row] == last) | ((own[row] >= last - near) & (excess > near))
    return found


def _excess(grid: NDArray[np.float64], row: int) -> NDArray[np.float64]:
    """By step: over the rank in the middle of the others."""
    found: NDArray[np.float64] = grid[row] - np.median(np.delete(grid, row, axis=0), axis=0)
    return found


def _begins(excess: NDArray[np.float64], usual: float) -> int:
    """From where on it is behind more often than not, as far back as that holds."""
    late = np.where(excess > max(usual, 0.0) / 2, 1, -1)
    return int(late[::-1].cumsum()[::-1].argmax())


def _late_now_and_then(own: NDArray[np.float64], whole_s: float) -> tuple[int, NDArray[np.bool_], float] | None:
    """The rank that loses most in steps that take it much longer than its others do, and not everybody: which, those
    steps, and how late it is in one of them."""
    usual = np.median(own, axis=1, keepdims=True)
    over = own - own[::-1] if len(own) == 2 else own - np.median(own, axis=0)
    late = (own > LATE * usual) & (over > usual)
    lost = np.where(late, over, 0.0).sum(axis=1)
    row = int(lost.argmax())
    enough = lost[row] > max(LEAST_S, NOW_AND_THEN * whole_s) and late[row].sum() > 2
    return (row, late[row], float(over[row][late[row]].mean())) if enough else None
