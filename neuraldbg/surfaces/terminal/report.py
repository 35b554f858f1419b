"""The report of a run on a terminal: how it went, in a few lines and one table."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neuraldbg.config import parse_budget
from neuraldbg.store.heard import came_from
from neuraldbg.surfaces.terminal.anomalies import render_anomalies
from neuraldbg.surfaces.terminal.console import ascii_only
from neuraldbg.surfaces.terminal.diagnosis import LABEL_WIDTH, labelled, render_diagnosis
from neuraldbg.surfaces.terminal.figures import by_powers_of_ten, duration, figure, percent, quantity, sparkline
from neuraldbg.surfaces.terminal.layer_table import bad_lines, table_lines, telling

if TYPE_CHECKING:
    from rich.console import Console

    from neuraldbg.analysis.series import Point
    from neuraldbg.analysis.summary import Overhead, RunSummary

MOST_LAYERS = 25
MOST_NOTES = 8
MOST_NAMED = 3
NOTABLY = 1.25  # times the budget: what is above it is said


def render_report(summary: RunSummary, console: Console, *, run_dir: Path) -> None:
    """Prints the report of one run."""
    render_diagnosis(summary, console)
    console.print()
    _render_head(summary, console)
    if summary.layers:
        console.print()
        if summary.measured_step is not None:
            last = f"Layers at step {summary.measured_step:,}, the last one measured in full (times: means of all)"
            console.print(last, style="dim")
        shown = telling(summary.layers, MOST_LAYERS)
        counts = summary.anomalies.by_layer() if summary.anomalies else None
        for line in table_lines(shown, console.width, focus=summary.focus, anomalies=counts):
            console.print(line, no_wrap=True, crop=True)
        if len(shown) < len(summary.layers):
            more = len(summary.layers) - len(shown)
            console.print(f"  {more} more: neural inspect {display_path(run_dir)}", soft_wrap=True)
    console.print()
    for at, place in enumerate(bad_lines(summary.layers)):
        labelled(console, "" if at else "NaN/Inf", place, label_style="bold red")
    render_anomalies(summary, console)
    _render_closing(summary, console, run_dir=run_dir)


def _render_head(summary: RunSummary, console: Console) -> None:
    labelled(console, "NeuralDbg", _title(summary), style="bold")
    if summary.focus:
        groups = " and ".join(group.replace("_", " ") for group in summary.focus)
        labelled(console, "Focus", f"{groups}: nothing else was looked for")
    losses = [_curve(line.label, line.points, console) for line in summary.loss_lines[:MOST_NAMED]]
    for label, text in (
        ("Model", _models(summary)),
        ("Ranks", _ranks(summary)),
        ("Optimizer", _optimizers(summary)),
        ("Loss", " + ".join(summary.loss_kinds) if losses else _loss(summary, console)),
        *(("", text) for text in losses),
    ):
        if text:
            labelled(console, label, text)


def _title(summary: RunSummary) -> str:
    run = summary.run
    name = Path(run.script).name if run.script else shlex.join(run.command) or run.id
    steps = f"{summary.steps:,} {summary.steps_kind}{'' if summary.steps == 1 else 's'}"
    took = f" in {duration(run.duration_s)}" if run.duration_s is not None else ""
    ending = f"exit code {run.exit_code}" if run.exit_code is not None else "no end recorded"
    return f"{name}   {steps}{took}   {ending}"


def _models(summary: RunSummary) -> str:
    named = [
        f"{model.name} ({model.type or 'unknown class'}, {quantity(model.parameters)} parameters)"
        for model in summary.models[:MOST_NAMED]
    ]
    return _listed(named, len(summary.models))


def _ranks(summary: RunSummary) -> str:
    """How many, how much of their time goes into each other, who has most to do."""
    told = summary.ranks
    if told is None:
        return ""
    hosts = {one["host"] for one in told["ranks"] if one["host"]}
    parts = [f"{len(told['ranks'])} of {told['world_size']} ranks on {len(hosts)} host{'s' if len(hosts) > 1 else ''}"]
    if told["sync_share"] is not None:
        parts.append(f"{told['sync_share']:.0%} of their time in collectives and waiting for each other")
    if told["overlap_share"] is not None:
        parts.append(f"{told['overlap_share']:.0%} of the communication hidden behind backward or other work")
    if told["imbalance"] is not None:
        parts.append(f"most work on rank {told['slowest']} ({told['imbalance']:+.0%} over the mean)")
    return ", ".join(parts)


def _optimizers(summary: RunSummary) -> str:
    named = []
    for optimizer in summary.optimizers[:MOST_NAMED]:
        name = (
            f"{optimizer.name} ({optimizer.type})" if len(summary.optimizers) > 1 else optimizer.type or optimizer.name
        )
        lr = f", lr {optimizer.lr:.4g}" if optimizer.lr is not None else ""
        named.append(f"{name}{lr}")
    if named and summary.accumulation and summary.accumulation > 1:
        named[-1] += f", {summary.accumulation} backwards per update"
    return _listed(named, len(summary.optimizers))


def _listed(named: list[str], total: int) -> str:
    more = f"; {total - len(named)} more" if total > len(named) else ""
    return "; ".join(named) + more


def _loss(summary: RunSummary, console: Console) -> str:
    return _curve(" + ".join(summary.loss_kinds), summary.series.get("loss", ()), console)


def _curve(kinds: str, points: Sequence[Point], console: Console) -> str:
    import numpy as np

    from neuraldbg.analysis.series import buckets

    values = [value for _, value in points]
    if not values:
        return kinds
    if len(values) == 1:
        return f"{kinds} {figure(values[0])}".strip()
    ends = f"{figure(values[0])} -> {figure(values[-1])}"
    powers = by_powers_of_ten(values)
    ends = ends if powers is None else f"{ends} (log)"
    width = min(40, console.width - LABEL_WIDTH - len(kinds) - len(ends) - 4)
    if width < 8:
        return f"{kinds}  {ends}".strip()
    drawn = sparkline(buckets(np.array(powers or values), width), ascii_only=ascii_only(console.file))
    return f"{kinds}  {drawn}  {ends}".strip()


def _render_closing(summary: RunSummary, console: Console, *, run_dir: Path) -> None:
    for note in summary.notes[:MOST_NOTES]:
        warning = note.level == "warning"
        labelled(console, "Warning" if warning else "Note", note.text, label_style="bold yellow" if warning else "bold")
    if len(summary.notes) > MOST_NOTES:
        labelled(console, "Note", f"{len(summary.notes) - MOST_NOTES} more notes are in the run's facts")
    if summary.damage:
        labelled(console, "Warning", f"the trace is damaged: {summary.damage}", label_style="bold yellow")
    if summary.overhead.dropped_rows:
        by_table = ", ".join(f"{count:,} of {name}" for name, count in summary.dropped.items() if count)
        labelled(console, "Warning", f"rows were dropped: {by_table}", label_style="bold yellow")
    labelled(console, "Overhead", _overhead(summary))
    if summary.replayable is not None:
        labelled(console, "Replay", summary.replayable)
    console.print(f"{'Run'.ljust(LABEL_WIDTH)}{display_path(run_dir)}", soft_wrap=True)


def _overhead(summary: RunSummary) -> str:
    cost = summary.overhead
    if cost.ratio is None:
        return "not measured"
    known = cost.sampled_steps is not None and cost.total_steps is not None
    later = cost.ratio_after_start
    return (
        percent(cost.ratio)
        + (
            f" ({percent(later)} after the first 20 updates{_compared(cost)}{_exceeded(summary)})"
            if later is not None
            else ""
        )
        + (f", {cost.sampled_steps:,} of {cost.total_steps:,} steps measured in full" if known else "")
    )


def _exceeded(summary: RunSummary) -> str:
    """Of a training with short steps: following each at all takes more than was allowed. With every step measured none
    is left to hold it against, and what torch does to call us is not seen."""
    budget, later = parse_budget(summary.run.budget), summary.overhead.ratio_after_start
    if later is not None and budget.ratio == math.inf:
        return " and more: by our own clock alone"
    if later is None or budget.off or later <= NOTABLY * budget.ratio:
        return ""
    return f"; the {budget} allowed was not kept"


def _compared(cost: Overhead) -> str:
    """What the steps themselves say, beside our own clock."""
    if cost.measured is None:
        return ""
    ratio, low, high = cost.measured
    return f"; {percent(ratio)} by {cost.pairs} full steps against those beside them, {percent(low)} to {percent(high)}"


def display_path(path: Path) -> str:
    """As one would type it: relative where that is shorter; what was fetched, by the place it came from."""
    there = came_from(path)
    if there is not None:
        return there
    try:
        relative = os.path.relpath(path)
    except (ValueError, OSError):  # another drive, or the working directory is gone
        return str(path)
    return relative if len(relative) < len(str(path)) and not relative.startswith("../..") else str(path)
