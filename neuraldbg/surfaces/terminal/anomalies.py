"""What was unusual in a run: a line in the report of one that is not healthy, a list where that was asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neuraldbg.surfaces.terminal.diagnosis import labelled
from neuraldbg.surfaces.terminal.figures import figure

if TYPE_CHECKING:
    from rich.console import Console

    from neuraldbg.analysis.anomalies import Anomaly
    from neuraldbg.analysis.summary import RunSummary

MOST_LISTED = 10
MOST_METRICS = 3


def render_anomalies(summary: RunSummary, console: Console) -> None:
    """Of a healthy run only where they were asked for: a few samples are unusual in any run, and mean nothing there."""
    report = summary.anomalies
    listed = "anomalies" in summary.focus
    if report is None or not (listed or (report.total and summary.verdict.state != "healthy")):
        return
    unseen = f"; {report.unseen_steps:,} steps were left out" if report.unseen_steps else ""
    told = f"{report.total:,} of {report.samples:,} samples are unlike those before them{unseen}"
    shown = report.strongest(MOST_LISTED if listed else 1)
    if not listed:
        labelled(console, "Anomalies", f"{told}; the strongest: {anomaly_text(shown[0])}", style="dim")
        return
    labelled(console, "Anomalies", told)
    for one in shown:
        labelled(console, "", anomaly_text(one))
    if report.total > len(shown) > 0:
        labelled(console, "", f"{report.total - len(shown):,} more: neural report --json", style="dim")


def anomaly_text(one: Anomaly) -> str:
    """`step 100, fc2: grad_norm 42.1 (z 57.3)`"""
    place = f"step {one.step:,}" + (f", {one.layer}" if one.layer else "") + (f", rank {one.rank}" if one.rank else "")
    metrics = [_metric(one, name) for name in one.metrics[:MOST_METRICS]]
    return f"{place}: {', '.join(metrics) or 'as ' + ' and '.join(one.methods) + ' sees it'}"


def _metric(one: Anomaly, name: str) -> str:
    value = one.values.get(name)
    if value is None or not math.isfinite(value):
        return f"{name} {'-' if value is None else figure(value)}"
    score = one.scores.get(name)
    return f"{name} {figure(value)}" + (f" (z {figure(score)})" if score is not None else "")
