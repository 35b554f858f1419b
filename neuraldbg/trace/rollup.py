"""Curves and heatmaps of long runs, out of roll-ups where the rows themselves would take too long to look at.

`trace.rollups.update()` (the viewer, while a run goes on) writes them; `series` and `heatmap` answer with or without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import UnknownName
from neuraldbg.records import Kind, Phase, SiteKind
from neuraldbg.trace.heatmap import Heatmap, graver, nothing
from neuraldbg.trace.pieces import TABLE_OF, Piece, Pieces, Question
from neuraldbg.trace.rolling import FIELDS
from neuraldbg.trace.selection import Span
from neuraldbg.trace.tables import PHASE_CODE

if TYPE_CHECKING:
    from neuraldbg.trace.query import Trace


class Metric(NamedTuple):
    kind: Kind
    field: str
    factor: float = 1.0  # gives the metric's unit

    @property
    def phases(self) -> tuple[int, ...]:
        """Codes of the phases it is of; none: all."""
        return (PHASE_CODE[Phase.FORWARD],) if self.kind is Kind.SPAN else ()


METRICS: Final[dict[str, Metric]] = {  # the names of trace entries; times and sizes are those of the forward pass
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


@dataclass(frozen=True, slots=True)
class PerSite:
    low: float
    high: float
    mean: float
    count: int


@dataclass(frozen=True, slots=True)
class Series:
    """A number over the steps in at most as many points as were asked for. NaN where a point has no value."""

    edges: NDArray[np.int64]  # point p stands for the steps edges[p] <= step < edges[p + 1]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean: NDArray[np.float64]
    count: NDArray[np.int64]  # values that are numbers
    nan: NDArray[np.int64]  # values that are NaN
    bad: NDArray[np.bool_]  # a NaN was among the values or in one of their tensors

    @property
    def steps(self) -> NDArray[np.int64]:
        return self.edges[:-1]


def series(
    trace: Trace, metric: str, layer: str | None = None, between: Span | None = None, points: int = 1000
) -> Series:
    """A series of the run ("loss", "lr") or, with a layer, one of its metrics ("grad_norm", "gradient.max").

    Points in which nothing was recorded are left out; where there is room, every recorded step is a point of its own.
    """
    if layer is None:
        chosen = Metric(Kind.SCALAR, "value")
        sites = [_series_site(trace, metric)]
    else:
        chosen = metric_of(metric)
        sites = trace.site_ids(layer, chosen.kind)
    phases = (PHASE_CODE[Phase.FORWARD],) if metric in METRICS and chosen.kind is Kind.SPAN else ()
    asked = Question(chosen.kind, chosen.field, tuple(sites), trace.narrowed(between), points, phases)
    try:
        found = _as_series(trace.rollups.pieces(asked), chosen.factor)
        rows = int((found.count + found.nan).sum())
        if 0 < rows <= points and (np.diff(found.edges) > 1).any():
            exact = trace.rollups.each_step(asked)
            each = found if exact is None else _as_series(exact, chosen.factor)
            if int((each.count + each.nan).sum()) == rows:  # else some are left only in roll-ups
                return each
        return found
    finally:
        trace.release()


def heatmap(
    trace: Trace,
    field: str,
    kind: Kind | str,
    width: int = 1000,
    between: Span | None = None,
    phases: Sequence[Phase] = (),
) -> Heatmap:
    """`field` of every layer over the steps, the largest value of each cell; NaN and infinities apart from it. Of
    spans, those of some phases only.

    Has fewer columns than `width` where more could only be had by looking at too many rows; `edges` tells.
    """
    chosen = Kind(kind)
    _check_field(chosen, field)
    try:
        codes = tuple(PHASE_CODE[phase] for phase in phases)
        asked = Question(chosen, field, None, trace.narrowed(between), width, codes)
        return _as_heatmap(trace, trace.rollups.pieces(asked))
    finally:
        trace.release()


def spanning(trace: Trace, metric: Metric, width: int, between: tuple[int, int], *, rank: int | None = None) -> Heatmap:
    """A heatmap of a metric with columns for all these steps, also before its first row and after its last; of all
    processes, or of the one with this folder."""
    try:
        asked = Question(
            metric.kind, metric.field, None, trace.narrowed(between), width, metric.phases, whole=True, rank=rank
        )
        return _as_heatmap(trace, trace.rollups.pieces(asked), metric.factor)
    finally:
        trace.release()


def curves(trace: Trace, metric: Metric, width: int) -> Heatmap:
    """The same with the smallest values too, and where there is room with a column for every recorded step alone."""
    asked = Question(metric.kind, metric.field, None, trace.narrowed(None), width, metric.phases)
    try:
        found = trace.rollups.each_step(asked) or trace.rollups.pieces(asked)
        return _as_heatmap(trace, found, metric.factor, lows=True)
    finally:
        trace.release()


def per_site(
    trace: Trace, kind: Kind, field: str, phases: Sequence[Phase] = (), between: Span | None = None
) -> dict[int, PerSite]:
    """A field of every site over all the steps; of spans, those of some phases only."""
    codes = tuple(PHASE_CODE[phase] for phase in phases)
    found = trace.rollups.pieces(Question(kind, field, None, trace.narrowed(between), 1, codes))
    sites = np.unique(np.concatenate([np.empty(0, np.int64), *(np.unique(piece.sites) for piece in found.all)]))
    rows = [replace(piece, at=np.searchsorted(sites, piece.sites)) for piece in found.all]
    told = _summed(rows, len(sites))
    trace.release()
    columns = [column.tolist() for column in (told.low, told.high, told.mean, told.count)]
    return {int(site): PerSite(*values) for site, *values in zip(sites.tolist(), *columns, strict=True)}


def metric_of(metric: str) -> Metric:
    """What a metric of a layer, or `kind.field`, is in a trace."""
    if metric in METRICS:
        return METRICS[metric]
    kind, _, field = metric.partition(".")
    if kind in {each.value for each in Kind} and field:
        chosen = Kind(kind)
        _check_field(chosen, field)
        return Metric(chosen, field)
    raise UnknownName("metric", metric, METRICS, listed_by="neuraldbg.trace.rollup.METRICS")


def _check_field(kind: Kind, field: str) -> None:
    known = FIELDS[TABLE_OF.get(kind, "stats")]
    if field not in known:
        raise UnknownName("field", field, known, listed_by="neuraldbg.trace.rolling.FIELDS")


def _series_site(trace: Trace, name: str) -> int:
    named = {site.path: site.id for site in trace.sites if site.kind is SiteKind.SERIES}
    if name not in named:
        raise UnknownName("series", name, named, listed_by="trace.sites")
    return named[name]


def _as_series(found: Pieces, factor: float) -> Series:
    told = _summed(found.all, max(0, len(found.edges) - 1), factor)
    some = np.flatnonzero(told.count + told.nan)
    edges = np.r_[found.edges[some], found.edges[some[-1] + 1]] if len(some) else found.edges[:0]
    bounds = (told.low[some], told.high[some], told.mean[some])
    return Series(edges, *bounds, told.count[some], told.nan[some], told.bad[some])


def _summed(pieces: Sequence[Piece], size: int, factor: float = 1.0) -> Series:
    """Everything that falls into each of `size` places. The edges are the caller's business."""
    low, high = np.full(size, np.nan), np.full(size, np.nan)
    total, count, nan = np.zeros(size), np.zeros(size, np.int64), np.zeros(size, np.int64)
    bad = np.zeros(size, bool)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for piece in pieces:
            np.fmin.at(low, piece.at, piece.part("low") * factor)
            np.fmax.at(high, piece.at, piece.part("high") * factor)
            here = piece.part("count").astype(np.int64)
            count += np.bincount(piece.at, here, minlength=size).astype(np.int64)
            nan += np.bincount(piece.at, piece.part("nan"), minlength=size).astype(np.int64)
            weighted = np.where(here > 0, piece.part("mean") * here, 0.0) * factor
            total += np.bincount(piece.at, weighted, minlength=size)
            bad[piece.at[piece.bad()]] = True
        mean = np.where(count > 0, total / count, np.nan)
    return Series(np.empty(0, np.int64), low, high, mean, count, nan, bad)


def _as_heatmap(trace: Trace, found: Pieces, factor: float = 1.0, *, lows: bool = False) -> Heatmap:
    if not found.all:
        return nothing()
    shown = np.unique(np.concatenate([np.unique(piece.sites) for piece in found.all])).astype(np.int64)
    columns = len(found.edges) - 1
    size = len(shown) * columns
    values, nan, inf = np.full(size, np.nan), np.zeros(size, bool), np.zeros(size, np.int8)
    low = values.copy() if lows else None
    for piece in found.all:
        cell = np.searchsorted(shown, piece.sites) * columns + piece.at
        np.fmax.at(values, cell, piece.part("high") * factor)
        if low is not None:
            np.fmin.at(low, cell, piece.part("low") * factor)
        nan[cell[piece.bad()]] = True
        graver(inf, cell, piece.inf())
    shape, numbers = (len(shown), columns), shown.tolist()
    sites = [trace.site_of(number) for number in numbers]
    names = [trace.canonical(number) for number in numbers]
    told = (values.reshape(shape), nan.reshape(shape), inf.reshape(shape))
    return Heatmap(*told, sites, names, found.edges, None if low is None else low.reshape(shape))
