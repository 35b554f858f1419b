"""A tensor that was made again, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from neuraldbg.surfaces.terminal.figures import DASH, figure

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = ("mean", "std", "min", "max", "l2")


def render_tensor(title: str, about: Mapping[str, Any], console: Console) -> None:
    shape = " x ".join(str(size) for size in about["shape"]) or "scalar"
    console.print(f"{title}: {shape} {about['dtype']}", highlight=False)
    numbers = "  ".join(f"{name} {_figure(about.get(name))}" for name in SHOWN)
    console.print(f"Values     {numbers}", highlight=False, soft_wrap=True)
    counts = "  ".join(f"{name} {about.get(key, DASH)}" for name, key in COUNTS.items())
    console.print(f"Counts     {counts}", highlight=False, soft_wrap=True)


COUNTS = {"elements": "count", "zeros": "zero_count", "NaN": "nan_count", "Inf": "inf_count"}


def _figure(value: Any) -> str:
    return DASH if value is None else figure(float(value))
