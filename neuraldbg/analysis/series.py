"""Curves made short without hiding what a person looks for: peaks, dips, ends, the first value that is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.ranks import main_rank
from neuraldbg.analysis.shards import whole_grad_norm
from neuraldbg.records import SiteKind

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

Step = TypeVar("Step", bound=np.generic)
Point = tuple[int, float]
MAX_POINTS = 2_000
SERIES_NAMES = ("loss", "lr", "grad_norm", "step_time_s")


def downsample(
    steps: NDArray[Step], values: NDArray[np.float64], *, limit: int = MAX_POINTS
) -> tuple[NDArray[Step], NDArray[np.float64]]:
    """At most `limit` points, in order: both ends, and the lowest, highest and first non-finite of each stretch."""
    count = len(values)
    if count <= limit:
        return steps, values
    stretches = max(1, (limit - 2) // 3)
    edges = np.linspace(0, count, stretches + 1).astype(np.int64)
    keep = {0, count - 1}
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        keep.update(start + index for index in _telling(values[start:stop]))
    chosen = np.fromiter(sorted(keep), dtype=np.int64)[:limit]
    if limit > 1:
        chosen[-1] = count - 1
    return steps[chosen], values[chosen]


def _telling(stretch: NDArray[np.float64]) -> list[int]:
    finite = np.isfinite(stretch)
    found: list[int] = []
    if finite.any():
        found.append(int(np.where(finite, stretch, np.inf).argmin()))
        found.append(int(np.where(finite, stretch, -np.inf).argmax()))
    if not finite.all():
        found.append(int((~finite).argmax()))
    return found


def buckets(values: NDArray[np.float64], width: int) -> list[float]:
    """`width` means over equal stretches for a small drawing; NaN where a stretch holds a value that is not finite."""
    if len(values) <= width:
        return [float(value) if np.isfinite(value) else float("nan") for value in values]
    edges = np.linspace(0, len(values), width + 1).astype(np.int64)
    drawn: list[float] = []
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        stretch = values[start:stop]
        drawn.append(float(stretch.mean()) if np.isfinite(stretch).all() else float("nan"))
    return drawn


def scalar_series(trace: Trace) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Every named scalar of the run as (steps, values), all points, by step.

    Of several processes the main one speaks; where it is silent, as when only spawned workers train, all of them do.
    The gradient norm of parameters that are cut over ranks is that of all parts.
    """
    names = {site.id: site.path for site in trace.sites if site.kind is SiteKind.SERIES}
    table = trace.table("scalars", columns=("step", "site", "value", "rank", "wall_ns"))
    of_main = table["rank"] == main_rank(trace)
    found: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
    for site_id in np.unique(table["site"]).tolist():
        name = names.get(site_id)
        if name is not None:
            mine = table["site"] == site_id
            rows = np.flatnonzero(mine & of_main if (mine & of_main).any() else mine)
            rows = rows[np.lexsort((table["wall_ns"][rows], table["step"][rows]))]
            found[name] = (table["step"][rows], table["value"][rows])
    whole = whole_grad_norm(trace)
    return found if whole is None else {**found, "grad_norm": whole}


def points(
    series: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64]]], name: str, *, limit: int = MAX_POINTS
) -> tuple[Point, ...]:
    """One named series, downsampled, as plain pairs; empty when the run has none."""
    if name not in series:
        return ()
    steps, values = downsample(*series[name], limit=limit)
    return tuple(zip(steps.tolist(), values.tolist(), strict=True))
