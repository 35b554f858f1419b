"""Numbers are short, honest, and a dash where unknown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.surfaces.terminal.figures import duration, ending, figure, percent, quantity, shortened, size, sparkline


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0.0, "0"), (2.302, "2.30"), (0.198, "0.198"), (0.0123, "0.0123"), (1e-3, "1.0e-3"),
        (12.34, "12.3"), (1234.4, "1234"), (123456.0, "1.2e5"), (-8.6e-7, "-8.6e-7"),
        (math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "-Inf"),
    ],
)  # fmt: skip
def test_figures(value: float | None, text: str) -> None:
    assert figure(value) == text


@given(st.floats(-1e99, 1e99).filter(lambda value: value == 0 or abs(value) > 1e-99))
def test_a_figure_fits_its_column_and_is_near_its_value(value: float) -> None:
    text = figure(value)
    assert len(text) <= 8
    assert float(text) == pytest.approx(value, rel=0.05)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (850, "850"), (12_345, "12.3k"), (999_999, "1.0M"), (124_000_000, "124M")],
)
def test_quantities(value: int | None, text: str) -> None:
    assert quantity(value) == text


def test_other_units() -> None:
    assert [size(None), size(512), size(2_000_000_000)] == ["-", "512 B", "2.0 GB"]
    assert [duration(x) for x in (None, 0.84, 42, 185, 7800)] == ["-", "0.8s", "42s", "3m 05s", "2h 10m"]
    assert [percent(None), percent(0.0093), percent(0.0001)] == ["-", "0.9 %", "0.01 %"]
    assert shortened("NonDynamicallyQuantizableLinear", 10) == "NonDynam.."
    assert ending("transformer.h.11.attn.c_attn", 14) == "..attn.c_attn"
    assert ending("a_name_without_a_dot", 8) == ".._a_dot"
    assert (ending("fc", 14), ending("fc", 1)) == ("fc", ".")


@given(st.lists(st.floats(width=64)), st.booleans())
def test_a_sparkline_has_one_mark_per_value(values: list[float], ascii_only: bool) -> None:
    drawn = sparkline(values, ascii_only=ascii_only)
    assert len(drawn) == len(values)
    assert drawn.count("!") == sum(not math.isfinite(value) for value in values)
    assert drawn.isascii() or not ascii_only
