"""One metric of every layer at every step, kept in memory so that a heatmap asked for again is not read again.

Built once and extended as the run grows. A run too large for it is answered from the files.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from neuraldbg.records import Kind
from neuraldbg.surfaces.web.data import Metric
from neuraldbg.trace import Trace
from neuraldbg.trace.heatmap import Heatmap
from neuraldbg.trace.tables import KIND_CODE

MOST_CELLS = 10_000_000  # 50 MB
AT_ONCE = 256  # steps read at a time
UNSETTLED = 64  # newest steps that are read again: other ranks may still be writing them


class Grid:
    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._rows: dict[int, int] = {}  # site -> row
        self._values: NDArray[np.float32] = np.full((0, 0), np.nan, np.float32)
        self._nan: NDArray[np.bool_] = np.zeros((0, 0), bool)
        self._measured: NDArray[np.bool_] = np.zeros(0, bool)  # steps
        self._until = 0  # steps before it are read for good
        self._end = 0
        self._axis = ""

    @property
    def cells(self) -> int:
        return self._values.size

    def update(self, trace: Trace) -> bool:
        """Reads what is new. False where the run does not fit."""
        newest = trace.last_step_in("stats")
        axis = trace.run.steps_kind
        if axis != self._axis or newest is None or newest + 1 < self._end:  # counted otherwise: begin again
            self.__init__(self._metric)  # type: ignore[misc]
            self._axis = axis
        if newest is None or (newest + 1) * max(len(self._rows), 1) > MOST_CELLS:
            return False
        self._values[:, self._until :] = np.nan
        self._nan[:, self._until :] = False
        self._measured[self._until :] = False
        for first in range(self._until, newest + 1, AT_ONCE):
            if not self._read(trace, first, min(first + AT_ONCE - 1, newest), newest):
                return False
        self._end = newest + 1
        self._until = self._end if trace.ended else max(0, self._end - UNSETTLED)
        return True

    def _read(self, trace: Trace, first: int, last: int, newest: int) -> bool:
        field = self._metric.field
        rows = trace.table("stats", ["step", "site", "kind", "nan_count", field], (first, last))
        mine = np.flatnonzero(rows["kind"] == KIND_CODE[self._metric.kind])
        sites, steps = rows["site"][mine], rows["step"][mine]
        for site in np.unique(sites).tolist():
            self._rows.setdefault(site, len(self._rows))
        if (newest + 1) * len(self._rows) > MOST_CELLS:
            return False
        self._grow(len(self._rows), newest + 1)
        if not len(mine):
            return True
        known = np.array(sorted(self._rows))
        row = np.array([self._rows[site] for site in known.tolist()])[np.searchsorted(known, sites)]
        value = rows[field][mine].astype(np.float32)
        np.fmax.at(self._values, (row, steps), value)
        bad = np.isnan(value) | (rows["nan_count"][mine] > 0)
        self._nan[row[bad], steps[bad]] = True
        self._measured[steps] = True
        return True

    def _grow(self, rows: int, columns: int) -> None:
        have_rows, have_columns = self._values.shape
        if rows <= have_rows and columns <= have_columns:
            return
        shape = (
            max(rows, have_rows),
            columns if columns <= have_columns else min(columns * 5 // 4 + 1, columns + 4096),
        )
        values, nan = np.full(shape, np.nan, np.float32), np.zeros(shape, bool)
        values[:have_rows, :have_columns], nan[:have_rows, :have_columns] = self._values, self._nan
        measured = np.zeros(shape[1], bool)
        measured[:have_columns] = self._measured
        self._values, self._nan, self._measured = values, nan, measured

    def heatmap(self, trace: Trace, _: str, between: tuple[int | None, int | None], width: int) -> Heatmap:
        """As `Trace.heatmap` answers."""
        first, last = between[0] or 0, self._end - 1 if between[1] is None else min(between[1], self._end - 1)
        steps = np.flatnonzero(self._measured[first : last + 1]) + first
        if not len(steps):
            return Heatmap(np.empty((0, 0)), np.empty((0, 0), bool), [], [], np.empty(0, np.int64))
        low, high = int(steps[0]), int(steps[-1])
        columns = min(width, high - low + 1)
        edges = np.array([low + i * (high - low + 1) // columns for i in range(columns + 1)], np.int64)
        values, nan = self._values[:, low : high + 1], self._nan[:, low : high + 1]
        if columns < high - low + 1:
            starts = edges[:-1] - low
            values = np.fmax.reduceat(values, starts, axis=1)
            nan = np.logical_or.reduceat(nan, starts, axis=1) if nan.any() else np.zeros(values.shape, bool)
        present: NDArray[np.bool_] = np.any(~np.isnan(values) | nan, axis=1)
        ids = sorted(site for site, row in self._rows.items() if present[row])
        order = [self._rows[site] for site in ids]
        by_id = {site.id: site for site in trace.sites}
        shown = [by_id[site] for site in ids if site in by_id]
        names = [trace.canonical(site) for site in ids]
        return Heatmap(values[order].astype(np.float64), nan[order], shown, names, edges)


class Grids:
    """The grids of one run; the ones longest not asked for go first."""

    def __init__(self) -> None:
        self._grids: OrderedDict[Metric, Grid] = OrderedDict()

    def of(self, trace: Trace, metric: Metric) -> Grid | None:
        """None where the files have to be asked."""
        if metric.kind is Kind.SPAN:
            return None
        grid = self._grids.pop(metric, None) or Grid(metric)
        if not grid.update(trace):
            return None
        self._grids[metric] = grid
        while sum(each.cells for each in self._grids.values()) > MOST_CELLS and len(self._grids) > 1:
            self._grids.popitem(last=False)
        return grid
