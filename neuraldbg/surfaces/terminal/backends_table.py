"""One network on several backends, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def render_backends(comparisons: Sequence[Mapping[str, Any]], console: Console) -> None:
    for one in comparisons:
        console.print(Text(_headline(one), "bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("backend", "ms a batch", "times the fastest", "differs from the first by"):
            table.add_column(name, justify="left" if name == "backend" else "right")
        fastest = min(each["mean_s"] for each in one["results"])
        for each in one["results"]:
            time = f"{each['mean_s'] * 1e3:.3f} ± {each['std_s'] * 1e3:.3f}"
            table.add_row(each["backend"], time, f"{each['mean_s'] / fastest:.2f}", f"{each['difference']:.1e}")
        console.print(table)
        _layers(one, console)


def _headline(one: Mapping[str, Any]) -> str:
    said = "outputs agree" if one["agree"] else "outputs do NOT agree"
    return f"{one['network']}: {said}, {one['fastest']} is the fastest (batch of {one['batch']})"


def _layers(one: Mapping[str, Any], console: Console) -> None:
    for each in one["results"]:
        if each["layers"]:
            slow = sorted(each["layers"], key=lambda layer: -layer["mean_s"])[:5]
            told = ", ".join(f"{layer['layer']} {layer['mean_s'] * 1e3:.3f} ms" for layer in slow)
            console.print(Text(f"  {each['backend']}, slowest layers: {told}", "dim"))
