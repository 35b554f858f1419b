"""What the routes ask of a trace, as plain values. The one place where a view over the trace can be exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis import profile
from neuraldbg.errors import NotRecorded, UnknownName
from neuraldbg.records import Kind, Phase, Site, SiteKind
from neuraldbg.trace import Trace
from neuraldbg.trace.heatmap import Heatmap
from neuraldbg.trace.tables import KIND_CODE, PHASE_CODE, TABLES

Span = tuple[int | None, int | None]
NOT_MEASURED, NAN = 254, 255  # cells of the heatmap; the scale has 0 to 253
LOG_FROM = 1e3  # a range that spans more is shown by powers of ten
LOOK_BACK = 1000  # steps
_OWNED: Final = (Kind.PARAMETER, Kind.UPDATE)  # of a module: those of its parameters
_OF_THE_HOST: Final = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class Metric:
    kind: Kind
    field: str
    scale: float = 1.0


METRICS: Final[dict[str, Metric]] = {
    "grad_norm": Metric(Kind.GRADIENT, "l2"),
    **{f"grad_{name}": Metric(Kind.GRADIENT, name) for name in ("mean", "std", "min", "max", "nan_count", "inf_count")},
    **{f"{name}_activation": Metric(Kind.ACTIVATION, name) for name in ("mean", "std", "min", "max")},
    "norm_activation": Metric(Kind.ACTIVATION, "l2"),
    "dead_ratio": Metric(Kind.ACTIVATION, "zero_ratio"),
    "zero_ratio": Metric(Kind.ACTIVATION, "zero_ratio"),
    "nan_count": Metric(Kind.ACTIVATION, "nan_count"),
    "inf_count": Metric(Kind.ACTIVATION, "inf_count"),
    "weight_norm": Metric(Kind.PARAMETER, "l2"),
    "update_norm": Metric(Kind.UPDATE, "l2"),
    "execution_time": Metric(Kind.SPAN, "duration_ns", 1e-9),  # seconds
    "memory": Metric(Kind.SPAN, "host_bytes", 1e-6),  # MB
}


def metric_of(name: str) -> Metric:
    """A name of the table, or `kind.field` as the trace has it: `gradient.std`."""
    if name in METRICS:
        return METRICS[name]
    kind, _, field = name.partition(".")
    fields = (*(TABLES["stats"].names or ()), "zero_ratio", "nan_ratio", "inf_ratio")
    if field in fields and kind in ("activation", "gradient", "parameter", "update", "input", "target"):
        return Metric(Kind(kind), field)
    raise UnknownName("metric", name, METRICS, listed_by="/api/run")


# -- one layer or one series over time ---------------------------------------------------------------------------------


def series(trace: Trace, metric: str, layer: str | None, between: Span, points: int) -> dict[str, Any]:
    """The smallest and the largest value of every stretch of steps, at most `points` of them."""
    if layer is None:
        site = next((s for s in trace.sites if s.kind is SiteKind.SERIES and s.path == metric), None)
        if site is None:
            raise UnknownName("series", metric, series_names(trace), listed_by="/api/run")
        rows = trace.history(site, Kind.SCALAR, between=between)
        steps, values, bad = rows.steps, rows.value, np.isnan(rows.value)
    else:
        steps, values, bad = of_layer(trace, metric_of(metric), layer, between)
    return {"metric": metric, "layer": layer, **stretches(steps, values, bad, points)}


def series_names(trace: Trace) -> list[str]:
    return sorted({site.path for site in trace.sites if site.kind is SiteKind.SERIES})


def of_layer(
    trace: Trace, metric: Metric, layer: str | Site, between: Span
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    if metric.kind is Kind.SPAN:
        rows = trace.history(layer, metric.kind, ("phase", metric.field), between)
        keep = rows.phase == PHASE_CODE[Phase.FORWARD]
        keep &= rows[metric.field] >= 0  # -1: not known
        steps, values = rows.steps[keep], rows[metric.field][keep] * metric.scale
        return steps, values, np.zeros(len(values), bool)
    raw = metric.field.replace("_ratio", "_count")
    is_ratio = metric.field.endswith("_ratio")
    rows = _stats(trace, metric.kind, layer, ("nan_count", raw, *(("count",) if is_ratio else ())), between)
    values = rows[raw].astype(np.float64)
    if is_ratio:
        values = np.divide(values, rows["count"], out=np.full(len(values), np.nan), where=rows["count"] > 0)
    return rows["step"], values, rows["nan_count"] > 0


def _stats(trace: Trace, kind: Kind, layer: str | Site, fields: tuple[str, ...], between: Span) -> Any:
    """Columns of one layer's rows. Every column costs a look into every chunk: no more of them than are asked for."""
    site = trace.site(layer) if isinstance(layer, str) else layer
    alone = site.kind is SiteKind.PARAMETER or (site.kind is SiteKind.MODULE and site.path and kind not in _OWNED)
    if not alone:
        return trace.history(site, kind, fields, between)
    rows = trace.table("stats", ["step", "kind", *fields], between, site)
    mine = rows["kind"] == KIND_CODE[kind]
    return {name: column[mine] for name, column in rows.items()}


def stretches(
    steps: NDArray[np.int64], values: NDArray[np.float64], bad: NDArray[np.bool_], points: int
) -> dict[str, Any]:
    if not len(steps):
        return {"steps": [], "min": [], "max": [], "nan_steps": [], "rows": 0}
    order = np.argsort(steps, kind="stable")
    steps, values, bad = steps[order], values[order], bad[order]
    low, span = int(steps[0]), int(steps[-1]) - int(steps[0]) + 1
    column = (steps - low) * min(points, span) // span
    starts = np.flatnonzero(np.r_[True, column[1:] != column[:-1]])
    return {
        "steps": steps[starts].tolist(),
        "min": _or_none(np.fmin.reduceat(values, starts)),
        "max": _or_none(np.fmax.reduceat(values, starts)),
        "nan_steps": steps[starts][np.logical_or.reduceat(bad, starts)].tolist(),
        "rows": len(steps),
    }


def _or_none(values: NDArray[np.float64]) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


# -- all layers over time ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Picture:
    """A heatmap as one byte a cell."""

    cells: NDArray[np.uint8]
    low: float | None
    high: float | None
    log: bool
    layers: list[str]
    edges: list[int]


def heatmap(trace: Trace, metric: str, between: Span, width: int) -> Heatmap:
    wanted = metric_of(metric)
    if wanted.kind is not Kind.SPAN:
        return trace.heatmap(wanted.field, wanted.kind, width=width, between=between)
    return _forward_spans(trace, wanted, between, width)


def _forward_spans(trace: Trace, metric: Metric, between: Span, width: int) -> Heatmap:
    """Spans of backward are no executions of a layer, and -1 is no size."""
    rows = trace.table("spans", ["step", "site", "phase", metric.field], between)
    mine = (rows["phase"] == PHASE_CODE[Phase.FORWARD]) & (rows[metric.field] >= 0)
    steps, sites, found = rows["step"][mine], rows["site"][mine], rows[metric.field][mine] * metric.scale
    if not len(steps):
        return Heatmap(np.empty((0, 0)), np.empty((0, 0), bool), [], [], np.empty(0, np.int64))
    low, high = int(steps.min()), int(steps.max())
    columns = min(width, high - low + 1)
    edges = np.array([low + i * (high - low + 1) // columns for i in range(columns + 1)], np.int64)
    shown, row = np.unique(sites, return_inverse=True)
    values = np.full((len(shown), columns), np.nan)
    np.fmax.at(values, (row, np.searchsorted(edges, steps, side="right") - 1), found)
    by_id = {site.id: site for site in trace.sites}
    ids = shown.tolist()
    names = [trace.canonical(each) for each in ids]
    return Heatmap(values, np.zeros(values.shape, bool), [by_id[each] for each in ids if each in by_id], names, edges)


def picture(found: Heatmap) -> Picture:
    values = found.values
    measured = np.isfinite(values)
    seen = values[measured]
    if not seen.size:
        cells = np.full(values.shape, NOT_MEASURED, np.uint8)
        cells[found.nan] = NAN
        return Picture(cells, None, None, False, found.layers, found.edges.tolist())
    low, high = float(seen.min()), float(seen.max())
    positive = seen[seen > 0]
    log = bool(low >= 0 and positive.size and high > LOG_FROM * float(positive.min()))
    if log:
        low = float(positive.min())
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.log(np.maximum(values, low) / low) / np.log(high / low)
    else:
        share = (values - low) / (high - low) if high > low else np.zeros(values.shape)
    with np.errstate(invalid="ignore"):
        cells = np.clip(np.nan_to_num(share * 253.0), 0, 253).astype(np.uint8)
    cells[values == np.inf] = 253
    cells[~measured & (values != np.inf)] = NOT_MEASURED
    cells[found.nan] = NAN
    return Picture(cells, low, high, log, found.layers, found.edges.tolist())


# -- the newest numbers of all layers, for the stream ------------------------------------------------------------------

FRAME_METRICS: Final = ("grad_norm", "mean_activation", "dead_ratio", "execution_time")


def frame_layers(trace: Trace) -> list[Site]:
    return [site for site in trace.sites if site.kind is SiteKind.MODULE]


def frame(trace: Trace, sites: list[Site], step: int) -> dict[str, NDArray[np.float32]]:
    """A number for every layer and metric; nan where this step has none."""
    place = {site.id: at for at, site in enumerate(sites)}
    found = {name: np.full(len(sites), np.nan, np.float32) for name in FRAME_METRICS}
    for name in FRAME_METRICS:
        metric = METRICS[name]
        rows = trace.at(step, metric.kind)
        keep = rows.phase == PHASE_CODE[Phase.FORWARD] if metric.kind is Kind.SPAN else np.ones(len(rows), bool)
        if metric.field == "zero_ratio":
            values = rows.zero_count / np.maximum(rows["count"], 1)
        else:
            values = rows[metric.field] * metric.scale
        for site, value in zip(rows.site[keep].tolist(), values[keep].tolist(), strict=True):
            if site in place:
                found[name][place[site]] = value
    return found


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
