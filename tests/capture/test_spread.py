"""The second look of the C kernel (histogram of equal widths, magnitudes, powers) is that of its numpy twin."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from neuraldbg.capture.kernels import memory, twin
from neuraldbg.capture.kernels.elements import MOST_BINS, WIDTH, WITH_POWERS, Element

compiled = pytest.mark.skipif(memory.fused is None, reason="built without a compiler")
SETS = range(len(memory.fused.INSTRUCTION_SETS) if memory.fused is not None else 0)
SIZES = st.one_of(st.integers(0, 70), st.sampled_from([2047, 2048, 2049, 4097, 3 * 2048 + 5]))


def bytes_of(element: Element, size: int, seed: int, scale: float) -> NDArray[np.uint8]:
    draw = np.random.default_rng(seed)
    if element in (Element.float32, Element.float64):
        dtype = np.float32 if element is Element.float32 else np.float64
        with np.errstate(over="ignore"):
            values = (draw.standard_normal(size) * scale + scale / 3).astype(dtype)
        values[draw.random(size) < 0.05] = np.nan
        values[draw.random(size) < 0.05] = np.inf
        return values.view(np.uint8)
    raw = draw.integers(0, 256, size * WIDTH[element], dtype=np.uint8)
    return raw & 1 if element is Element.bool else raw


@compiled
@given(
    st.sampled_from(sorted(Element)),
    SIZES,
    st.integers(0, 10**6),
    st.integers(1, MOST_BINS),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e4, 1e20]),
)
@example(Element.float32, 6149, 1, 50, 1.0)
@settings(max_examples=200)
def test_every_instruction_set_finds_what_the_twin_finds(
    element: Element, size: int, seed: int, bins: int, scale: float
) -> None:
    raw = bytes_of(element, size, seed, scale)
    row = twin.measure(raw, element)
    of = (row[1], row[2], row[3], row[4])
    if math.isnan(row[1]) or row[3] == row[4]:
        return
    right = np.zeros(bins, np.int64)
    expected = twin.spread(twin.decoded(raw, element), of, right)
    for number in SETS:
        counts = np.zeros(bins, np.int64)
        flags = WITH_POWERS | (number + 1) << 8
        found = memory.fused.spread(raw.ctypes.data if size else 0, element, size, of, counts, flags)
        if found is None:
            continue
        finite = row[0] - row[7] - row[8]
        assert counts.sum() == right.sum() == finite
        # a value on an edge, up to rounding, may be on either side: whole numbers lie there often
        with np.errstate(invalid="ignore"):  # a NaN that signals
            values = twin.decoded(raw, element).astype(np.float64)
        places = (values[np.isfinite(values)] - of[2]) / (of[3] - of[2]) * bins
        on_edge = int((np.abs(places - np.round(places)) < 1e-4).sum())
        assert np.abs(np.cumsum(counts - right)).max() <= on_edge
        assert found[0] == pytest.approx(expected[0], rel=1e-5)
        for power, (ours, theirs) in enumerate(zip(found[1:], expected[1:], strict=True), start=1):
            most = max(expected[4], finite) if power > 2 else finite
            assert ours == pytest.approx(theirs, abs=1e-3 * max(most, 1)), f"z^{power}"


@compiled
def test_a_range_that_floats_cannot_multiply_is_left_to_the_twin() -> None:
    values = np.array([-3e38, 3e38], np.float32)
    counts = np.zeros(4, np.int64)
    assert memory.fused.spread(values.ctypes.data, Element.float32, 2, (0.0, 3e38, -3e38, 3e38), counts) is None
    assert counts.sum() == 0
    memory.spread(values, Element.float32, (0.0, 3e38, -3e38, 3e38), counts, powers=True)
    assert counts.tolist() == [1, 0, 0, 1]


@compiled
def test_more_values_than_a_count_of_16_bits_holds() -> None:
    values = np.zeros(3_000_001, np.float32)
    values[-1] = 1.0
    counts = np.zeros(50, np.int64)
    memory.spread(values, Element.float32, (0.0, 1.0, 0.0, 1.0), counts, powers=False)
    assert (int(counts[0]), int(counts[-1]), int(counts.sum())) == (3_000_000, 1, 3_000_001)


@compiled
@pytest.mark.parametrize("bins", [0, MOST_BINS + 1])
def test_wrong_calls_raise_and_do_not_write(bins: int) -> None:
    values = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="63 int64"):
        memory.fused.spread(values.ctypes.data, Element.float32, 4, (0, 1, 0, 1), np.zeros(bins, np.int64))
    with pytest.raises(TypeError):
        memory.fused.spread(values.ctypes.data, Element.float32, 4)


@compiled
def test_nothing_is_held_on_to() -> None:
    values, counts = np.arange(10.0), np.zeros(5, np.int64)
    before = sys.getrefcount(counts)
    for _ in range(100):
        memory.fused.spread(values.ctypes.data, Element.float64, 10, (4.5, 2.8, 0.0, 9.0), counts)
    assert sys.getrefcount(counts) == before
