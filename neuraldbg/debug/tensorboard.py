"""Plots for TensorBoard: curves as scalars, distributions as histograms, tables as images."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from neuraldbg.debug.visualizer_plots import Curves, Distribution, Heat, Plot, Ridges
from neuraldbg.debug.visualizer_svg import colours, png
from neuraldbg.debug.visualizer_values import Counted
from neuraldbg.surfaces.reports import event_file
from neuraldbg.surfaces.reports.session import write_atomic


def write_plots(plots: Sequence[Plot], folder: Path) -> Path:
    """An event file of its own name in `folder`; two exports of one second are two files."""
    now = time.time()
    path = folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}.neuraldbg"
    write_atomic(path, event_file.records(_events(plots, now)))
    return path


def _events(plots: Sequence[Plot], now: float) -> Iterator[bytes]:
    yield event_file.first_event(now)
    for plot in plots:
        for step, value in _values(plot):
            yield event_file.event(step, now, value)


def _values(plot: Plot) -> Iterator[tuple[int, bytes]]:
    if isinstance(plot, Curves):
        for line in plot.lines:
            tag = plot.name if len(plot.lines) == 1 else f"{plot.name}/{line.label}"
            for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
                if x == x and abs(x) < 2**62:
                    yield int(x), event_file.scalar(tag, y)
    elif isinstance(plot, Distribution):
        yield from ((0, value) for value in _histogram(plot.name, plot.counted))
    elif isinstance(plot, Ridges):
        for label, counted in plot.ridges:
            yield from ((0, value) for value in _histogram(f"{plot.name}/{label}", counted))
    elif isinstance(plot, Heat) and plot.cells.size:
        pixels = colours(plot.cells)
        yield 0, event_file.picture(plot.name, png(pixels), (pixels.shape[1], pixels.shape[0]))


def _histogram(tag: str, counted: Counted) -> Iterator[bytes]:
    if counted.finite:
        yield event_file.histogram(tag, counted.edges.tolist(), counted.counts.tolist())
