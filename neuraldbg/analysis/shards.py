"""Parameters that are cut over ranks, put together again: sums are added, norms are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.ranks import Process, processes
from neuraldbg.records import Kind, SiteKind
from neuraldbg.trace.tables import KIND_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

Curve = tuple[NDArray[np.int64], NDArray[np.float64]]
_SUMS = ("count", "zero_count", "nan_count", "inf_count")


def sharded_sites(trace: Trace) -> dict[int, dict[str, Any]]:
    """What is known of each sharded parameter, by its site."""
    told = (one for fact in trace.facts("shards") for one in fact.get("parameters") or ())
    return {int(one["site"]): one for one in told}


def whole_grad_norm(trace: Trace) -> Curve | None:
    """The norm of all gradients over all ranks, at the steps that every rank has told of. None where nothing is
    sharded, or only some of it: what every rank holds alike would be counted once for each."""
    group, cut = processes(trace), sharded_sites(trace)
    parameters = {site.id for site in trace.sites if site.kind is SiteKind.PARAMETER}
    site = next((s.id for s in trace.sites if s.kind is SiteKind.SERIES and s.path == "grad_norm"), None)
    if not cut or site is None or not parameters <= set(cut) or len(group) < 2 or not _all_here(group):
        return None
    table = trace.table("scalars", ("step", "value", "rank"), site=site)
    folders = [one.folder for one in group.values()]
    mine = np.isin(table["rank"], folders)
    steps, at, counts = np.unique(table["step"][mine], return_inverse=True, return_counts=True)
    squares = np.zeros(len(steps))
    np.add.at(squares, at, np.square(table["value"][mine]))
    known = counts == len(folders)
    return steps[known].astype(np.int64), np.sqrt(squares[known])


def whole_statistics(trace: Trace, site: int, kind: Kind) -> dict[str, NDArray[Any]]:
    """Of one sharded parameter, at the steps that every rank has measured: counts, mean, l2, smallest and largest."""
    group = processes(trace)
    table = trace.table("stats", ("step", "kind", "rank", "mean", "min", "max", "l2", *_SUMS), site=site)
    chosen = (table["kind"] == KIND_CODE[kind]) & np.isin(table["rank"], [one.folder for one in group.values()])
    steps, at, ranks = np.unique(table["step"][chosen], return_inverse=True, return_counts=True)
    columns = {name: column[chosen] for name, column in table.items()}
    told: dict[str, NDArray[Any]] = {}
    finite = columns["count"] - columns["nan_count"] - columns["inf_count"]
    for name in _SUMS:
        told[name] = _added(columns[name], at, len(steps))
    told["l2"] = np.sqrt(_added(np.square(np.nan_to_num(columns["l2"])), at, len(steps)))
    with np.errstate(invalid="ignore", divide="ignore"):
        total = _added(np.nan_to_num(columns["mean"]) * finite, at, len(steps))
        told["mean"] = total / _added(finite, at, len(steps))
    told["min"], told["max"] = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.fmin.at(told["min"], at, columns["min"])
    np.fmax.at(told["max"], at, columns["max"])
    known = ranks == len(group)
    return {"step": steps[known], **{name: column[known] for name, column in told.items()}}


def _added(values: NDArray[Any], at: NDArray[np.intp], size: int) -> NDArray[Any]:
    total = np.zeros(size, values.dtype if values.dtype.kind in "if" else np.float64)
    np.add.at(total, at, values)
    return total


def _all_here(group: dict[int, Process]) -> bool:
    """A rank that is missing has a part of every sum."""
    return len(group) == max(one.world_size for one in group.values())
