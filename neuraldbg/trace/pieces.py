"""What an answer about many steps is made of: cells of roll-ups where there are some, and every other row itself.

Cells stand for exactly the rows their file says, so that an answer is the same whether much, little or nothing has been
rolled up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.records import Kind
from neuraldbg.trace.findings import analysis_lock
from neuraldbg.trace.heatmap import COUNTED, infinities
from neuraldbg.trace.merge import MergedRanks, RankView
from neuraldbg.trace.reader import Chunk
from neuraldbg.trace.rolling import FIELDS, LEVELS, field_values
from neuraldbg.trace.rollup_files import RankRollups, Rolled
from neuraldbg.trace.selection import Hit, Selection, Span
from neuraldbg.trace.tables import KIND_CODE

LOCK_FILE: Final = "rollup.lock"
# rows that are looked at one by one, at most: measured to stay well under 50 ms CPU (benchmarks/queries.py)
MOST_ROWS: Final = 1_200_000
MOST_ROWS_OF_ONE_LAYER: Final = 12_000_000  # only its own are more than glanced at
TABLE_OF: Final = {Kind.SPAN: "spans", Kind.SCALAR: "scalars"}  # the others are statistics


@dataclass(frozen=True, slots=True)
class Question:
    kind: Kind
    field: str
    sites: tuple[int, ...] | None  # as the run numbers them; None: all
    window: Span
    width: int
    phases: tuple[int, ...] = ()  # codes; none: all
    whole: bool = False  # columns for all steps of the window, also before the first row and after the last
    rank: int | None = None  # the folder of one process; None: all of them

    def leaves_out(self, rank: int) -> bool:
        return self.rank is not None and self.rank != rank

    @property
    def table(self) -> str:
        return TABLE_OF.get(self.kind, "stats")

    @property
    def of_tensors(self) -> bool:
        """Whether what was counted in a tensor tells something about the value."""
        return self.table == "stats" and self.field not in COUNTED

    @property
    def code(self) -> int | None:
        return KIND_CODE[self.kind] if self.table == "stats" else None


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows or cells of one chunk: their sites and columns, and `part` = "low", "high", "mean", "count" or "nan"."""

    sites: NDArray[Any]
    at: NDArray[np.intp]  # column of the answer
    part: Callable[[str], NDArray[Any]]
    bad: Callable[[], NDArray[np.bool_]]  # a NaN was among the values or in a tensor
    inf: Callable[[], NDArray[np.int8]]  # as Heatmap.inf


@dataclass(frozen=True, slots=True)
class Pieces:
    edges: NDArray[np.int64]
    all: list[Piece]


@dataclass(frozen=True, slots=True)
class _Ground:
    """The steps of a question and, for each level in use, those whose windows lie inside of them."""

    low: int
    high: int
    inner: dict[int, tuple[float, float]]

    def holds(self, level: int, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        low, high = self.inner[level]
        return (steps >= low) & (steps <= high)


class Rollups:
    """The roll-ups of a run."""

    def __init__(self, path: Path, ranks: MergedRanks) -> None:
        self._path = path
        self._ranks = ranks
        self._files: dict[int, RankRollups] = {}
        self._given_up = False

    def update(self) -> int:
        """Rolls up the rows that came since; returns how many. Does nothing where another process is at it, or where
        the disk does not want it: the rows themselves serve as well, only slower."""
        if self._given_up or self._ranks.steps_kind != "update" or not self._lacking():
            return 0
        done = 0
        with analysis_lock(self._path, LOCK_FILE) as mine:
            self.refresh()
            for rank, view in self._ranks.views.items() if mine else ():
                try:
                    done += sum(self._files[rank].extend(table, view.reader.chunks[table]) for table in FIELDS)
                except OSError:
                    self._given_up = True
        self.release()
        return done

    def _lacking(self) -> bool:
        self.refresh()
        views = self._ranks.views
        return any(self._files[rank].lacks(t, views[rank].reader.chunks[t]) for rank in views for t in FIELDS)

    def refresh(self) -> None:
        for rank, view in self._ranks.views.items():
            self._files.setdefault(rank, RankRollups(view.reader.directory)).refresh()

    def close(self) -> None:
        for files in self._files.values():
            files.close()
        self._files.clear()

    def release(self) -> None:
        """Gives back the memory that looking at mapped files has taken."""
        for files in self._files.values():
            files.release()
        for view in self._ranks.views.values():
            view.reader.release()

    def pieces(self, question: Question) -> Pieces:
        """What an answer is made of, and the edges of its columns."""
        if self._ranks.steps_kind != "update":
            return self._uncounted(question)
        self.refresh()
        ground = self._ground(question)
        if ground is None:
            return Pieces(np.empty(0, np.int64), [])
        edges = _edges(ground, question.width)
        cells = self._cells(question, ground, edges)
        return Pieces(edges, [*cells, *self._rows(question, ground, edges)])

    def _uncounted(self, question: Question) -> Pieces:
        """A run that never updates has its steps counted anew with every look: its rows are looked at themselves."""
        selection, hits, steps = self._hits(question)
        if not hits:
            return Pieces(np.empty(0, np.int64), [])
        edges = _edges(_of_window(question, int(steps[0]), int(steps[-1])), question.width)
        return Pieces(edges, [self._piece(question, selection, hit, edges) for hit in hits])

    def each_step(self, question: Question) -> Pieces | None:
        """The rows themselves, in a column for every step that has one; None where that would be too many columns."""
        selection, hits, steps = self._hits(question)
        if len(steps) > question.width:
            return None
        edges = np.r_[steps, steps[-1:] + 1]
        return Pieces(edges, [self._piece(question, selection, hit, edges) for hit in hits])

    def _hits(self, question: Question) -> tuple[Selection, list[Hit], NDArray[np.int64]]:
        """The rows a question is about, and their steps."""
        selection = Selection(self._ranks, question.table, question.window)
        chosen = selection.hits(
            sites=question.sites, kind=question.code, skip=lambda rank, _: question.leaves_out(rank)
        )
        found = [_of_phases(question, hit) for hit in chosen]
        hits = [hit for hit in found if isinstance(hit.rows, slice) or len(hit.rows)]
        steps = [np.unique(selection.steps(hit)) for hit in hits]
        return selection, hits, np.unique(np.concatenate([np.empty(0, np.int64), *steps]))

    # -- which steps, and how finely -------------------------------------------------------------------------------

    def _ground(self, question: Question) -> _Ground | None:
        first, last = question.window
        raw = [chunk for view in self._ranks.views.values() for chunk in view.reader.chunks[question.table]]
        known: list[Chunk | Rolled] = list(raw)
        known += [each for files in self._files.values() for each in files.of(question.table, LEVELS[0])]
        if not known:
            return None
        start, end = min(each.step_min for each in known), max(each.step_max for each in known)
        low, high = max(start, first if first is not None else start), min(end, last if last is not None else end)
        if low > high:
            return None
        level = self._level(question, (low, high), raw)
        inner: dict[int, tuple[float, float]] = {}
        for each in (one for one in LEVELS if one <= level):
            begin = -np.inf if low == start else -(-low // each) * each
            inner[each] = (begin, np.inf if high == end else (high + 1) // each * each - 1)
        return replace(_of_window(question, low, high), inner=inner)

    def _level(self, question: Question, steps: tuple[int, int], raw: Sequence[Chunk]) -> int:
        """The windows to use: 0 = the rows themselves."""
        low, high = steps
        fitting = [level for level in LEVELS if level * question.width <= high - low + 1]
        if fitting:
            return fitting[-1]
        rows = sum(chunk.rows for chunk in raw if chunk.step_max >= low and chunk.step_min <= high)
        affordable = rows <= (MOST_ROWS if question.sites is None else MOST_ROWS_OF_ONE_LAYER)
        return 0 if affordable and not self._evicted(question.table, steps) else LEVELS[0]

    def _evicted(self, table: str, steps: tuple[int, int]) -> bool:
        """Whether some of these steps are left only in roll-ups."""
        for rank, files in self._files.items():
            raw = self._ranks.views[rank].reader.chunks[table]
            first = raw[0].first_row if raw else np.inf
            if any(c.first < first and c.step_max >= steps[0] and c.step_min <= steps[1] for c in files.of(table, 64)):
                return True
        return False

    # -- cells -----------------------------------------------------------------------------------------------------

    def _cells(self, question: Question, ground: _Ground, edges: NDArray[np.int64]) -> Iterator[Piece]:
        levels = list(ground.inner)
        for rank, files in self._files.items():
            if question.leaves_out(rank):
                continue
            view = self._ranks.views[rank]
            local = None if question.sites is None else [view.local_of(site) for site in question.sites]
            for level in levels:
                above = {each: files.covered(question.table, each) for each in levels if each > level}
                for chunk in files.of(question.table, level):
                    if chunk.step_max < ground.low or chunk.step_min > ground.high:
                        continue
                    keep = ground.holds(level, chunk.column("step"))
                    for each, ranges in above.items():
                        if any(first <= chunk.first < end for first, end in ranges):
                            keep &= ~ground.holds(each, chunk.column("step"))
                    wanted = question.phases if question.code is None else (question.code,)
                    if wanted:
                        keep &= np.isin(chunk.column("kind"), wanted)
                    if local is not None:
                        keep &= np.isin(chunk.column("site"), [site for site in local if site is not None])
                    rows = np.flatnonzero(keep)
                    if len(rows):
                        yield _cell_piece(question, view, chunk, rows, edges)

    # -- rows ------------------------------------------------------------------------------------------------------

    def _rows(self, question: Question, ground: _Ground, edges: NDArray[np.int64]) -> Iterator[Piece]:
        selection = Selection(self._ranks, question.table, (ground.low, ground.high))
        covered = {
            (rank, level): files.covered(question.table, level)
            for rank, files in self._files.items()
            for level in ground.inner
        }

        def told(rank: int, chunk: Chunk) -> bool:
            """Whether cells tell all that this chunk has to say, or nobody asked for it."""
            return question.leaves_out(rank) or any(
                first <= chunk.first_row
                and chunk.end_row <= end
                and ground.inner[level][0] <= chunk.step_min
                and chunk.step_max <= ground.inner[level][1]
                for level in ground.inner
                for first, end in covered.get((rank, level), ())
            )

        for hit in selection.hits(sites=question.sites, kind=question.code, skip=told):
            left = _of_phases(question, self._untold(hit, ground, covered))
            if isinstance(left.rows, slice) or len(left.rows):
                yield self._piece(question, selection, left, edges)

    def _untold(self, hit: Hit, ground: _Ground, covered: dict[tuple[int, int], list[tuple[int, int]]]) -> Hit:
        chunk = hit.chunk
        ranges = [
            (level, first, end)
            for level in ground.inner
            for first, end in covered.get((hit.rank, level), ())
            if first < chunk.end_row and end > chunk.first_row
        ]
        if not ranges:
            return hit
        rows = np.arange(chunk.rows)[hit.rows]
        steps = chunk.column("step")[rows]
        told = np.zeros(len(rows), bool)
        for level, first, end in ranges:
            number = rows + chunk.first_row
            told |= (number >= first) & (number < end) & ground.holds(level, steps)
        return Hit(hit.rank, chunk, rows[~told])

    def _piece(self, question: Question, selection: Selection, hit: Hit, edges: NDArray[np.int64]) -> Piece:
        values = field_values(lambda name: hit.chunk.column(name)[hit.rows], question.field)
        missing = np.isnan(values)
        bad: NDArray[np.bool_] = missing
        among = np.zeros(len(values), bool)
        if question.table == "spans":  # what is missing there was not measured
            bad = among
        elif question.of_tensors:  # at once: what was looked at is given back before the answer is put together
            bad = missing | (hit.chunk.column("nan_count")[hit.rows] > 0)
            among = hit.chunk.column("inf_count")[hit.rows] > 0

        def part(name: str) -> NDArray[Any]:
            return {"count": ~missing, "nan": missing}.get(name, values)

        def inf() -> NDArray[np.int8]:
            return infinities(values, values, among)

        return Piece(selection.values(hit, "site"), _column(edges, selection.steps(hit)), part, lambda: bad, inf)


def _of_phases(question: Question, hit: Hit) -> Hit:
    if not question.phases:
        return hit
    rows = np.arange(hit.chunk.rows)[hit.rows]
    return Hit(hit.rank, hit.chunk, rows[np.isin(hit.chunk.column("phase")[rows], question.phases)])


def _cell_piece(
    question: Question, view: RankView, chunk: Rolled, rows: NDArray[np.intp], edges: NDArray[np.int64]
) -> Piece:
    def part(name: str) -> NDArray[Any]:
        return chunk.column(f"{question.field}.{name}")[rows]

    def bad() -> NDArray[np.bool_]:
        if question.table == "spans":
            return np.zeros(len(rows), bool)
        found: NDArray[np.bool_] = (part("nan") > 0) | counted("nan_count")
        return found

    def counted(field: str) -> NDArray[np.bool_]:
        if not question.of_tensors:
            return np.zeros(len(rows), bool)
        found: NDArray[np.bool_] = chunk.column(f"{field}.high")[rows] > 0
        return found

    def inf() -> NDArray[np.int8]:
        return infinities(part("high"), part("low"), counted("inf_count"))

    at = _column(edges, chunk.column("step")[rows])
    return Piece(view.to_global(chunk.column("site")[rows]), at, part, bad, inf)


def _of_window(question: Question, low: int, high: int) -> _Ground:
    """From the first to the last row; where that was asked for, the whole window."""
    first, last = question.window if question.whole else (None, None)
    return _Ground(low if first is None else min(low, first), high if last is None else max(high, last), {})


def _edges(ground: _Ground, width: int) -> NDArray[np.int64]:
    """Columns of equal numbers of steps; on a level, of whole windows."""
    low, steps = ground.low, ground.high - ground.low + 1
    width = max(1, width)
    if not ground.inner:
        columns = min(width, steps)
        return np.array([low + i * steps // columns for i in range(columns + 1)], np.int64)
    level = max(ground.inner)
    first, last = low // level, ground.high // level
    wide = -(-(last - first + 1) // width)
    return np.array([low, *range((first + wide) * level, ground.high + 1, wide * level), ground.high + 1], np.int64)


def _column(edges: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.intp]:
    """A window that begins before the first recorded step belongs to the first column."""
    return np.maximum(np.searchsorted(edges, steps, side="right") - 1, 0)
