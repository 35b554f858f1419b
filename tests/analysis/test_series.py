"""Curves are made short, never wrong."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.analysis.series import buckets, downsample

any_float = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.lists(any_float, min_size=1, max_size=400), st.integers(8, 60))
def test_a_downsampled_curve_keeps_what_a_person_looks_for(values: list[float], limit: int) -> None:
    array = np.array(values, dtype=np.float64)
    steps, kept = downsample(np.arange(len(values)), array, limit=limit)
    assert len(steps) == len(kept) <= max(limit, 1)
    assert list(steps) == sorted(set(steps.tolist()))
    assert np.array_equal(kept, array[steps], equal_nan=True)
    assert (steps[0], steps[-1]) == (0, len(values) - 1)
    finite, kept_finite = array[np.isfinite(array)], kept[np.isfinite(kept)]
    if len(finite):
        assert (kept_finite.min(), kept_finite.max()) == (finite.min(), finite.max())
    if len(finite) < len(array):
        first_bad = int(np.argmax(~np.isfinite(array)))
        assert first_bad in steps.tolist()


def test_a_short_curve_is_left_alone() -> None:
    steps, values = downsample(np.arange(5), np.arange(5.0), limit=2000)
    assert values.tolist() == [0, 1, 2, 3, 4]
    assert steps.tolist() == [0, 1, 2, 3, 4]


@given(st.lists(any_float, max_size=300), st.integers(1, 50))
def test_a_drawing_never_hides_a_value_that_is_not_finite(values: list[float], width: int) -> None:
    drawn = buckets(np.array(values, dtype=np.float64), width)
    assert len(drawn) == min(len(values), width)
    assert any(math.isnan(value) for value in drawn) == any(not math.isfinite(value) for value in values)
