"""A tensor that was made again, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from neuraldbg.surfaces.terminal.figures import DASH, figure

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = ("mean", "std", "min", "max", "l2")
COUNTS = {"elements": "count", "zeros": "zero_count", "NaN": "nan_count", "Inf": "inf_count"}
MOST_ROWS, MOST_COLUMNS = 16, 8


def render_tensor(title: str, about: Mapping[str, Any], console: Console) -> None:
    shape = " x ".join(str(size) for size in about["shape"]) or "scalar"
    console.print(f"{title}: {shape} {about['dtype']}", highlight=False)
    numbers = "  ".join(f"{name} {_figure(about.get(name))}" for name in SHOWN)
    console.print(f"Values     {numbers}", highlight=False, soft_wrap=True)
    counts = "  ".join(f"{name} {about.get(key, DASH)}" for name, key in COUNTS.items())
    console.print(f"Counts     {counts}", highlight=False, soft_wrap=True)
    if "values" in about:
        _render_part(about, console)


def _render_part(about: Mapping[str, Any], console: Console) -> None:
    """The last dimension of a slice lies in rows."""
    values, shape = about["values"], about["slice_shape"]
    wide = max(shape[-1] if shape else 1, 1)
    rows = [values[at : at + wide] for at in range(0, len(values), wide)]
    size = " x ".join(str(each) for each in shape) or "scalar"
    console.print(f"Part       {about['slice'] or 'all of it'}: {size}", highlight=False, markup=False)
    for row in rows[:MOST_ROWS]:
        more = "  ..." if len(row) > MOST_COLUMNS else ""
        console.print("           " + "  ".join(_figure(each) for each in row[:MOST_COLUMNS]) + more, highlight=False)
    if about["cut"] or len(rows) > MOST_ROWS:
        console.print("           ...", highlight=False)


def _figure(value: Any) -> str:
    if isinstance(value, list):  # real and imaginary part
        return "+".join(_figure(each) for each in value) + "j"
    return DASH if value is None else figure(float(value))
