"""Turns in the order A B ... B A, and what their CPU times say: a ratio with the interval that a bootstrap gives it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import Queue

import numpy as np
from arms import Arm, Cores, Trainer

RESAMPLES = 2000
STARTING = 2  # processes at once; the pairs are taken one process at a time
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


def ratio_of(watched: Sequence[float], bare: Sequence[float], starts: Sequence[int] = ()) -> Ratio:
    """Both of one pair are drawn together: what the machine did to one it did to the other. `starts`: which start of
    the processes a pair belongs to; with several of them, they are drawn first, and then the pairs of each."""
    ours, theirs = np.asarray(watched, float), np.asarray(bare, float)
    chance = np.random.default_rng(0)
    of_start = [np.flatnonzero(np.asarray(starts) == start) for start in sorted(set(starts))]
    if len(of_start) < 2:
        drawn = list(chance.integers(0, len(ours), (RESAMPLES, len(ours))))
    else:
        drawn = [
            np.concatenate([chance.choice(of_start[one], len(of_start[one])) for one in which])
            for which in chance.integers(0, len(of_start), (RESAMPLES, len(of_start)))
        ]
    ratios = [ours[pairs].sum() / theirs[pairs].sum() for pairs in drawn]
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


@dataclass(frozen=True)
class Much:
    """How much is measured. After `seconds` no further pair is begun. The processes are made anew so many times as
    `starts` says: two of the same kind differ by some percent for as long as they live, by where their memory came to
    lie."""

    pairs: int
    starts: int
    seconds: float
    at_once: int = 1  # starts, each on cores of its own


@dataclass
class _Taken:
    """CPU time of each pair by arm, of which start each pair is, and what the viewers took of a core."""

    spent: dict[str, list[float]]
    starts: list[int] = field(default_factory=list)
    viewers: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, arm: str, bare: str) -> Ratio:
        return ratio_of(self.spent[arm], self.spent[bare], self.starts)

    def add(self, other: _Taken) -> None:
        for name, values in other.spent.items():
            self.spent[name] += values
        self.starts += other.starts
        for name, values in other.viewers.items():
            self.viewers.setdefault(name, []).extend(values)


def compare(
    program: str, arms: Sequence[Arm], much: Much, *, turn: tuple[int, int], say: Callable[[str], None]
) -> Outcome:
    """The first of `arms` is the bare one. `turn` = steps of one, and how many come first and are not counted."""
    taken = _Taken({arm.name: [] for arm in arms})
    rounds = -(-much.starts // much.at_once)
    began, free = time.monotonic(), Queue[Cores]()
    for cores in _apart(much.at_once):
        free.put(cores)

    def take(start: int) -> _Taken:
        left = (began + much.seconds * (start // much.at_once + 1) / rounds) - time.monotonic()
        order = arms if start % 2 == 0 else arms[::-1]  # who is started first, and has the first turn
        own, cores = _Taken({arm.name: [] for arm in arms}), free.get()
        try:
            _one_start(program, order, (much.pairs // much.starts, left, turn), own, (start, cores))
        finally:
            free.put(cores)
        return own

    for own in _each(take, much):
        taken.add(own)
        say(f"{program}: {len(taken.starts)} pairs, {_so_far(taken, arms)}")
    bare = taken.spent[arms[0].name]
    ratios = {arm.name: taken.ratio(arm.name, arms[0].name) for arm in arms[1:]}
    shares = {name: sum(found) / len(found) for name, found in taken.viewers.items()}
    return Outcome(program, turn[0], sum(bare) / len(bare) / (2 * turn[0]) / 1e6, ratios, shares)


def _each(take: Callable[[int], _Taken], much: Much) -> Iterator[_Taken]:
    """One after the other here, where Ctrl-C reaches them; beside each other in threads, of which none is begun once
    one has failed."""
    if much.at_once == 1:
        yield from map(take, range(much.starts))
        return
    with ThreadPoolExecutor(much.at_once) as taking:
        try:
            yield from taking.map(take, range(much.starts))
        finally:
            taking.shutdown(wait=False, cancel_futures=True)


def _apart(groups: int) -> list[Cores]:
    """Cores of this process, in groups of the same size; None for one group, which goes where the system puts it."""
    if groups == 1:
        return [None]
    if not hasattr(os, "sched_getaffinity"):
        raise SystemExit(f"--at-once {groups}: this system gives no process cores of its own")
    cores = sorted(os.sched_getaffinity(0))
    size = len(cores) // groups
    if not size:
        raise SystemExit(f"--at-once {groups}: this process has {len(cores)} cores")
    return [frozenset(cores[at * size : (at + 1) * size]) for at in range(groups)]


def _one_start(
    program: str, arms: Sequence[Arm], much: tuple[int, float, tuple[int, int]], taken: _Taken, at: tuple[int, Cores]
) -> None:
    pairs, seconds, (steps, warm) = much
    start, cores = at
    until = time.monotonic() + seconds
    with ExitStack() as stack:
        with ThreadPoolExecutor(STARTING) as starting:
            trainers = list(
                starting.map(lambda arm: _warm(stack.enter_context(Trainer(arm, program, cores)), warm), arms)
            )
        before = {trainer.arm.name: trainer.viewer_cpu_s() for trainer in trainers}
        began = time.monotonic()
        for number in range(pairs):
            if number > 3 and time.monotonic() > until:
                break
            spent = dict.fromkeys(taken.spent, 0.0)
            for trainer in (*trainers, *reversed(trainers)):
                spent[trainer.arm.name] += trainer.steps(steps)
            for name, value in spent.items():
                taken.spent[name].append(value)
            taken.starts.append(start)
        passed = time.monotonic() - began
        for trainer in trainers:
            first, last = before[trainer.arm.name], trainer.viewer_cpu_s()
            if first is not None and last is not None:
                taken.viewers.setdefault(trainer.arm.name, []).append((last - first) / passed)


def _warm(trainer: Trainer, steps: int) -> Trainer:
    trainer.steps(steps)
    return trainer


def _so_far(taken: _Taken, arms: Sequence[Arm]) -> str:
    return ", ".join(f"{arm.name} {taken.ratio(arm.name, arms[0].name)}" for arm in arms[1:])
