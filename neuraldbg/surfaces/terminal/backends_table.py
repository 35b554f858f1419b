"""One network on several backends, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

MOST_LAYERS = 10


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
    """The layers that take longest anywhere; a dash where a backend cannot tell."""
    results = one["results"]
    times = [{layer["layer"]: layer["mean_s"] for layer in each["layers"]} for each in results]
    names = dict.fromkeys(name for each in times for name in each)
    slow = sorted(names, key=lambda name: -max(each.get(name, 0.0) for each in times))[:MOST_LAYERS]
    if not slow:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("ms of a layer, the slowest first")
    for each in results:
        table.add_column(each["backend"], justify="right")
    for name in slow:
        table.add_row(Text(name), *(f"{each[name] * 1e3:.3f}" if name in each else "-" for each in times))
    console.print(table)
    for each in results:
        told = f"times from {each['layers_from']}" if each["layers_from"] else "it cannot tell its layers apart"
        console.print(Text(f"  {each['backend']}: {told}", "dim"))
