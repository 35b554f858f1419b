"""Picks rows out of chunks: which of them a query wants, and the columns of those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import UnknownName
from neuraldbg.trace.merge import STRIDE, MergedRanks
from neuraldbg.trace.reader import Chunk
from neuraldbg.trace.tables import TABLES

Span = tuple[int | None, int | None]  # first and last step, both included; None = open

RATIOS: Final = {"zero_ratio": "zero_count", "nan_ratio": "nan_count", "inf_ratio": "inf_count"}  # shares of `count`
RELEASE_ROWS: Final = 400_000  # rows of all columns are 50 MB


@dataclass(frozen=True, slots=True)
class Hit:
    """Rows of one chunk that a query wants."""

    rank: int
    chunk: Chunk
    rows: NDArray[np.intp] | slice


def narrowed(window: Span, span: Span | None) -> Span:
    """The steps in both."""
    if span is None:
        return window
    lows = [low for low in (window[0], span[0]) if low is not None]
    highs = [high for high in (window[1], span[1]) if high is not None]
    return (max(lows) if lows else None, min(highs) if highs else None)


class Selection:
    """The rows of one table of a run in a window of steps, of some sites and of one kind."""

    def __init__(self, ranks: MergedRanks, table: str, window: Span = (None, None)) -> None:
        if table not in TABLES:
            raise UnknownName("table", table, TABLES, listed_by="neuraldbg.trace.tables.TABLES")
        self.ranks = ranks
        self.table = table
        self.window = window

    def hits(
        self,
        *,
        sites: Sequence[int] | None = None,
        kind: int | None = None,
        skip: Callable[[int, Chunk], bool] = lambda _, __: False,
    ) -> Iterator[Hit]:
        """Chunk by chunk; the `site` column is scanned first, the others only where it matched. `skip` is asked, with
        the rank, which chunks are not wanted."""
        by_update, looked_at = self.ranks.steps_kind == "update", 0
        for rank, view in self.ranks.views.items():
            local = None if sites is None else [i for i in map(view.local_of, sites) if i is not None]
            if local == []:
                continue
            for chunk in view.reader.chunks[self.table]:
                if (by_update and not self._may_hold(chunk)) or skip(rank, chunk):
                    continue
                rows = _rows_of(chunk, local, kind)
                rows = self._in_window(rank, chunk, rows, certain=by_update)
                if isinstance(rows, slice) or len(rows):
                    yield Hit(rank, chunk, rows)
                looked_at += 0 if isinstance(rows, slice) else chunk.rows
                if looked_at > RELEASE_ROWS:
                    looked_at = 0
                    view.reader.release()

    def after(self, seen: dict[tuple[int, str], int]) -> Iterator[Hit]:
        """Rows that were recorded after those of `seen`."""
        for rank, view in self.ranks.views.items():
            known = seen.get((rank, self.table), 0)
            for chunk in view.reader.chunks[self.table]:
                if chunk.end_row > known:
                    yield Hit(rank, chunk, slice(max(0, known - chunk.first_row), None))

    def gather(self, hits: Sequence[Hit], columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """The wanted columns of all hits, one after the other."""
        names = [*(TABLES[self.table].names or ()), "rank"] if columns is None else list(dict.fromkeys(columns))
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
        looked_at = 0
        for hit in hits:
            for name in names:
                parts[name].append(self.values(hit, name))
            looked_at += hit.chunk.rows
            if looked_at > RELEASE_ROWS and not isinstance(hit.rows, slice):  # what was wanted is copied
                looked_at = 0
                self.ranks.views[hit.rank].reader.release()
        return {name: np.concatenate(p) if p else np.empty(0, self._dtype(name)) for name, p in parts.items()}

    def values(self, hit: Hit, name: str) -> NDArray[Any]:
        """One column of a hit, as the run numbers it."""
        chunk, rows = hit.chunk, hit.rows
        if name == "step":
            return self.steps(hit)
        if name == "site":
            return self.ranks.views[hit.rank].to_global(chunk.column("site")[rows])
        if name == "rank":
            return np.full(len(chunk.column("seq")[rows]), hit.rank, np.int32)
        if name == "source" and self.table == "calls":
            source = chunk.column("source")[rows]
            return np.where(source < 0, source, source + STRIDE * hit.rank).astype(np.int32)
        if name in RATIOS and self.table == "stats":
            count = chunk.column("count")[rows]
            share = np.full(len(count), np.nan)
            np.divide(chunk.column(RATIOS[name])[rows], count, out=share, where=count > 0)
            return share
        self._dtype(name)
        column: NDArray[Any] = chunk.column(name)[rows]
        return column

    def steps(self, hit: Hit) -> NDArray[np.int64]:
        steps: NDArray[np.int64] = self.ranks.step_column(hit.rank, hit.chunk)[hit.rows]
        return steps

    def _dtype(self, name: str) -> np.dtype[Any]:
        table = TABLES[self.table]
        known = [*(table.names or ()), "rank", *(RATIOS if self.table == "stats" else ())]
        if name not in known:
            raise UnknownName("field", name, known, listed_by=f"neuraldbg.trace.tables.TABLES[{self.table!r}]")
        return table[name] if name in (table.names or ()) else np.dtype(np.int32 if name == "rank" else np.float64)

    def _may_hold(self, chunk: Chunk) -> bool:
        low, high = self.window
        return (low is None or chunk.step_max >= low) and (high is None or chunk.step_min <= high)

    def _in_window(
        self, rank: int, chunk: Chunk, rows: NDArray[np.intp] | slice, *, certain: bool
    ) -> NDArray[np.intp] | slice:
        low, high = self.window
        if low is None and high is None:
            return rows
        if certain and (low is None or chunk.step_min >= low) and (high is None or chunk.step_max <= high):
            return rows
        steps = self.ranks.step_column(rank, chunk)[rows]
        keep = np.ones(len(steps), bool)
        if low is not None:
            keep &= steps >= low
        if high is not None:
            keep &= steps <= high
        return np.flatnonzero(keep) if isinstance(rows, slice) else rows[keep]


def _rows_of(chunk: Chunk, sites: list[int] | None, kind: int | None) -> NDArray[np.intp] | slice:
    if sites is None:
        return slice(None) if kind is None else np.flatnonzero(chunk.column("kind") == kind)
    column = chunk.column("site")
    mask = column == sites[0]
    for site in sites[1:]:
        mask |= column == site
    rows = np.flatnonzero(mask)
    return rows if kind is None or not len(rows) else rows[chunk.column("kind")[rows] == kind]
