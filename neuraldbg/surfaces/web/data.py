"""What the routes ask of a trace, as plain values. The one place where a view over the trace can be exchanged."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis import profile
from neuraldbg.analysis.ranks import folder_of
from neuraldbg.errors import NotRecorded, UnknownName
from neuraldbg.records import Kind, Phase, Site, SiteKind
from neuraldbg.trace import Rows, Trace, rollup
from neuraldbg.trace.heatmap import Heatmap
from neuraldbg.trace.histograms import Histograms
from neuraldbg.trace.histograms import histograms as rows_of
from neuraldbg.trace.rolling import FIELDS
from neuraldbg.trace.rollup import METRICS, Metric
from neuraldbg.trace.tables import LOWEST_OCTAVE, PHASE_CODE

Span = tuple[int | None, int | None]
TOP, MINUS_INF, PLUS_INF, NOT_MEASURED, NAN = 250, 252, 253, 254, 255  # cells of the heatmap: the scale has 0 to TOP
HOLD = 2  # times the gap before it is how long a value stands for the steps after it
LOG_FROM = 1e3  # a range that spans more is shown by powers of ten
MANY, STRAY = 1e12, 0.02  # of a range this wide, so few of the smallest values do not take the colours from the others
LOOK_BACK = 1000  # steps
HISTOGRAMS = 120  # rows of an answer
KINDS: Final = ("activation", "gradient", "parameter", "update", "input", "target")
_OF_THE_HOST: Final = ("cpu", "memory")


def metric_of(name: str) -> Metric:
    """A name of the table, or `kind.field` as the trace has it: `gradient.std`."""
    kind, _, field = name.partition(".")
    if name in METRICS or (kind in KINDS and field in FIELDS["stats"]):
        return rollup.metric_of(name)
    raise UnknownName("metric", name, METRICS, listed_by="/api/run")


# -- one layer or one series over time ---------------------------------------------------------------------------------


def series(trace: Trace, metric: str, layer: str | None, between: Span, points: int) -> dict[str, Any]:
    """The smallest and the largest value of every stretch of steps, at most `points` of them: nan where a NaN was among
    them. `measured`: how many of the `of` steps have a value; None where they are too many to be points of their own.
    """
    if layer is not None:
        metric_of(metric)
    elif metric not in series_names(trace):
        raise UnknownName("series", metric, series_names(trace), listed_by="/api/run")
    found = rollup.series(trace, metric, layer, between, points)
    rows = int((found.count + found.nan).sum())
    single = rows <= points or bool((np.diff(found.edges) == 1).all())
    first, last = _steps_of(trace, between)
    return {
        "metric": metric,
        "layer": layer,
        "steps": found.steps.tolist(),
        "min": _told(found.low, found.bad & np.isnan(found.low)),
        "max": _told(found.high, found.bad),
        "nan_steps": found.steps[found.bad].tolist(),
        "rows": rows,
        "measured": len(found.steps) if single else None,
        "of": last - first + 1,
    }


def _steps_of(trace: Trace, between: Span) -> tuple[int, int]:
    """The steps that are meant, of those that the run has."""
    first, last = between
    newest = trace.last_step or 0
    return first or 0, newest if last is None else min(last, newest)


def histograms(trace: Trace, layer: str, kind: str, between: Span, most: int = HISTOGRAMS) -> dict[str, Any]:
    """Magnitudes of a layer's values by powers of two, at most so many rows: the newest, and evenly those before."""
    found = rows_of(trace, layer, Kind(kind), between)
    every = -(-len(found.steps) // most)
    shown = [at for at in range(len(found.steps)) if (len(found.steps) - 1 - at) % every == 0]
    return {"tensor": found.tensor, "recorded": len(found.steps), "histograms": [_histogram(found, at) for at in shown]}


def _histogram(found: Histograms, at: int) -> dict[str, Any]:
    """Without the empty ends: `counts[i]` of the values have 2^(from + i) <= |x| < 2^(from + i + 1)."""
    filled = np.flatnonzero(found.octaves[at])
    first, last = (int(filled[0]), int(filled[-1])) if len(filled) else (0, -1)
    return {
        "step": int(found.steps[at]),
        "values": int(found.count[at]),
        "looked_at": int(found.looked_at[at]),
        "zero": int(found.zero_count[at]),
        "not_finite": int(found.bad_count[at]),
        "from": LOWEST_OCTAVE + first,
        "counts": found.octaves[at, first : last + 1].tolist(),
    }


def series_names(trace: Trace) -> list[str]:
    return sorted({site.path for site in trace.sites if site.kind is SiteKind.SERIES})


def _told(values: NDArray[np.float64], bad: NDArray[np.bool_]) -> list[float | None]:
    """As they are; what is NaN for no reason is not known."""
    return [math.nan if nan else value for value, nan in zip(_or_none(values), bad.tolist(), strict=True)]


def _or_none(values: NDArray[np.float64]) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


# -- all layers over time ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Picture:
    """A heatmap as one byte a cell. Where steps between two measured ones would have columns of their own, the value
    before them stands for them, as long as `held` says."""

    cells: NDArray[np.uint8]
    low: float | None
    high: float | None
    log: bool
    layers: list[str]
    edges: list[int]
    sources: list[int] | None = None  # where some cells repeat those before them: the step that each column is of

    @property
    def held(self) -> bool:
        return self.sources is not None


def heatmap(trace: Trace, metric: str, between: Span, width: int, rank: int | None = None) -> Heatmap:
    """From the first to the last step of the run that are meant, measured or not; of all ranks, or of one. Of a run
    that is over and was never rolled up, that is done now: it takes as long as one look at all its rows."""
    wanted, folder = metric_of(metric), None if rank is None else folder_of(trace, rank)
    if trace.ended:
        trace.rollups.update()
    return rollup.spanning(trace, wanted, width, _steps_of(trace, between), rank=folder)


def drawn(
    trace: Trace, metric: str, between: Span, width: int, *, log: bool | None = None, rank: int | None = None
) -> dict[str, Any]:
    """A heatmap as the page draws it. `measured`: of how many of the `of` steps there is something, where the value of
    one stands for others, and of which steps the columns are then."""
    broken = _broken_at(trace, between, width)
    shown = picture(heatmap(trace, metric, between, width, rank), log=log, broken=broken)
    first, last = _steps_of(trace, between)
    return {
        "metric": metric,
        "layers": shown.layers,
        "edges": shown.edges,
        "cells": base64.b64encode(shown.cells.tobytes()).decode(),
        "min": shown.low,
        "max": shown.high,
        "log": shown.log,
        "measured": measured_steps(trace, metric, (first, last)) if shown.held else None,
        "of": last - first + 1,
        "sources": shown.sources,
    }


def _broken_at(trace: Trace, between: Span, width: int) -> int | None:
    """From where on the loss is no number any more; of many steps, where the stretch of it begins."""
    if "loss" not in series_names(trace):
        return None
    found = rollup.series(trace, "loss", None, between, width)
    bad = found.bad | np.isinf(found.low) | np.isinf(found.high)
    return int(found.steps[bad.argmax()]) if bad.any() else None


def measured_steps(trace: Trace, metric: str, between: Span) -> int:
    table = "spans" if metric_of(metric).kind is Kind.SPAN else "stats"
    return len(np.unique(trace.table(table, ["step"], between)["step"]))


def picture(found: Heatmap, *, log: bool | None = None, broken: int | None = None) -> Picture:
    """`log`: whether the colours go by powers of ten; None where their range says so. `broken`: a step that no value
    from before it stands for."""
    values = found.values
    measured = np.isfinite(values)
    cells = np.full(values.shape, NOT_MEASURED, np.uint8)
    low, high, log = _scale(values[measured], log)
    if low is not None and high is not None:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            shares = np.clip(_shares(values, low, high, log=log) * np.float32(TOP), 0, TOP)
            cells = np.where(measured, shares, NOT_MEASURED).astype(np.uint8)
    cells[found.inf < 0] = MINUS_INF
    cells[found.inf > 0] = PLUS_INF
    cells[found.nan] = NAN
    end = len(found.edges) if broken is None else max(0, int(np.searchsorted(found.edges, broken, "right")) - 1)
    shown, held = _held(cells, end)
    sources = _sources(cells != NOT_MEASURED, found.edges) if held else None
    return Picture(shown, low, high, log, found.layers, found.edges.tolist(), sources)


def _scale(seen: NDArray[np.float64], wanted: bool | None) -> tuple[float | None, float | None, bool]:
    """The smallest and the largest value that have a colour, and whether those go by powers of ten: as wanted where
    they can, else where the values span many of them."""
    if not seen.size:
        return None, None, False
    low, high = float(seen.min()), float(seen.max())
    positive = seen[seen > 0]
    spread = bool(positive.size) and high > LOG_FROM * float(positive.min())
    log = low >= 0 and bool(positive.size) and (spread if wanted is None else wanted)
    if log:
        low = float(positive.min())
        if high > MANY * low:
            low = float(np.quantile(positive, STRAY))
    return low, high, log


def _shares(values: NDArray[np.float64], low: float, high: float, *, log: bool) -> NDArray[Any]:
    if log:  # for so few colours single precision is enough, and halves what a picture takes
        share: NDArray[Any] = np.log((np.maximum(values, low) / low).astype(np.float32))
        return share / np.float32(np.log(high / low)) if high > low else np.zeros(values.shape)
    return (values - low) / (high - low) if high > low else np.zeros(values.shape)


def _held(cells: NDArray[np.uint8], end: int) -> tuple[NDArray[np.uint8], bool]:
    """A value stands until the next one, but no longer than HOLD times the gap before it: sampling is not measuring.
    None from before the column `end` stands for that one or a later one."""
    measured = cells != NOT_MEASURED
    if not cells.size or measured.all() or not measured.any():
        return cells, False
    column = np.arange(cells.shape[1], dtype=np.int32)
    last = np.maximum.accumulate(np.where(measured, column, np.int32(-1)), axis=1)  # the measured one here or before
    before = np.concatenate([np.full((len(cells), 1), -1, np.int32), last[:, :-1]], axis=1)
    gap = np.where(measured & (before >= 0), column - before, 0)
    source = np.maximum(last, 0)
    stands = ~measured & (last >= 0) & (column - last < HOLD * np.take_along_axis(gap, source, axis=1))
    stands &= (column < end) | (last >= end)
    return np.where(stands, np.take_along_axis(cells, source, axis=1), cells), bool(stands.any())


def _sources(measured: NDArray[np.bool_], edges: NDArray[np.int64]) -> list[int]:
    """For each column the last step of the newest one up to it that has a value of its own."""
    own = np.where(measured.any(axis=0), np.arange(measured.shape[1]), 0)
    found: list[int] = (edges[np.maximum.accumulate(own) + 1] - 1).tolist()
    return found


# -- the newest numbers of all layers, for the stream ------------------------------------------------------------------

FRAME_METRICS: Final = ("grad_norm", "mean_activation", "dead_ratio", "execution_time", "nan_count", "grad_nan_count")


def frame_layers(trace: Trace) -> list[Site]:
    return [site for site in trace.sites if site.kind is SiteKind.MODULE]


def frame(
    trace: Trace, sites: list[Site], step: int, names: Sequence[str] = FRAME_METRICS
) -> dict[str, NDArray[np.float32]]:
    """A number for every layer and metric; nan where this step has none."""
    place = {site.id: at for at, site in enumerate(sites)}
    found = {name: np.full(len(sites), np.nan, np.float32) for name in names}
    for kind in {METRICS[name].kind for name in names}:
        rows = trace.at(step, kind)
        places = np.array([place.get(site, -1) for site in rows.site.tolist()], np.intp)
        keep = places >= 0
        if kind is Kind.SPAN:
            keep &= rows.phase == PHASE_CODE[Phase.FORWARD]
        for name in (name for name in names if METRICS[name].kind is kind):
            found[name][places[keep]] = single(_values(rows, METRICS[name])[keep])  # of several rows the last counts
    return found


def single(values: NDArray[Any]) -> NDArray[np.float32]:
    """In single precision, where a number that is too large for it is no infinity."""
    largest = np.finfo(np.float32).max
    return np.where(np.isfinite(values), np.clip(values, -largest, largest), values).astype(np.float32)


def _values(rows: Rows, metric: Metric) -> NDArray[Any]:
    if metric.field == "zero_ratio":
        share: NDArray[Any] = rows.zero_count / np.maximum(rows["count"], 1)
        return share
    return rows[metric.field] * metric.factor


def frame_at(trace: Trace, step: int | None) -> dict[str, Any]:
    """Every metric of every layer at the last measured step up to `step`; None where that has no number."""
    found = _frame_at(trace, step)
    return {
        **found,
        "metrics": {name: _or_none(column.astype(np.float64)) for name, column in found["metrics"].items()},
        "scalars": {} if found["step"] is None else latest_scalars(trace, found["step"] if step is None else step),
    }


def moment(trace: Trace, step: int | None, *, spans: bool) -> dict[str, Any]:
    """The same with the numbers as the stream has them, and the series as they were at `step` itself; `spans`: and when
    every layer ran in the last timed step."""
    found = _frame_at(trace, step)
    timed = found["timed_step"]
    shown = profile.flame(trace, timed) if spans and timed is not None else []
    last = trace.last_step
    whole = step if step is not None or last is None or trace.ended else max(last - 1, 0)
    scalars = {} if last is None else latest_scalars(trace, last if whole is None else whole)
    return {**found, "metrics": encoded(found["metrics"]), "scalars": scalars, "spans": shown}


def encoded(columns: Mapping[str, NDArray[np.float32]]) -> dict[str, str]:
    return {name: base64.b64encode(column.tobytes()).decode() for name, column in columns.items()}


def _frame_at(trace: Trace, step: int | None) -> dict[str, Any]:
    sites = frame_layers(trace)
    measured = settled_step(trace) if step is None else _last_before(trace, "stats", step)
    timed = trace.last_step_in("spans") if step is None else _last_before(trace, "spans", step)
    names = [name for name in METRICS if METRICS[name].kind in (Kind.ACTIVATION, Kind.GRADIENT, Kind.SPAN)]
    found = {} if measured is None else frame(trace, sites, measured, names)
    return {
        "step": measured,
        "timed_step": timed,
        "layers": [trace.canonical(site) for site in sites],
        "flops": [site.flops for site in sites],
        "metrics": found,
    }


def _last_before(trace: Trace, table: str, step: int) -> int | None:
    """The last step up to `step` that a table has rows of: looked for nearby first."""
    for since in (step, max(0, step - LOOK_BACK), 0):
        steps = trace.table(table, ["step"], between=(since, step))["step"]
        if len(steps):
            return int(steps.max())
    return None


def latest_scalars(trace: Trace, step: int) -> dict[str, float]:
    rows = trace.at(step, Kind.SCALAR)
    return dict(zip(rows.layers, rows.value.tolist(), strict=True))


def settled_step(trace: Trace) -> int | None:
    """The newest measured step that is recorded whole: while a run goes on, not the one being recorded."""
    newest = trace.last_step_in("stats")
    if newest is None or trace.ended or newest != trace.last_step:
        return newest
    before = trace.table("stats", ["step"], between=(newest - LOOK_BACK, newest - 1))["step"]
    return int(before.max()) if len(before) else None


# -- time and resources ------------------------------------------------------------------------------------------------


def timed_step(trace: Trace, step: int | None) -> int | None:
    """The step meant, the newest timed one without it; NotRecorded where a step has no times."""
    newest = trace.last_step_in("spans")
    if step is not None and not len(trace.table("spans", ["step"], (step, step))["step"]):
        raise NotRecorded(f"no layer was timed at step {step}; the newest timed step is {newest}")
    return newest if step is None else step


def resources(trace: Trace, between: Span, points: int) -> dict[str, Any]:
    """As `profile.resources`: every curve in at most `points` stretches, the smallest and the largest value of each."""
    found = profile.resources(trace, between)
    devices = {
        name: {each: _thinned(curve, points) for each, curve in curves.items()} for name, curves in found["gpu"].items()
    }
    host = {group: {each: _thinned(curve, points) for each, curve in found[group].items()} for group in _OF_THE_HOST}
    return {**host, "gpu": devices}


def _thinned(curve: dict[str, Any], points: int) -> dict[str, Any]:
    values = np.array(curve["values"], np.float64)
    starts = np.arange(min(points, len(values))) * len(values) // max(1, min(points, len(values)))
    return {
        "steps": [curve["steps"][at] for at in starts],
        "time_s": [curve["time_s"][at] for at in starts],
        "min": _or_none(np.fmin.reduceat(values, starts)),
        "max": _or_none(np.fmax.reduceat(values, starts)),
    }
