"""Two runs on a terminal, column beside column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuraldbg.surfaces.terminal.console import ascii_only
from neuraldbg.surfaces.terminal.figures import DASH, by_powers_of_ten, duration, figure, quantity, shortened, sparkline

if TYPE_CHECKING:
    from rich.console import Console

    from neuraldbg.analysis.compare import Comparison, Side

MOST_NAMES = 6
FIELD_NAMES = {"nan_count": "NaN count", "inf_count": "Inf count", "l2": "norm", "mean": "mean"}


def render_comparison(comparison: Comparison, console: Console) -> None:
    console.print(_table(comparison, console))
    console.print()
    _render_curves(comparison, console)
    for line in _differences(comparison):
        console.print(line)


def _table(comparison: Comparison, console: Console) -> object:
    from rich.table import Table

    a, b = comparison.a, comparison.b
    width = (console.width - 16) // 2
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column(f"A  {shortened(a.id, width - 3)}", no_wrap=True)
    table.add_column(f"B  {shortened(b.id, width - 3)}", no_wrap=True)
    for name, left, right in (
        ("Command", shortened(a.command, width - 3) or DASH, shortened(b.command, width - 3) or DASH),
        ("Optimizer", shortened(a.optimizers, width - 3) or DASH, shortened(b.optimizers, width - 3) or DASH),
        ("Final loss", figure(a.final_loss), figure(b.final_loss)),
        ("First loss", figure(a.first_loss), figure(b.first_loss)),
        ("Updates", f"{a.steps:,}", f"{b.steps:,}"),
        ("Duration", duration(a.duration_s), duration(b.duration_s)),
        ("Step time", _milliseconds(a.step_time_s), _milliseconds(b.step_time_s)),
        ("Verdict", a.state, b.state),
        ("Exit code", _code(a), _code(b)),
    ):
        table.add_row(name, left, right)
    return table


def _milliseconds(seconds: float | None) -> str:
    return DASH if seconds is None else f"{figure(seconds * 1000)} ms"


def _code(side: Side) -> str:
    return DASH if side.exit_code is None else str(side.exit_code)


def _render_curves(comparison: Comparison, console: Console) -> None:
    """Both losses over the same steps and on one scale; a space where a run has no value."""
    import math

    from neuraldbg.analysis.compare import on_one_axis

    width = min(56, console.width - 24)
    curve_a, curve_b = on_one_axis(comparison.loss, width)
    known = [value for value in (*curve_a, *curve_b) if value is not None]
    if not known:
        return
    powers = by_powers_of_ten(known)
    drawn = sparkline(powers or known, ascii_only=ascii_only(console.file))
    marks = iter(drawn)
    for name, curve in (("A", curve_a), ("B", curve_b)):
        line = "".join(" " if value is None else next(marks) for value in curve)
        console.print(f"Loss {name}  {line}")
    finite = [value for value in known if math.isfinite(value)]
    if finite and comparison.loss:
        first, last = comparison.loss[0][0], comparison.loss[-1][0]
        ends = f"{figure(min(finite))} to {figure(max(finite))}{'' if powers is None else ' (log)'}"
        console.print(f"        steps {first:,} to {last:,}, {ends}", style="dim")


def _differences(comparison: Comparison) -> list[str]:
    lines = []
    if comparison.loss_differs_from is not None:
        lines.append(f"The losses differ from step {comparison.loss_differs_from} on.")
    elif any(a is not None and b is not None for _, a, b in comparison.loss):
        lines.append("The losses agree on every step both runs have.")
    else:
        lines.append("The runs have no loss at a common step.")
    found = comparison.divergence
    if found is not None:
        lines.append(
            f"First diverging layer: {found.layer} ({found.kind}) at step {found.step}, "
            f"{FIELD_NAMES[found.field]} {figure(found.a)} in A and {figure(found.b)} in B."
        )
    elif comparison.divergence_searched:
        lines.append("No layer differs at a step that both runs recorded.")
    else:
        lines.append(
            "First diverging layer: needs two run directories of `neural debug` (a session file holds only the last "
            "statistics, a profiled run none)."
        )
    lines += _layer_lines(comparison)
    return lines


def _layer_lines(comparison: Comparison) -> list[str]:
    lines = []
    for name, paths in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if paths:
            more = f" and {len(paths) - MOST_NAMES} more" if len(paths) > MOST_NAMES else ""
            lines.append(f"Layers only in {name}: {', '.join(paths[:MOST_NAMES])}{more}.")
    changed = comparison.changed_params
    if changed:
        listed = ", ".join(f"{path} {quantity(a)} / {quantity(b)}" for path, a, b in changed[:MOST_NAMES])
        more = f" and {len(changed) - MOST_NAMES} more" if len(changed) > MOST_NAMES else ""
        lines.append(f"Parameters differ (A / B): {listed}{more}.")
    return lines
