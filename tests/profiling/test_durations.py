"""Durations summed up as they come: the same numbers as with all of them at hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.analysis.durations import Durations

some = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=200)


@given(some)
def test_moments_and_extremes_are_exact(values: list[float]) -> None:
    told = Durations(values)
    assert told.count == len(values)
    assert told.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-300)
    assert told.std == pytest.approx(np.std(values), rel=1e-5, abs=1e-6 * max(values))
    assert (told.min, told.max) == (min(values), max(values))


@given(some, some)
def test_one_by_one_and_all_at_once_are_the_same(first: list[float], second: list[float]) -> None:
    singly, together = Durations([*first, *second]), Durations(first)
    together.add_many(np.array(second))
    assert together.count == singly.count
    for name in ("mean", "std"):
        assert getattr(together, name) == pytest.approx(getattr(singly, name), rel=1e-5, abs=1e-6 * singly.max)
    for percent in (50, 95, 99):
        assert together.percentile(percent) == pytest.approx(singly.percentile(percent), rel=0.021)


@given(some, st.sampled_from([1, 50, 90, 95, 99, 100]))
def test_percentiles_are_within_a_percent(values: list[float], percent: int) -> None:
    exact = sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]
    assert Durations(values).percentile(percent) == pytest.approx(exact, rel=0.0101, abs=1e-300)


def test_nothing_is_not_zero() -> None:
    told = Durations().told()
    assert set(told.values()) == {None}
    assert Durations().percentile(50) is None


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_negative_or_endless_duration_is_refused_and_nothing_is_lost(bad: float) -> None:
    told = Durations([1.0])
    before = told.told()
    with pytest.raises(ValueError, match="from 0 on"):
        told.add(bad)
    with pytest.raises(ValueError, match="from 0 on"):
        told.add_many(np.array([1.0, bad]))
    assert told.told() == before


def test_a_million_values_take_no_more_room_than_a_hundred() -> None:
    rng = np.random.default_rng(0)
    few, many = Durations(rng.gamma(2.0, 1.0, 100)), Durations()
    many.add_many(rng.gamma(2.0, 1.0, 1_000_000))
    assert len(few._bins) <= 100
    assert len(many._bins) < 2_000
    assert many.percentile(50) == pytest.approx(1.678, rel=0.02)  # the median of that distribution
