"""Turns in the order A B ... B A, and what their CPU times say: a ratio with the interval that a bootstrap gives it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from arms import Arm, Trainer

RESAMPLES = 2000
HALF_WIDTH = 0.01  # a figure counts when its interval is at most this much to each side


@dataclass(frozen=True)
class Ratio:
    """CPU time of an arm over that of the bare one. A ratio of sums: a step that is rare and dear counts in full."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f}-{self.high:.3f})"


def ratio_of(watched: Sequence[float], bare: Sequence[float]) -> Ratio:
    """Both of one pair are drawn together: what the machine did to one it did to the other."""
    ours, theirs = np.asarray(watched, float), np.asarray(bare, float)
    drawn = np.random.default_rng(0).integers(0, len(ours), (RESAMPLES, len(ours)))
    ratios = ours[drawn].sum(axis=1) / theirs[drawn].sum(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Ratio(float(ours.sum() / theirs.sum()), float(low), float(high), len(ours))


@dataclass(frozen=True)
class Outcome:
    program: str
    steps: int  # of a turn
    bare_ms: float  # CPU time of a bare step
    ratios: dict[str, Ratio]
    viewer_share: dict[str, float]  # of a core, by arm

    def counts(self, arm: str) -> bool:
        """Whether the figure can be relied on: the machine tells two bare processes apart by no more than chance."""
        control = self.ratios.get("control")
        steady = control is not None and control.low <= 1.0 <= control.high and control.half_width <= HALF_WIDTH
        return steady and self.ratios[arm].half_width <= HALF_WIDTH * max(self.ratios[arm].value, 1.0)


def compare(
    program: str, arms: Sequence[Arm], *, pairs: int, turn: tuple[int, int], seconds: float, say: Callable[[str], None]
) -> Outcome:
    """The first of `arms` is the bare one. `turn` = steps of one, and how many come first and are not counted. After
    `seconds` no further pair is begun."""
    steps, warm = turn
    taken: dict[str, list[float]] = {arm.name: [] for arm in arms}
    with ExitStack() as stack:
        trainers = [stack.enter_context(Trainer(arm, program)) for arm in arms]
        for trainer in trainers:
            trainer.steps(warm)
        viewers = {trainer.arm.name: trainer.viewer_cpu_s() for trainer in trainers}
        began = time.monotonic()
        for number in range(pairs):
            if number > 3 and time.monotonic() - began > seconds:
                break
            spent = dict.fromkeys(taken, 0.0)
            for trainer in (*trainers, *reversed(trainers)):
                spent[trainer.arm.name] += trainer.steps(steps)
            for name, value in spent.items():
                taken[name].append(value)
            if number in (4, 19) or (number + 1) % 50 == 0:
                say(f"{program}: {number + 1} pairs, {_so_far(taken, arms)}")
        passed = time.monotonic() - began
        shares = {}
        for trainer in trainers:
            before, after = viewers[trainer.arm.name], trainer.viewer_cpu_s()
            if before is not None and after is not None:
                shares[trainer.arm.name] = (after - before) / passed
    bare = taken[arms[0].name]
    ratios = {arm.name: ratio_of(taken[arm.name], bare) for arm in arms[1:]}
    return Outcome(program, steps, sum(bare) / len(bare) / (2 * steps) / 1e6, ratios, shares)


def _so_far(taken: dict[str, list[float]], arms: Sequence[Arm]) -> str:
    bare = taken[arms[0].name]
    return ", ".join(f"{arm.name} {ratio_of(taken[arm.name], bare)}" for arm in arms[1:])
