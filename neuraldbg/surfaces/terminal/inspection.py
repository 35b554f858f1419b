"""Layers on a terminal: the list of them, and one from close up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from neuraldbg.surfaces.terminal.console import ascii_only
from neuraldbg.surfaces.terminal.figures import DASH, figure, percent, quantity, shortened, sparkline
from neuraldbg.surfaces.terminal.report import display_path

if TYPE_CHECKING:
    from rich.console import Console

    from neuraldbg.analysis.layer_views import LayerViews, View
    from neuraldbg.analysis.layers import LayerSummary


def render_list(layers: tuple[LayerSummary, ...], console: Console, *, run_dir: Path) -> None:
    """Every layer with its type, size and the other names it answers to."""
    from rich.table import Table
    from rich.text import Text

    if not layers:
        console.print(f"No layer was recorded in {display_path(run_dir)}.", soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("Layer", no_wrap=True)
    table.add_column("Type", no_wrap=True)
    table.add_column("Params", justify="right", no_wrap=True)
    table.add_column("First NaN/Inf", justify="right", no_wrap=True)
    table.add_column("Also called", no_wrap=True)
    width = console.width
    for layer in layers:
        bad = layer.first_bad_step is not None
        table.add_row(
            Text(shortened(layer.path, width // 3), style="bold red" if bad else ""),
            shortened(layer.type or DASH, 20),
            quantity(layer.params) if layer.params else DASH,
            f"step {layer.first_bad_step}" if bad else DASH,
            shortened(", ".join(layer.aliases[:4]) or DASH, max(width - width // 3 - 50, 12)),
        )
    console.print(table)
    console.print(f"\nOne layer: neural inspect {display_path(run_dir)} {layers[0].path}", style="dim", soft_wrap=True)


def render_layer(found: LayerViews, console: Console) -> None:
    """One layer: a block per tensor with its numbers and its history."""
    from rich.text import Text

    title = Text(found.path, style="bold")
    title.append(f"  {found.type or ''}", style="")
    if found.params:
        title.append(f"  {quantity(found.params)} parameters")
    if found.source:
        title.append(f"  {found.source}", style="dim")
    console.print(title)
    if found.aliases:
        console.print(f"Also called {', '.join(found.aliases)}", style="dim")
    for view in found.views:
        console.print()
        _render_view(view, console)


def _render_view(view: View, console: Console) -> None:
    from rich.text import Text

    from neuraldbg.analysis.series import buckets

    stats = view.stats
    name = view.kind if view.tensor in ("output", view.kind) else f"{view.kind} of {view.tensor}"
    name = view.tensor if view.kind == "parameter" else name
    head = Text(f"{name} at step {view.step}", style="bold")
    head.append(f"  {quantity(stats.count)} values", style="dim")
    if stats.nan_count or stats.inf_count:
        head.append(f"  {stats.nan_count:,} NaN, {stats.inf_count:,} Inf", style="bold red")
    console.print(head)
    console.print(
        f"  mean {figure(stats.mean)}  std {figure(stats.std)}  min {figure(stats.min)}  max {figure(stats.max)}  "
        f"norm {figure(stats.l2)}  zeros {percent(stats.zero_ratio)}"
    )
    if len(view.l2) > 1:
        drawn = sparkline(buckets(view.l2, min(48, console.width - 32)), ascii_only=ascii_only(console.file))
        console.print(f"  norm {drawn}  steps {view.steps[0]:,} to {view.steps[-1]:,}")
    if view.first_bad_step is not None:
        console.print(Text(f"  first NaN or Inf at step {view.first_bad_step}", style="red"))
