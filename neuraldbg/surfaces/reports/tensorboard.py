"""A run for TensorBoard: its series, norms and means of its layers, magnitudes over time, what was found."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.ranks import main_rank
from neuraldbg.analysis.series import downsample
from neuraldbg.records import Kind, SiteKind
from neuraldbg.surfaces.reports import event_file
from neuraldbg.trace.histograms import histograms
from neuraldbg.trace.tables import KIND_CODE, LOWEST_OCTAVE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

MOST_POINTS: Final = 20_000  # of a series
MOST_OF_LAYERS: Final = 1_000  # points of a curve of a layer; as many as TensorBoard shows
MOST_HISTOGRAMS: Final = 50  # of a layer and kind
CURVES: Final = (
    (Kind.ACTIVATION, "mean", "activation_mean"),
    (Kind.ACTIVATION, "std", "activation_std"),
    (Kind.GRADIENT, "l2", "gradient_norm"),
    (Kind.PARAMETER, "l2", "weight_norm"),
    (Kind.UPDATE, "l2", "update_norm"),
)
COUNTED: Final = (Kind.ACTIVATION, Kind.GRADIENT, Kind.PARAMETER)
Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]  # steps, wall_ns, values


def event_parts(trace: Trace) -> Iterator[bytes]:
    """The event file, piece by piece. Long curves are thinned: ends, peaks, dips and what is not finite stay."""
    return event_file.records(_events(trace))


def _events(trace: Trace) -> Iterator[bytes]:
    began = _began(trace)
    yield event_file.first_event(began)
    found = list(_said(trace, began))
    for tag, (steps, wall_ns, values) in _curves(trace):
        seconds = np.where(wall_ns > 0, wall_ns / 1e9, began)
        found += [
            (step, event_file.event(step, wall_s, event_file.scalar(tag, value)))
            for step, wall_s, value in zip(steps.tolist(), seconds.tolist(), values.tolist(), strict=True)
        ]
    found += _magnitudes(trace, began)
    found.sort(key=lambda one: one[0])
    yield from (message for _, message in found)


def _began(trace: Trace) -> float:
    try:
        return datetime.fromisoformat(str(trace.run.started)).timestamp()
    except ValueError:
        return 0.0


def _said(trace: Trace, began: float) -> Iterator[tuple[int, bytes]]:
    for one in trace.findings():
        step, layer = one.get("step") or 0, one.get("layer")
        where = f" (layer `{layer}`)" if layer else ""
        text = f"**{one.get('severity')}**: {one.get('summary')}{where}"
        yield step, event_file.event(step, began, event_file.text(f"findings/{one.get('kind')}", text))


def _curves(trace: Trace) -> Iterator[tuple[str, Columns]]:
    main = main_rank(trace)
    for site in trace.sites:
        if site.kind is SiteKind.SERIES:
            table = trace.table("scalars", ("step", "seq", "value", "wall_ns", "rank"), site=site)
            yield from _thinned(site.path, table, "value", main, MOST_POINTS)
    table = trace.table("stats", ("step", "seq", "site", "kind", "wall_ns", "rank", "mean", "std", "l2"))
    order = np.argsort(table["site"], kind="stable")
    table = {name: column[order] for name, column in table.items()}
    edges = np.flatnonzero(np.diff(table["site"])) + 1
    for start, stop in pairwise([0, *edges.tolist(), len(order)] if len(order) else []):
        mine = {name: column[start:stop] for name, column in table.items()}
        name = trace.canonical(int(mine["site"][0]))
        for kind, field, tag in CURVES:
            chosen = mine["kind"] == KIND_CODE[kind]
            part = {each: column[chosen] for each, column in mine.items()}
            yield from _thinned(f"{tag}/{name}", part, field, main, MOST_OF_LAYERS)


def _thinned(
    tag: str, table: dict[str, NDArray[np.generic]], field: str, main: int | None, most: int
) -> Iterator[tuple[str, Columns]]:
    """One value a step, of the main process where it has any; the last where a step has several."""
    of_main = table["rank"] == main
    rows = np.flatnonzero(of_main) if of_main.any() else np.arange(len(of_main))
    if not len(rows):
        return
    rows = rows[np.lexsort((table["seq"][rows], table["step"][rows]))]
    steps = table["step"][rows]
    rows = rows[np.r_[steps[1:] != steps[:-1], True]]
    places, values = downsample(np.arange(len(rows)), table[field][rows].astype(np.float64), limit=most)
    kept = rows[places]
    yield tag, (table["step"][kept].astype(np.int64), table["wall_ns"][kept].astype(np.int64), values)


def _magnitudes(trace: Trace, began: float) -> list[tuple[int, bytes]]:
    """Of every layer the powers of two of its values that are neither zero nor bad."""
    found = []
    layers = [trace.canonical(site) for site in trace.sites if site.kind is SiteKind.MODULE]
    for layer in layers if len(trace.table("histograms", ("step",))["step"]) else ():
        for kind in COUNTED:
            counted = histograms(trace, layer, kind)
            every = max(1, -(-len(counted.steps) // MOST_HISTOGRAMS))
            for at in range((len(counted.steps) - 1) % every, len(counted.steps), every):
                octaves = counted.octaves[at]
                filled = np.flatnonzero(octaves)
                if not len(filled):
                    continue
                first, last = int(filled[0]), int(filled[-1])
                edges = [float(LOWEST_OCTAVE + octave) for octave in range(first, last + 2)]
                value = event_file.histogram(f"log2_{kind.value}/{layer}", edges, octaves[first : last + 1].tolist())
                step = int(counted.steps[at])
                found.append((step, event_file.event(step, began, value)))
    return found
