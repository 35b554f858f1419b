"""The share of time the debugger may take decides which steps are watched in full."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.capture.beside import Beside
from neuraldbg.capture.budget import (
    FIRST_IN_FULL,
    LONGEST_PERIOD,
    MOST_TURNS,
    PATIENCE_NS,
    QUIET_EVERY,
    Average,
    SamplingBudget,
)

MS = 1_000_000


def steps(budget: SamplingBudget, count: int, *, bare_ms: float, full_ms: float, quiet_ms: float = 0.0) -> list[int]:
    """Runs `count` steps of a given length; the numbers of those that were watched in full."""
    found = []
    for _ in range(count):
        own = int((full_ms if budget.full else quiet_ms) * MS)
        if budget.full:
            found.append(budget.steps)
        budget.step_done(wall_ns=int(bare_ms * MS) + own, own_ns=own)
    return found


@pytest.mark.parametrize("full_ms", [0.001, 1.0, 1000.0])
def test_the_first_steps_are_watched_in_full_whatever_they_cost(full_ms: float) -> None:
    assert steps(SamplingBudget(0.01), 30, bare_ms=10, full_ms=full_ms)[:20] == list(range(20))


@pytest.mark.parametrize(("full_ms", "period"), [(1.0, 25), (5.0, 125), (10.0, 250)])
def test_then_the_period_follows_from_the_cost(full_ms: float, period: int) -> None:
    """1 % of 10 ms is 0.1 ms a step; half of four fifths of it is for full looks."""
    budget = SamplingBudget(0.01)
    looked = steps(budget, 20 + 5 * period, bare_ms=10, full_ms=full_ms)[20:]
    gaps = [after - before for before, after in pairwise(looked)]
    assert gaps
    assert all(abs(gap - period) <= 1 for gap in gaps)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_the_share_is_kept_in_the_long_run(share: float) -> None:
    budget = SamplingBudget(share)
    steps(budget, 20_000, bare_ms=10, full_ms=3, quiet_ms=0.0005)
    assert budget.ratio_after_start is not None
    assert budget.ratio_after_start <= share


def test_a_cheap_look_is_taken_at_every_step_but_those_it_is_held_against() -> None:
    looked = steps(SamplingBudget(0.1), 20 + 20 * QUIET_EVERY, bare_ms=100, full_ms=0.01)
    assert len(looked) == 20 + 20 * (QUIET_EVERY - 1)


def hidden(budget: SamplingBudget, count: int, *, full_ms: float, noise: random.Random | None = None) -> list[int]:
    """Steps of 10 ms whose full ones take longer by what our own clock sees nothing of."""
    found = []
    for _ in range(count):
        late = 0.0 if noise is None else noise.gauss(0.0, 0.5)
        wall = 10.0 + (full_ms if budget.full else 0.0) + late
        if budget.full:
            found.append(budget.steps)
        budget.step_done(wall_ns=int(wall * MS), own_ns=0)
    return found


def test_what_our_clock_does_not_see_counts_once_it_is_held_against_quiet_steps() -> None:
    budget = SamplingBudget(0.01)
    looked = hidden(budget, 2000, full_ms=2.0)
    assert budget.period == 50  # half of 0.08 ms for full looks of 2 ms
    assert 48 <= looked[-1] - looked[-2] <= 50  # settled right after a full step, which raises the average a little


def test_the_measured_ratio_comes_with_an_interval_that_holds_it() -> None:
    held = 0
    for number in range(40):
        budget = SamplingBudget(0.01)
        looked = hidden(budget, 4000, full_ms=3.0, noise=random.Random(number))
        assert budget.measured is not None
        _, low, high, pairs = budget.measured
        truth = 3.0 / 10.0 * (len(looked) - FIRST_IN_FULL) / (4000 - FIRST_IN_FULL)
        held += low <= truth <= high
        assert pairs >= 5
    assert held >= 34


def test_nothing_is_said_of_too_few_steps() -> None:
    budget = SamplingBudget(0.01)
    hidden(budget, FIRST_IN_FULL + 1, full_ms=2.0)
    assert budget.measured is None


def test_large_tensors_are_left_out_of_most_full_steps_under_a_budget() -> None:
    budget = SamplingBudget(0.01)
    budget.read_bytes = 80 * 2**20
    limits = []
    for _ in range(2000):
        if budget.full:
            limits.append(budget.large_bytes)
        budget.step_done(wall_ns=10 * MS, own_ns=1 if budget.full else 0)
    assert limits[:FIRST_IN_FULL] == [None] * FIRST_IN_FULL
    later = limits[FIRST_IN_FULL : FIRST_IN_FULL + 8]
    assert later == [None, *[10 * 2**20] * 3] * 2
    assert SamplingBudget(None).large_bytes is None


def test_even_a_hopeless_budget_looks_now_and_then() -> None:
    looked = steps(SamplingBudget(0.01), 3 * LONGEST_PERIOD, bare_ms=0.001, full_ms=50, quiet_ms=1)
    assert len(looked) > FIRST_IN_FULL
    assert max(b - a for a, b in pairwise(looked)) <= LONGEST_PERIOD


def test_the_period_adapts_when_steps_become_longer() -> None:
    budget = SamplingBudget(0.01)
    steps(budget, 500, bare_ms=1, full_ms=2)
    short = budget.period
    steps(budget, 500, bare_ms=100, full_ms=2)
    assert budget.period < short / 10


def test_full_means_every_step_and_zero_means_none() -> None:
    assert len(steps(SamplingBudget(None), 50, bare_ms=1, full_ms=9)) == 50
    off = SamplingBudget(0.0)
    assert steps(off, 50, bare_ms=1, full_ms=9) == []
    assert not off.watching


def test_looks_at_gradient_norms_have_their_own_half() -> None:
    budget = SamplingBudget(0.01)
    watched = 0
    for _ in range(2000):
        own = 3 * MS if budget.full else 0
        if budget.watching:
            watched += 1
            budget.watch_cost(MS // 10)
            own += MS // 10
        budget.step_done(wall_ns=10 * MS + own, own_ns=own)
    assert 2000 / 3.5 < watched < 2000 / 2.5
    assert budget.ratio_after_start is not None
    assert budget.ratio_after_start <= 0.01


def test_nothing_is_claimed_before_there_are_steps() -> None:
    budget = SamplingBudget(0.01)
    assert budget.ratio is None
    assert budget.ratio_after_start is None


def test_a_step_during_which_the_process_was_stopped_allows_nothing() -> None:
    budget = SamplingBudget(0.01)
    for number in range(60):
        stopped = 3_600 * 10**9 if number % 4 == 3 else 0
        budget.step_done(wall_ns=10_000_000 + stopped, own_ns=10_000)
    assert budget.bare_ns == 10_000_000 - 10_000


def looked_at(budget: SamplingBudget, losses: list[float]) -> list[int]:
    """Steps of 10 ms that are far too dear to be watched again; those that were, after the first ones."""
    found = []
    for loss in losses:
        if budget.full:
            found.append(budget.steps)
        budget.loss_told(loss)
        budget.step_done(wall_ns=110 * MS if budget.full else 10 * MS, own_ns=100 * MS if budget.full else 0)
    return found[FIRST_IN_FULL:]


def test_the_step_after_a_loss_that_broke_is_watched_in_full() -> None:
    broken = [1.0] * 50 + [float("nan")] * 50
    budget = SamplingBudget(0.01)
    assert looked_at(budget, broken) == [51]
    assert looked_at(SamplingBudget(0.01), [1.0] * 50 + [float("inf")] + [1.0] * 50) == [51]
    assert looked_at(SamplingBudget(0.01), [1.0] * 100) == []
    assert looked_at(SamplingBudget(0.0), broken) == []


def test_a_loss_that_breaks_again_and_again_is_not_followed_for_ever() -> None:
    looked = looked_at(SamplingBudget(0.01), [1.0] * 40 + [float("nan"), 1.0] * 100)
    assert looked == [41 + 2 * turn for turn in range(MOST_TURNS)]


def test_nothing_is_left_out_of_the_step_after_a_break() -> None:
    budget = SamplingBudget(0.01)
    budget.read_bytes = 80 * 2**20
    for _ in range(FIRST_IN_FULL + 1):
        budget.step_done(wall_ns=10 * MS, own_ns=0)
    assert budget.large_bytes is not None
    budget.loss_told(float("nan"))
    budget.step_done(wall_ns=10 * MS, own_ns=0)
    assert (budget.full, budget.large_bytes) == (True, None)


def test_somebody_who_held_the_training_sees_a_step_after_it_in_full() -> None:
    budget = SamplingBudget(0.01)
    looked_at(budget, [1.0] * 60)
    assert not budget.full
    budget.held(MS)  # a breakpoint that nobody stood at
    budget.step_done(wall_ns=10 * MS, own_ns=0)
    assert not budget.full
    budget.held(5_000 * MS)
    budget.step_done(wall_ns=5_010 * MS, own_ns=5_000 * MS)
    assert budget.full


def test_slow_steps_are_not_left_unwatched_for_minutes() -> None:
    """The ledger alone takes what is allowed, which would leave a thousand steps of a second each unwatched."""
    looked = steps(SamplingBudget(0.01), 200, bare_ms=1000, full_ms=16, quiet_ms=11)
    gaps = {after - before for before, after in pairwise(looked[FIRST_IN_FULL:])}
    assert gaps == {PATIENCE_NS // (1000 * MS) + 1}


def test_a_machine_that_becomes_slow_keeps_nobody_waiting() -> None:
    budget = SamplingBudget(0.01)
    steps(budget, FIRST_IN_FULL, bare_ms=1, full_ms=5)  # by which a thousand steps are to pass
    looked = steps(budget, 60, bare_ms=1000, full_ms=5)
    assert looked
    assert looked[0] - FIRST_IN_FULL <= 25  # what is usual has to be learnt first


def test_patience_never_costs_more_than_its_half_of_the_share() -> None:
    budget = SamplingBudget(0.01)
    looked = steps(budget, 600, bare_ms=1000, full_ms=500)
    assert looked[-1] - looked[-2] == 125  # 0.5 s each 125 s are four tenths of a percent, however long that is
    assert budget.ratio_after_start is not None
    assert budget.ratio_after_start <= 0.01


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("step_ms", [2.0, 300.0])
def test_quiet_steps_that_are_accounted_for_together_are_all_in_the_books(share: float, step_ms: float) -> None:
    """Short ones are settled eight at a time; nothing of them is lost, and the next full look is not late for it."""
    budget = SamplingBudget(share)
    wall = own = fulls = 0
    gaps, since = [], 0
    for _ in range(3000 if step_ms < 10 else 300):
        full = budget.full
        fulls += full
        if full:
            gaps.append(since)
        since = 0 if full else since + 1
        own_ns = int(1e6 if full else 5e3)
        wall_ns = int(step_ms * 1e6) + own_ns
        budget.step_done(wall_ns=wall_ns, own_ns=own_ns)
        wall, own = wall + wall_ns, own + own_ns
    assert (budget.wall_ns, budget.own_ns, budget.sampled) == (wall, own, fulls)
    assert budget.steps == (3000 if step_ms < 10 else 300)
    if share:
        assert max(gaps[FIRST_IN_FULL + 5 :]) <= budget.period + 1


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 10**9), min_size=1, max_size=9)), max_size=12))
def test_quiet_steps_told_together_count_as_told_one_by_one(runs: list[tuple[bool, list[int]]]) -> None:
    together, singly = Beside(), Beside()
    for full, walls in runs:
        for wall in walls:
            singly.step(wall, full=full)
            together.step(wall, full=True) if full else None
        together.quiet_steps(walls) if not full else None
    assert (together.extra, together.quiet_ns) == (singly.extra, singly.quiet_ns)


def test_steps_told_together_weigh_as_many() -> None:
    together, singly = Average(), Average()
    for average in (together, singly):
        average.add(100.0)
    together.add(20.0, times=8)
    for _ in range(8):
        singly.add(20.0)
    assert together.value == pytest.approx(singly.value)


@pytest.mark.parametrize("share", [0.01, None])
def test_a_process_that_was_stopped_for_an_hour_has_not_trained_meanwhile(share: float | None) -> None:
    budget = SamplingBudget(share)
    steps(budget, 1000, bare_ms=10, full_ms=2)
    assert budget.trained_s == pytest.approx(10, rel=0.01)
    budget.step_done(wall_ns=3_600_000 * MS, own_ns=0)
    steps(budget, 100, bare_ms=10, full_ms=2)
    assert budget.trained_s == pytest.approx(11, rel=0.01)
