"""Two runs side by side: their losses over the same steps, how they ended, and the first layer in which they part."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.layers import KIND_OF
from neuraldbg.records import Kind, Phase, SiteKind
from neuraldbg.trace.tables import KIND_CODE, PHASE_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

Session = Mapping[str, Any]
TOLERANCE = 1e-6  # relative; smaller differences are rounding of the statistics themselves
_COMPARED_FIELDS = ("nan_count", "inf_count", "l2", "mean")
_COMPARED = (Kind.INPUT, Kind.ACTIVATION, Kind.GRADIENT, Kind.PARAMETER, Kind.UPDATE)
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class Side:
    """What one run contributes."""

    id: str
    steps: int
    duration_s: float | None
    exit_code: int | None
    state: str
    first_loss: float | None
    final_loss: float | None
    step_time_s: float | None  # median
    command: str = ""
    optimizers: str = ""  # classes and last learning rates


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two recorded runs no longer agree."""

    layer: str
    kind: str
    step: int
    field: str  # the statistic that differs: nan_count, inf_count, l2 or mean
    a: float | None  # its value in each run; None = not finite
    b: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    a: Side
    b: Side
    loss: tuple[tuple[int, float | None, float | None], ...]  # step, a, b; None where that run has no value there
    loss_differs_from: int | None  # first common step whose losses differ
    only_in_a: tuple[str, ...]  # layers
    only_in_b: tuple[str, ...]
    changed_params: tuple[tuple[str, int | None, int | None], ...]
    divergence: Divergence | None  # None: none found, or not both are run directories with statistics in them
    divergence_searched: bool


def compare_sessions(a: Session, b: Session, *, traces: tuple[Trace, Trace] | None = None) -> Comparison:
    """Compares two portable sessions; with the traces of both also finds the first diverging layer."""
    loss_a, loss_b = _series(a, "loss"), _series(b, "loss")
    layers_a, layers_b = _params(a), _params(b)
    return Comparison(
        a=_side(a, loss_a),
        b=_side(b, loss_b),
        loss=_overlay(loss_a, loss_b),
        loss_differs_from=_first_difference(loss_a, loss_b),
        only_in_a=tuple(path for path in layers_a if path not in layers_b),
        only_in_b=tuple(path for path in layers_b if path not in layers_a),
        changed_params=tuple(
            (path, layers_a[path], layers_b[path])
            for path in layers_a
            if path in layers_b and layers_a[path] != layers_b[path]
        ),
        divergence=first_divergence(*traces) if traces else None,
        divergence_searched=traces is not None and all(trace.last_step_in("stats") is not None for trace in traces),
    )


def _params(session: Session) -> dict[str, int | None]:
    return {layer["path"]: layer.get("params") for layer in session.get("layers", ())}


def _side(session: Session, loss: Sequence[tuple[int, float]]) -> Side:
    run = session["run"]
    times = [value for _, value in _series(session, "step_time_s") if math.isfinite(value)]
    return Side(
        id=run["id"],
        steps=run["steps"],
        duration_s=run.get("duration_s"),
        exit_code=run.get("exit_code"),
        state=session["verdict"]["state"],
        first_loss=loss[0][1] if loss else None,
        final_loss=loss[-1][1] if loss else None,
        step_time_s=float(np.median(times)) if times else None,
        command=shlex.join(run.get("command") or ()),
        optimizers=", ".join(_optimizer(one) for one in run.get("optimizers") or ()),
    )


def _optimizer(one: Mapping[str, Any]) -> str:
    lr = one.get("lr")
    return f"{one.get('class')}" + (f" lr {lr:.4g}" if isinstance(lr, int | float) else "")


def _series(session: Session, name: str) -> list[tuple[int, float]]:
    points = session.get("series", {}).get(name) or ()
    return [(int(step), _NOT_FINITE[value] if isinstance(value, str) else float(value)) for step, value in points]


def _overlay(
    a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]]
) -> tuple[tuple[int, float | None, float | None], ...]:
    """Both curves over the union of their steps; several values in one step keep the last."""
    of_a, of_b = dict(a), dict(b)
    return tuple((step, of_a.get(step), of_b.get(step)) for step in sorted(of_a.keys() | of_b.keys()))


def _first_difference(a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]]) -> int | None:
    of_a, of_b = dict(a), dict(b)
    for step in sorted(of_a.keys() & of_b.keys()):
        if not _agree(np.array([of_a[step]]), np.array([of_b[step]]))[0]:
            return step
    return None


def _agree(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.isclose(a, b, rtol=TOLERANCE, atol=0.0, equal_nan=True)


def first_divergence(a: Trace, b: Trace) -> Divergence | None:
    """The earliest statistic, in the order run A recorded them, that differs at a step both runs recorded."""
    sites_a, sites_b = _layer_sites(a), _layer_sites(b)
    shared = [path for path in sites_a if path in sites_b]
    table_a, table_b = a.table("stats"), b.table("stats")
    steps = 1 + max((int(table["step"].max()) for table in (table_a, table_b) if len(table["step"])), default=0)
    keys_a, rows_a = _training_rows(table_a, [sites_a[path] for path in shared], steps)
    keys_b, rows_b = _training_rows(table_b, [sites_b[path] for path in shared], steps)
    _, in_a, in_b = np.intersect1d(keys_a, keys_b, assume_unique=True, return_indices=True)
    rows_a, rows_b = rows_a[in_a], rows_b[in_b]
    differs = {name: ~_agree(table_a[name][rows_a], table_b[name][rows_b]) for name in _COMPARED_FIELDS}
    parted = np.flatnonzero(np.any(list(differs.values()), axis=0))
    if not len(parted):
        return None
    first = parted[np.lexsort((table_a["seq"][rows_a[parted]], table_a["step"][rows_a[parted]]))[0]]
    row_a, row_b = rows_a[first], rows_b[first]
    field = next(name for name in _COMPARED_FIELDS if differs[name][first])
    path_of = {site: path for path, site in sites_a.items()}
    return Divergence(
        layer=path_of[int(table_a["site"][row_a])],
        kind=KIND_OF[int(table_a["kind"][row_a])].value,
        step=int(table_a["step"][row_a]),
        field=field,
        a=_finite(table_a[field][row_a]),
        b=_finite(table_b[field][row_b]),
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _layer_sites(trace: Trace) -> dict[str, int]:
    kinds = (SiteKind.MODEL, SiteKind.MODULE, SiteKind.PARAMETER)
    return {trace.canonical(site): site.id for site in trace.sites if site.kind in kinds}


def _training_rows(
    stats: Mapping[str, NDArray[Any]], sites: Sequence[int], steps: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One sortable key per (layer, kind, slot, step) and the first training row it names."""
    place = np.full(1 + max([*sites, int(stats["site"].max(initial=0))], default=0), -1, dtype=np.int64)
    place[list(sites)] = np.arange(len(sites))
    layer = place[stats["site"]]
    wanted = np.isin(stats["kind"], [KIND_CODE[kind] for kind in _COMPARED])
    rows = np.flatnonzero(wanted & (stats["phase"] != PHASE_CODE[Phase.EVAL]) & (layer >= 0) & (stats["site"] >= 0))
    key = ((layer[rows] * 16 + stats["kind"][rows]) * 65_536 + stats["slot"][rows]) * steps + stats["step"][rows]
    keys, first = np.unique(key, return_index=True)
    return keys, rows[first]


def on_one_axis(
    loss: Sequence[tuple[int, float | None, float | None]], width: int
) -> tuple[list[float | None], list[float | None]]:
    """Both curves as `width` means over equal stretches of steps; None where a run has no value in one."""
    if not loss:
        return [], []
    first, last = loss[0][0], loss[-1][0]
    width = min(width, last - first + 1)
    cells: list[list[list[float]]] = [[[] for _ in range(width)] for _ in range(2)]
    for step, *values in loss:
        at = (step - first) * width // (last - first + 1)
        for cell, value in zip(cells, values, strict=True):
            if value is not None:
                cell[at].append(value)
    curves = [[sum(cell) / len(cell) if cell else None for cell in side] for side in cells]
    return curves[0], curves[1]
