"""Ranks for which the others wait."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulated import SimulatedRank, a_run_of_ranks, judged, timed

from neuraldbg.records import Call, Severity

STEPS = 60


def noisy(mean: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 0.004, STEPS)


def test_ranks_of_equal_work_have_no_straggler(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 4)
    for rank, one in enumerate(ranks):
        timed(one, noisy(0.06, rank))
        one.end().close()
    assert judged(run, "straggler_rank") == []


@pytest.mark.parametrize("phase", ["backward", "data", "forward"])
def test_a_slow_rank_is_named_with_the_phase_it_is_slow_in(tmp_path: Path, phase: str) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 4)
    for rank, one in enumerate(ranks):
        slow = 0.03 if rank == 2 else 0.0
        timed(one, noisy(0.06 + slow, rank), backward=0.02 + (slow if phase == "backward" else 0))
        wait = 0.005 + (slow if phase == "data" else 0)
        one.calls(Call.BATCH, np.arange(STEPS), duration_ns=int(wait * 1e9))
        one.end().close()
    [found] = judged(run, "straggler_rank")
    assert (found.severity, found.rank, found.evidence["phase"]) == (Severity.WARNING, 2, phase)
    assert found.evidence["behind_ms"] == pytest.approx(30, abs=6)


def test_a_slow_rank_is_named_also_where_another_is_missing(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 4)
    for rank, one in enumerate(ranks):
        timed(one, noisy(0.06 + 0.03 * (rank == 2), rank)[: 4 if rank == 3 else STEPS])
        one.end().close()
    [found] = judged(run, "straggler_rank")
    assert (found.severity, found.rank) == (Severity.WARNING, 2)


def test_a_rank_that_becomes_slow_is_told_since_when(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for rank, one in enumerate(ranks):
        own = noisy(0.05, rank)
        own[6:] += 0.04 * (rank == 1)
        timed(one, own)
        one.end().close()
    [found] = judged(run, "straggler_rank")
    assert found.step == pytest.approx(6, abs=2)


def test_a_rank_that_is_late_now_and_then_is_information(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for rank, one in enumerate(ranks):
        own = noisy(0.05, rank)
        own[::5] += 0.3 * (rank == 0)
        timed(one, own, step=0.4)
        one.end().close()
    [found] = judged(run, "straggler_rank")
    assert (found.severity, found.rank) == (Severity.INFO, 0)


def many(mean: float, seed: int, steps: int = 160) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 0.004, steps)


def test_a_rank_that_becomes_slow_late_in_a_run_is_named_with_the_step(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 4)
    for rank, one in enumerate(ranks):
        own = many(0.05, rank)
        own[110:] += 0.04 * (rank == 3)
        timed(one, own)
        one.end().close()
    [found] = judged(run, "straggler_rank")
    assert (found.severity, found.rank) == (Severity.WARNING, 3)
    assert found.step == pytest.approx(110, abs=2)
    assert "of the last 39 steps" in found.summary


def test_all_slow_ranks_of_one_host_are_named(tmp_path: Path) -> None:
    run, _ = a_run_of_ranks(tmp_path, 0)
    for rank in range(6):
        one = SimulatedRank(run, rank, 6, host="old" if rank in (2, 3) else f"new-{rank // 2}")
        timed(one, many(0.05 + 0.03 * (rank in (2, 3)), rank))
        one.end().close()
    [found] = judged(run, "straggler_rank")
    assert found.severity is Severity.WARNING
    assert found.rank in (2, 3)
    assert found.summary.startswith("ranks 2, 3, all of old, are the last in ")
    assert found.evidence["ranks"] == "2, 3"


def test_the_rank_that_is_late_now_and_then_is_named_and_not_the_one_that_is_last_most_often(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 4)
    for rank, one in enumerate(ranks):
        own = many(0.05 + 0.005 * (rank == 0), rank)
        own[7::20] += 1.2 * (rank == 2)
        timed(one, own, step=0.4)
        one.end().close()
    [found] = judged(run, "straggler_rank")
    assert (found.severity, found.rank, found.step) == (Severity.INFO, 2, 7)
    assert found.evidence["behind_ms"] == pytest.approx(1200, rel=0.05)
    assert found.evidence["share_of_steps"] == pytest.approx(0.05, abs=0.01)


def test_steps_that_take_all_ranks_longer_have_no_straggler(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 4)
    for rank, one in enumerate(ranks):
        own = many(0.05, rank)
        own[7::20] += 1.2
        timed(one, own, step=0.4)
        one.end().close()
    assert judged(run, "straggler_rank") == []


@pytest.mark.parametrize(("noise", "named"), [(0.004, True), (0.04, False)])
def test_a_rank_that_is_always_the_last_is_named_for_less_than_one_that_mostly_is(
    tmp_path: Path, noise: float, named: bool
) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 4)
    for rank, one in enumerate(ranks):
        own = np.random.default_rng(rank).normal(0.2 + 0.05 * (rank == 1), noise, 160)
        timed(one, own, step=0.35)
        one.end().close()
    assert [one.rank for one in judged(run, "straggler_rank") if one.severity is Severity.WARNING] == [1] * named
