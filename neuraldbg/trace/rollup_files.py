"""Roll-ups of one process on disk: `rollup-<number>.ndt` beside its trace, in the trace's own chunks.

A chunk says in its header which raw rows it stands for. Files only grow; whatever is torn or wrong is as if it were not
there, and what it stood for is rolled up again into a new file.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import TraceTooNew
from neuraldbg.trace.files import GrowingFile
from neuraldbg.trace.format import ChunkEncoder, ChunkHeader, Layout, encode_file_header
from neuraldbg.trace.reader import Chunk, TraceFile
from neuraldbg.trace.rolling import CELLS, FIELDS, LEVELS, coarser, code_of, layout_of, rolled, schema

LEAST_ROWS: Final = 16_384  # raw rows a chunk of the finest level stands for, at least: less is served as it is
MOST_ROWS: Final = 262_144  # at most, which bounds the memory it takes to make one
FAN: Final = 16  # chunks of a level that become one of the next
_FILE: Final = re.compile(r"rollup-(\d{6,})\.ndt")
Range = tuple[int, int]  # of row numbers: first, end


class Rolled:
    """The cells of some raw rows, on one level."""

    __slots__ = ("_columns", "cells", "end", "first", "step_max", "step_min")

    def __init__(self, head: ChunkHeader, layout: Layout, payload: memoryview) -> None:
        places, _ = layout.offsets(head.rows)
        self.cells = head.rows
        self.first, self.end = head.seq_min, head.seq_max
        self.step_min, self.step_max = head.step_min, head.step_max
        self._columns = {n: np.frombuffer(payload, dtype, head.rows, places[n]) for n, dtype in layout.columns}

    def column(self, name: str) -> NDArray[Any]:
        return self._columns[name]


class RankRollups:
    """Reads the roll-ups of one process, and makes those that are missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, TraceFile] = {}
        self._all: dict[tuple[str, int], list[Rolled]] = {(t, level): [] for t in FIELDS for level in LEVELS}
        self._chunks = dict(self._all)
        self._out: GrowingFile | None = None
        self._encoder = ChunkEncoder()

    def close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None

    def of(self, table: str, level: int) -> list[Rolled]:
        """In order of the rows they stand for; no row is in two."""
        return self._chunks[table, level]

    def covered(self, table: str, level: int) -> list[Range]:
        """The rows that have cells on a level, neighbours joined."""
        found: list[Range] = []
        for each in self.of(table, level):
            if found and found[-1][1] == each.first:
                found[-1] = (found[-1][0], each.end)
            else:
                found.append((each.first, each.end))
        return found

    def refresh(self) -> None:
        """Picks up what anybody has written since."""
        before = sum(map(len, self._all.values()))
        for name in self._listing():
            file = self._files.setdefault(name, TraceFile(self._directory / name, mapped=True))
            try:
                for head, layout, payload in file.advance():
                    self._take(head, layout, payload)
            except TraceTooNew:
                continue
        if sum(map(len, self._all.values())) != before:
            for (table, level), chunks in self._all.items():
                finer = [self._all[table, one] for one in LEVELS if one < level]
                self._chunks[table, level] = [c for c in chunks if not any(_cuts(c, each) for each in finer)]

    def release(self) -> None:
        for file in self._files.values():
            file.release()

    def _listing(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._directory) if _FILE.fullmatch(name))
        except OSError:
            return []

    def _take(self, head: ChunkHeader, layout: Layout, payload: memoryview) -> None:
        table, _, level = layout.table.partition("/")
        key = (table, int(level)) if level.isdigit() else ("", 0)
        if key not in self._all or layout != layout_of(*key) or not head.rows:
            return
        chunk, known = Rolled(head, layout, payload), self._all[key]
        at = bisect_right(known, chunk.first, key=_first)
        if (not at or known[at - 1].end <= chunk.first) and (at == len(known) or chunk.end <= known[at].first):
            known.insert(at, chunk)

    def lacks(self, table: str, raw: Sequence[Chunk]) -> bool:
        """Whether there are rows enough for a chunk that have no cells yet."""
        return any(end - first >= LEAST_ROWS for first, end in _missing(raw, self.covered(table, LEVELS[0])))

    def extend(self, table: str, raw: Sequence[Chunk]) -> int:
        """Rolls up what has no cells yet and is enough for a chunk; returns how many rows that were."""
        done = 0
        for first, end in _missing(raw, self.covered(table, LEVELS[0])):
            while end - first >= LEAST_ROWS:
                taken = self._roll(table, raw, (first, min(end, first + MOST_ROWS)))
                if not taken:
                    break
                first += taken
                done += taken
        for finer, level in pairwise(LEVELS):
            self.refresh()
            self._coarsen(table, finer, level)
        self.refresh()
        return done

    def _roll(self, table: str, raw: Sequence[Chunk], wanted: Range) -> int:
        """One chunk of the finest level, up to a boundary of windows where there is one."""
        parts = _parts(raw, wanted)
        steps = np.concatenate([chunk.column("step")[rows] for chunk, rows in parts])
        if int(steps.max()) - int(steps.min()) < LEVELS[0] and len(steps) < MOST_ROWS:
            return 0
        complete = np.flatnonzero(steps >= int(steps.max()) // LEVELS[0] * LEVELS[0])
        count = int(complete[0]) if len(complete) and complete[0] >= LEAST_ROWS else len(steps)

        def column(name: str) -> NDArray[Any]:
            joined: NDArray[Any] = np.concatenate([chunk.column(name)[rows] for chunk, rows in parts])[:count]
            return joined

        cells = rolled(table, column, steps[:count])
        ranges = (int(steps[:count].min()), int(steps[:count].max()), wanted[0], wanted[0] + count)
        self._write(table, LEVELS[0], cells, ranges)
        return count

    def _coarsen(self, table: str, finer: int, level: int) -> None:
        """Makes one chunk of every FAN neighbours of the finer level that this level does not have yet."""
        covered = self.covered(table, level)
        waiting: list[Rolled] = []
        for each in list(self.of(table, finer)):
            if any(first <= each.first < end for first, end in covered):
                waiting = []
                continue
            waiting = [*waiting, each] if not waiting or waiting[-1].end == each.first else [each]
            if len(waiting) == FAN:
                together = {n: np.concatenate([w.column(n) for w in waiting]) for n in CELLS[table].names or ()}
                steps = (min(w.step_min for w in waiting), max(w.step_max for w in waiting))
                rows = (waiting[0].first, waiting[-1].end)
                self._write(table, level, coarser(table, together, level), (*steps, *rows))
                waiting = []

    def _write(self, table: str, level: int, cells: NDArray[np.void], ranges: tuple[int, int, int, int]) -> None:
        """Appends a chunk; it is there for us, as for everybody else, after the next refresh. Raises OSError."""
        if self._out is None:
            numbers = [int(name[7:-4]) for name in self._listing()]
            header = encode_file_header(**schema())
            self._out = GrowingFile(self._directory, "rollup", header, first=max(numbers, default=-1) + 1)
        code, layout = code_of(table, level), layout_of(table, level)
        self._out.write(self._encoder.of_layout(code, layout, cells, 0, ranges))


def _first(chunk: Rolled) -> int:
    return chunk.first


def _cuts(chunk: Rolled, finer: Sequence[Rolled]) -> bool:
    """Whether a finer chunk has rows on both sides of a border of this one: then they cannot be used together."""
    for border in (chunk.first, chunk.end):
        at = bisect_right(finer, border, key=_first) - 1
        if at >= 0 and finer[at].first < border < finer[at].end:
            return True
    return False


def _missing(raw: Sequence[Chunk], covered: Sequence[Range]) -> list[Range]:
    """Rows that are there and have no cells, as ranges of neighbours."""
    there: list[Range] = []
    for chunk in raw:
        if there and there[-1][1] == chunk.first_row:
            there[-1] = (there[-1][0], chunk.end_row)
        else:
            there.append((chunk.first_row, chunk.end_row))
    return [left for each in there for left in _without(each, covered)]


def _without(rows: Range, covered: Sequence[Range]) -> list[Range]:
    first, end = rows
    left: list[Range] = []
    for low, high in covered:
        if low < end and high > first:
            if low > first:
                left.append((first, low))
            first = max(first, high)
    return [*left, (first, end)] if first < end else left


def _parts(raw: Sequence[Chunk], wanted: Range) -> list[tuple[Chunk, slice]]:
    first, end = wanted
    return [
        (chunk, slice(max(0, first - chunk.first_row), min(chunk.rows, end - chunk.first_row)))
        for chunk in raw
        if chunk.first_row < end and chunk.end_row > first
    ]
