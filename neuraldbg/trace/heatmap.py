"""A field of every layer over the steps, pooled to as many columns as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.records import Site
from neuraldbg.trace.selection import Hit, Selection

_LOOKUP_LIMIT: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Layers x columns of steps, max-pooled. A cell nobody measured is nan in `values` and False in `nan`."""

    values: NDArray[np.float64]
    nan: NDArray[np.bool_]  # a NaN was among the cell's values or in one of its tensors
    inf: NDArray[np.int8]  # 1: +Inf was among the values, or an infinity in one of the tensors; -1: -Inf was
    sites: list[Site]  # of the rows
    layers: list[str]
    edges: NDArray[np.int64]  # column c holds the steps edges[c] <= step < edges[c + 1]
    low: NDArray[np.float64] | None = None  # the smallest values, where they were asked for


COUNTED: Final = ("nan_count", "inf_count", "nan_ratio", "inf_ratio")  # these tell themselves what is in a tensor


def nothing() -> Heatmap:
    return Heatmap(np.empty((0, 0)), np.empty((0, 0), bool), np.empty((0, 0), np.int8), [], [], np.empty(0, np.int64))


def infinities(high: NDArray[np.float64], low: NDArray[np.float64], among: NDArray[np.bool_]) -> NDArray[np.int8]:
    """As `Heatmap.inf` has them; `among`: whether infinities were counted in the tensors, whose signs nobody knows."""
    found: NDArray[np.int8] = np.where((high == np.inf) | among, 1, np.where(low == -np.inf, -1, 0)).astype(np.int8)
    return found


def graver(place: NDArray[np.int8], at: NDArray[np.intp], found: NDArray[np.int8]) -> None:
    """Puts infinities where they belong; +Inf is told before -Inf."""
    place[at[found < 0]] = np.where(place[at[found < 0]] > 0, 1, -1)
    place[at[found > 0]] = 1


def pooled(selection: Selection, hits: Sequence[Hit], field: str, width: int) -> Heatmap:
    selection.gather([], [field])  # an unknown field is an error also where nothing was recorded
    if not hits:
        return nothing()
    steps = [selection.steps(hit) for hit in hits]
    sites = [selection.values(hit, "site") for hit in hits]
    low, high = min(int(s.min()) for s in steps), max(int(s.max()) for s in steps)
    columns = max(1, min(width, high - low + 1))
    edges = np.array([low + i * (high - low + 1) // columns for i in range(columns + 1)], np.int64)
    shown = _distinct(sites)
    row_of, column_of = _Places(shown), _Places(edges)
    values = np.full(len(shown) * columns, -np.inf)
    filled, nan, inf = np.zeros(values.shape, bool), np.zeros(values.shape, bool), np.zeros(values.shape, np.int8)
    for hit, step, site in zip(hits, steps, sites, strict=True):
        cell = row_of.of(site) * columns + column_of.of(step)
        value = selection.values(hit, field).astype(np.float64, copy=False)
        bad = np.isnan(value)
        np.fmax.at(values, cell, value)
        filled[cell[~bad] if bad.any() else cell] = True
        among = np.zeros(len(value), bool)
        if selection.table == "stats" and field not in COUNTED:
            bad |= hit.chunk.column("nan_count")[hit.rows] > 0
            among = hit.chunk.column("inf_count")[hit.rows] > 0
        nan[cell[bad]] = True
        graver(inf, cell, infinities(value, value, among))
    values[~filled] = np.nan
    shape, numbers, ranks = (len(shown), columns), shown.tolist(), selection.ranks
    names = [ranks.name(number) for number in numbers]
    told = (values.reshape(shape), nan.reshape(shape), inf.reshape(shape))
    return Heatmap(*told, [ranks.site(n) for n in numbers], names, edges)


def _distinct(parts: Sequence[NDArray[np.integer[Any]]]) -> NDArray[np.int64]:
    """The numbers that occur, in order."""
    low, high = min(int(part.min()) for part in parts), max(int(part.max()) for part in parts)
    if high - low > _LOOKUP_LIMIT:
        return np.unique(np.concatenate(parts)).astype(np.int64)
    seen = np.zeros(high - low + 1, bool)
    for part in parts:
        seen[part - low] = True
    return np.flatnonzero(seen).astype(np.int64) + low


class _Places:
    """Position of the last mark at or below a value; a table of answers is 20x faster than searching each."""

    def __init__(self, marks: NDArray[np.int64]) -> None:
        self._marks = marks
        self._low, high = int(marks[0]), int(marks[-1])
        self._table: NDArray[np.intp] | None = None
        if high - self._low <= _LOOKUP_LIMIT:
            self._table = np.searchsorted(marks, np.arange(self._low, high + 1), side="right") - 1

    def of(self, values: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
        if self._table is None:
            return np.searchsorted(self._marks, values, side="right") - 1
        places: NDArray[np.intp] = self._table[values - self._low]
        return places
