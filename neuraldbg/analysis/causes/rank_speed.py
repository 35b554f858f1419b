"""One rank for which the others wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.rank_steps import PHASES, RankSteps, rank_steps
from neuraldbg.records import Finding, Severity

ENOUGH_STEPS = 10
MOST_STEPS = 0.8  # of the steps, in which one and the same rank is the last
SHARE = 0.2  # of a step, by which it is later than the others
NOW_AND_THEN = 0.1  # of the whole time lost to one rank that is late in some steps only
LATE = 3.0  # times the typical own time of a step: that step was a late one
LEAST_S = 1.0  # lost in all: below it nobody cares
IN_A_ROW = 5


@dataclass(frozen=True, slots=True)
class Lag:
    rank: int
    share: float  # of the steps in which it is the last
    excess_s: float  # of a typical step, over the rank in the middle of the others
    step_s: float
    lost_s: float  # in all
    steps: int
    first: int
    phase: str
    phase_s: float


def steps_of_ranks(evidence: Evidence) -> RankSteps | None:
    return evidence.once("rank steps", lambda: rank_steps(evidence.trace))


@cause("straggler_rank", group="sys", auto="N", explains=("data_bound", "slow_dataloader"))
def straggler_rank(evidence: Evidence) -> Iterator[Finding]:
    """One rank is slower than the others, and they wait for it.

    Finds: a rank whose own work takes longer than that of the others in more than four of five steps, by more than a
    fifth of a step; as information, one that is late now and then and costs a tenth of the time.
    Why it matters: with synchronous training every step takes as long as its slowest rank needs.
    Decides by: each rank's time of a step less what it spent in collectives and waiting for the gradients of others,
    step by step beside that of the other ranks; the phase is the one in which it is furthest behind.
    Usual cures: look at that rank's loader, host or device; split the data so that every rank has as much to do; move
    logging, evaluation and checkpoints out of the step, or spread them.
    """
    times = steps_of_ranks(evidence)
    lag = None if times is None else lag_of(times)
    if times is None or lag is None:
        return
    persistent = lag.share > MOST_STEPS and lag.excess_s > SHARE * lag.step_s and lag.lost_s > LEAST_S
    if not persistent and not _now_and_then(times, lag):
        return
    how = "is the last one in" if persistent else "is late now and then: the last one in"
    yield Finding(
        "straggler_rank",
        Severity.WARNING if persistent else Severity.INFO,
        f"rank {lag.rank} {how} {lag.share:.0%} of the steps, {lag.excess_s * 1e3:.3g} ms of "
        f"{lag.step_s * 1e3:.3g} ms behind the others, {PHASES[lag.phase]}",
        step=lag.first,
        evidence={
            "share_of_steps": lag.share,
            "behind_ms": lag.excess_s * 1e3,
            "step_ms": lag.step_s * 1e3,
            "phase": lag.phase,
            "phase_behind_ms": lag.phase_s * 1e3,
            "seconds_lost": lag.lost_s,
            "steps_compared": lag.steps,
        },
        rank=lag.rank,
        confidence=0.93 if persistent else 0.7,
        inference="the others spend that time waiting in their collectives",
    )


def lag_of(times: RankSteps) -> Lag | None:
    """The rank that is the last one most often, and how far behind it is."""
    times = times.of_those_that_told()
    known = times.known()
    if len(times.ranks) < 2:
        return None
    if known.sum() < ENOUGH_STEPS:
        return None
    own, steps = times.own_s[:, known], times.steps[known]
    last = own.argmax(axis=0)
    row = int(np.bincount(last, minlength=len(times.ranks)).argmax())
    others = np.median(np.delete(own, row, axis=0), axis=0)
    excess = own[row] - others
    leading = last == row
    behind = {phase: _behind(np.nan_to_num(grid[:, known]), row) for phase, grid in times.phases.items()}
    phase = max(behind, key=lambda name: behind[name])
    return Lag(
        rank=times.ranks[row],
        share=float(leading.mean()),
        excess_s=float(np.median(excess)),
        step_s=float(np.median(times.step_s[:, known])),
        lost_s=float(np.maximum(excess, 0).sum()),
        steps=int(known.sum()),
        first=int(steps[_begins(leading)]),
        phase=phase,
        phase_s=behind[phase],
    )


def _behind(grid: np.ndarray, row: int) -> float:
    """The mean, not the median: what comes in every third step counts too."""
    return float((grid[row] - np.median(np.delete(grid, row, axis=0), axis=0)).mean())


def _begins(leading: np.ndarray) -> int:
    """From where on it is the last one nearly always."""
    for at in range(len(leading) - IN_A_ROW):
        if leading[at] and leading[at : at + IN_A_ROW].sum() >= IN_A_ROW - 1:
            return at
    return int(leading.argmax())


def _now_and_then(times: RankSteps, lag: Lag) -> bool:
    times = times.of_those_that_told()
    known = times.known()
    own = times.own_s[:, known][times.ranks.index(lag.rank)]
    late = own > LATE * np.median(own)
    lost = float((own[late] - np.median(own)).sum())
    return lost > max(LEAST_S, NOW_AND_THEN * float(np.median(times.step_s[:, known], axis=0).sum())) and late.sum() > 2
