"""A tensor at the prompt: whatever its numbers are, they stand in columns of a narrow terminal."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.surfaces.terminal.tensor_picture import tensor_lines


def shown(values: list[float]) -> dict[str, Any]:
    stats = {"count": len(values), "mean": 0.5, "std": 0.1, "min": -1.0, "max": 1.0, "l2": 2.0}
    odd = {"zero_count": 0, "nan_count": 0, "inf_count": 0}
    what = {"kind": "output", "layer": "fc", "shape": [len(values)], "dtype": "float32", "device": "cpu"}
    part = {"slice_shape": [len(values)], "values": values, "cut": False, "histogram": None}
    return {**what, **part, "stats": {**stats, **odd}}


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_numbers_stay_in_80_columns_with_a_space_between_them(values: list[float]) -> None:
    numbers = list(tensor_lines(shown(values)))[2]
    assert len(numbers) <= 80
    assert len(numbers.removesuffix(" ...").split()) == min(len(values), 7)
