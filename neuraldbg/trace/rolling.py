"""The arithmetic of roll-ups: rows of a table, or cells of a finer level, made one cell per site, kind and window.

A cell holds, of every field, the lowest and highest value, the mean, how many values there were and how many were NaN.
It may be one of several for its window: cells of different rows are merged by the same arithmetic, so that a roll-up
made piece by piece equals one made at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.trace.format import Layout
from neuraldbg.trace.selection import RATIOS
from neuraldbg.trace.tables import TABLE_CODE

LEVELS: Final = (64, 1_024, 16_384)  # steps of a window
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "stats": ("mean", "std", "min", "max", "l2", "nan_count", "inf_count", "zero_ratio", "nan_ratio", "inf_ratio"),
    "spans": ("duration_ns", "host_bytes", "device_bytes"),
    "scalars": ("value",),
}
SORT: Final = {"stats": "kind", "spans": "phase"}  # the column that `kind` of a cell repeats
_PARTS: Final = (("low", "<f8"), ("high", "<f8"), ("mean", "<f8"), ("count", "<i4"), ("nan", "<i4"))
_KINDS: Final = 16  # more than there are
_UNKNOWN_BELOW_0: Final = FIELDS["spans"]

Columns = Mapping[str, NDArray[Any]]


def dtype_of(table: str) -> np.dtype[np.void]:
    parts = [(f"{field}.{part}", kind) for field in FIELDS[table] for part, kind in _PARTS]
    return np.dtype([("step", "<i8"), ("site", "<i4"), ("kind", "u1"), *parts])


CELLS: Final = {table: dtype_of(table) for table in FIELDS}


def code_of(table: str, level: int) -> int:
    """The number of a table of cells in a file."""
    return TABLE_CODE[table] + 16 * LEVELS.index(level)


def layout_of(table: str, level: int) -> Layout:
    cells = CELLS[table]
    return Layout(f"{table}/{level}", tuple((name, cells[name]) for name in cells.names or ()))


def schema() -> dict[str, Any]:
    """What stands in the header of a file of roll-ups, in place of the trace's own tables."""
    layouts = {code_of(table, level): layout_of(table, level) for table in FIELDS for level in LEVELS}
    tables = {
        layout.table: {"code": code, "columns": [[name, dtype.str] for name, dtype in layout.columns]}
        for code, layout in layouts.items()
    }
    return {"format": "neuraldbg.rollup", "tables": tables}


def field_values(column: Callable[[str], NDArray[Any]], field: str) -> NDArray[np.float64]:
    """A field of raw rows as numbers; -1, the unknown of sizes, is NaN."""
    if field in RATIOS:
        count = column("count")
        share = np.full(len(count), np.nan)
        np.divide(column(RATIOS[field]), count, out=share, where=count > 0)
        return share
    values = column(field).astype(np.float64)
    if field in _UNKNOWN_BELOW_0:
        values[values < 0] = np.nan
    return values


def rolled(table: str, column: Callable[[str], NDArray[Any]], steps: NDArray[np.int64]) -> NDArray[np.void]:
    """Cells of the finest level, of raw rows."""
    site = column("site")
    kind = column(SORT[table]) if table in SORT else np.zeros(len(site), np.uint8)
    order, starts = _groups(steps // LEVELS[0], site, kind)
    cells = _keyed(table, LEVELS[0], (steps, site, kind), order[starts])
    sizes = np.diff(np.r_[starts, len(order)])
    for field in FIELDS[table]:
        values = field_values(column, field)[order]
        bad = np.isnan(values)
        nan = np.add.reduceat(bad, starts, dtype=np.int32) if bad.any() else np.zeros(len(starts), np.int32)
        cells[f"{field}.low"] = np.fmin.reduceat(values, starts)
        cells[f"{field}.high"] = np.fmax.reduceat(values, starts)
        cells[f"{field}.nan"] = nan
        cells[f"{field}.count"] = sizes - nan
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            total = np.add.reduceat(np.where(bad, 0.0, values), starts)
            cells[f"{field}.mean"] = total / (sizes - nan)
    return cells


def coarser(table: str, cells: Columns, level: int) -> NDArray[np.void]:
    """Cells of `level` out of finer ones."""
    order, starts = _groups(cells["step"] // level, cells["site"], cells["kind"])
    merged = _keyed(table, level, (cells["step"], cells["site"], cells["kind"]), order[starts])
    for field in FIELDS[table]:
        count = cells[f"{field}.count"][order]
        total = np.add.reduceat(count, starts)
        merged[f"{field}.low"] = np.fmin.reduceat(cells[f"{field}.low"][order], starts)
        merged[f"{field}.high"] = np.fmax.reduceat(cells[f"{field}.high"][order], starts)
        merged[f"{field}.nan"] = np.add.reduceat(cells[f"{field}.nan"][order], starts)
        merged[f"{field}.count"] = total
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            weighted = np.where(count > 0, cells[f"{field}.mean"][order] * count, 0.0)
            merged[f"{field}.mean"] = np.add.reduceat(weighted, starts) / total
    return merged


def _groups(
    window: NDArray[np.int64], site: NDArray[Any], kind: NDArray[Any]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows ordered by window, kind and site, and where in that order each group begins."""
    low = int(site.min())
    span = int(site.max()) - low + 1
    key = ((window - int(window.min())) * _KINDS + kind) * span + (site - low)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    return order, np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])


def _keyed(
    table: str, level: int, keys: tuple[NDArray[Any], NDArray[Any], NDArray[Any]], first: NDArray[np.intp]
) -> NDArray[np.void]:
    steps, site, kind = keys
    cells = np.zeros(len(first), CELLS[table])
    cells["step"] = steps[first] // level * level
    cells["site"] = site[first]
    cells["kind"] = kind[first]
    return cells
