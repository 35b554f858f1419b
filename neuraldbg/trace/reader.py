"""Reads the files of one process while they grow. Stops at damage, says where, and serves what stands before it."""

from __future__ import annotations

import json
import mmap
import os
import re
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import TraceTooNew
from neuraldbg.trace import format as ndt
from neuraldbg.trace.tables import TABLES

_FILE: Final = re.compile(r"(segment|facts|journal-[a-z_]+)-(\d{6,})\.ndt")
_COALESCE_CHUNKS: Final = 64  # journal chunks are small: beyond this many they are joined in memory


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a file stopped being readable."""

    file: Path
    offset: int
    reason: str
    torn: bool  # cut short, as a kill or a full disk leaves it; else the bytes are wrong

    def __str__(self) -> str:
        return f"{self.file.parent.name}/{self.file.name} at byte {self.offset}: {self.reason}"


class Chunk:
    """Rows of one table; columns are views of the file."""

    __slots__ = ("_columns", "first_row", "rows", "step_max", "step_min", "table")

    def __init__(self, table: str, head: ndt.ChunkHeader, columns: dict[str, NDArray[Any]]) -> None:
        self.table = table
        self.rows = head.rows
        self.first_row = head.first_row
        self.step_min = head.step_min
        self.step_max = head.step_max
        self._columns = columns

    @property
    def end_row(self) -> int:
        return self.first_row + self.rows

    def column(self, name: str) -> NDArray[Any]:
        """A column; where an older file lacks it, its 'unknown': nan, -1, or 0 where unsigned."""
        found = self._columns.get(name)
        if found is None:
            dtype = TABLES[self.table][name]
            found = np.full(self.rows, {"f": np.nan, "i": -1}.get(dtype.kind, 0), dtype)
            self._columns[name] = found
        return found


def join(chunks: list[Chunk]) -> Chunk:
    """Neighbouring chunks of one table as one, in memory."""
    first = chunks[0]
    columns = {name: np.concatenate([c.column(name) for c in chunks]) for name in TABLES[first.table].names or ()}
    rows = sum(chunk.rows for chunk in chunks)
    low, high = min(c.step_min for c in chunks), max(c.step_max for c in chunks)
    return Chunk(first.table, ndt.ChunkHeader(0, rows, 0, 0, first.first_row, low, high, 0, 0), columns)


class TraceFile:
    """One file, read up to where it is intact; `advance` goes on from there."""

    def __init__(self, path: Path, *, mapped: bool) -> None:
        self.path = path
        self.damage: Damage | None = None
        self._mapped = mapped
        self._header: ndt.FileHeader | None = None
        self._end = 0  # everything before it is intact and delivered
        self._size_seen = -1
        self._broken = False
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def advance(self) -> Iterator[tuple[ndt.ChunkHeader, ndt.Layout, memoryview]]:
        """The whole chunks that were appended since the last call. A file that is gone has none."""
        if self._broken:
            return
        try:
            size = os.stat(self.path).st_size
            if size == 0:
                self.damage = Damage(self.path, 0, "the file is empty", torn=True)
            if size <= max(0, self._size_seen):
                return
            start, data = self._read(size)
        except OSError:
            return
        self._size_seen = size
        if self._header is None and not self._begin(data):
            return
        assert self._header is not None
        while True:
            found = self._next(data, self._end - start)
            if found is None:
                _let_go(data.obj)
                return
            head, layout, payload = found
            self._end += ndt.CHUNK_HEADER.size + head.payload_bytes
            if layout is not None:
                yield head, layout, payload

    def _read(self, size: int) -> tuple[int, memoryview]:
        """The bytes from (about) the intact end on, and where they begin in the file."""
        with open(self.path, "rb") as file:
            if self._mapped:
                start = self._end - self._end % mmap.ALLOCATIONGRANULARITY
                try:
                    mapped = mmap.mmap(file.fileno(), size - start, access=mmap.ACCESS_READ, offset=start)
                except OSError:  # a file system without mmap
                    pass
                else:
                    self._maps.add(mapped)
                    return start, memoryview(mapped)
            file.seek(self._end)
            return self._end, memoryview(file.read(size - self._end))

    def release(self) -> None:
        """Pages we have looked at are no longer counted as ours; the next look finds them in the system's cache."""
        for mapped in self._maps:
            _let_go(mapped)

    def _begin(self, data: memoryview) -> bool:
        try:
            self._header = ndt.decode_file_header(data)
        except ndt.NewerVersionError as error:
            raise TraceTooNew(
                f"{self.path} was written by a newer NeuralDbg ({error}; this one reads up to {ndt.MAJOR}.x): "
                "upgrade with `pip install -U neural-debugger`"
            ) from error
        except ndt.HeaderError as error:
            self._stop(0, str(error))
            return False
        if self._header is None:
            self.damage = Damage(self.path, 0, "the header is cut short", torn=True)
            return False
        self._end = self._header.size
        self.damage = None
        return True

    def _next(self, data: memoryview, at: int) -> tuple[ndt.ChunkHeader, ndt.Layout | None, memoryview] | None:
        assert self._header is not None
        self.damage = None
        left = len(data) - at
        if left <= 0:
            return None
        if left < ndt.CHUNK_HEADER.size:
            self._torn("a chunk header is cut short")
            return None
        head = ndt.decode_chunk_header(data[at : at + ndt.CHUNK_HEADER.size])
        if head is None:
            self._stop(self._end, "no chunk begins here")
            return None
        whole = ndt.CHUNK_HEADER.size + head.payload_bytes
        if left < whole:
            self._torn(f"a chunk of {head.rows} rows is cut short")
            return None
        if not ndt.intact(data[at : at + whole], head.crc):
            self._stop(self._end, f"a chunk of {head.rows} rows fails its checksum")
            return None
        layout = self._header.layouts.get(head.code)
        if layout is not None and head.code != ndt.FACTS_CODE and layout.offsets(head.rows)[1] != head.payload_bytes:
            self._stop(self._end, "a chunk does not have the size its schema gives")
            return None
        return head, layout, data[at + ndt.CHUNK_HEADER.size : at + whole]

    def _torn(self, reason: str) -> None:
        self.damage = Damage(self.path, self._end, reason, torn=True)

    def _stop(self, offset: int, reason: str) -> None:
        self._broken = True
        self.damage = Damage(self.path, offset, reason, torn=False)


def _chunk(head: ndt.ChunkHeader, layout: ndt.Layout, payload: memoryview) -> Chunk:
    places, _ = layout.offsets(head.rows)
    columns = {name: np.frombuffer(payload, dtype, head.rows, places[name]) for name, dtype in layout.columns}
    return Chunk(layout.table, head, columns)


def _let_go(data: object) -> None:
    if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED)


class RankReader:
    """Everything one process recorded: chunks by table in row order, and facts."""

    def __init__(self, rank: int, directory: Path) -> None:
        self.rank = rank
        self.directory = directory
        self.facts: list[dict[str, Any]] = []
        self._files: dict[str, TraceFile] = {}
        self._segment_chunks: dict[str, list[tuple[str, Chunk]]] = {table: [] for table in TABLES}
        self._journal_chunks: dict[str, list[Chunk]] = {table: [] for table in TABLES}
        self.chunks: dict[str, list[Chunk]] = {table: [] for table in TABLES}

    def refresh(self) -> bool:
        """Picks up what was appended since; True when there was something.

        Journals are read before segments: the writer puts rows into a segment first and removes the journal then,
        so that a row is seen twice (and dropped once) but never missed.
        """
        changed = False
        journals = [name for name in self._listing() if name.startswith("journal")]
        for name in journals:
            changed |= self._read_rows(name, journal=True)
        listing = self._listing()
        for name in listing:
            if name.startswith("segment"):
                changed |= self._read_rows(name, journal=False)
            elif name.startswith("facts"):
                changed |= self._read_facts(name)
        changed |= self._forget_removed({*listing, *journals})
        if changed:
            for table in TABLES:
                self._arrange(table)
        return changed

    def release(self) -> None:
        """Gives back the memory that looking at mapped files has taken."""
        for file in self._files.values():
            file.release()

    def _listing(self) -> list[str]:
        try:
            names = os.listdir(self.directory)
        except OSError:
            return []
        return sorted(name for name in names if _FILE.fullmatch(name))

    def _file(self, name: str, *, mapped: bool) -> TraceFile:
        if name not in self._files:
            self._files[name] = TraceFile(self.directory / name, mapped=mapped)
        return self._files[name]

    def _read_rows(self, name: str, *, journal: bool) -> bool:
        found = False
        # a journal is small and may be removed under us: copied, not mapped
        for head, layout, payload in self._file(name, mapped=not journal).advance():
            if layout.table not in TABLES or not head.rows:
                continue
            found = True
            chunk = _chunk(head, layout, payload)
            if journal:
                self._journal_chunks[layout.table].append(chunk)
            else:
                self._segment_chunks[layout.table].append((name, chunk))
        return found

    def _read_facts(self, name: str) -> bool:
        before = len(self.facts)
        for head, _, payload in self._file(name, mapped=False).advance():
            if head.code == ndt.FACTS_CODE:
                self._parse(bytes(payload))
        return len(self.facts) > before

    def _parse(self, text: bytes) -> None:
        for line in text.splitlines():
            with suppress(ValueError):  # the padding, or what a later version writes
                fact = json.loads(line)
                if isinstance(fact, dict):
                    self.facts.append(fact)

    def _forget_removed(self, present: set[str]) -> bool:
        """Segments that were evicted since: their rows are gone for everybody, also for us."""
        gone = [name for name in self._files if name not in present]
        for name in gone:
            del self._files[name]
        lost = {name for name in gone if name.startswith("segment")}
        if lost:
            for table, entries in self._segment_chunks.items():
                self._segment_chunks[table] = [entry for entry in entries if entry[0] not in lost]
        return bool(lost)

    def _arrange(self, table: str) -> None:
        segments = sorted((chunk for _, chunk in self._segment_chunks[table]), key=lambda chunk: chunk.first_row)
        covered = segments[-1].end_row if segments else 0
        journal = sorted(
            (c for c in self._journal_chunks[table] if c.first_row >= covered), key=lambda chunk: chunk.first_row
        )
        neighbours = all(a.end_row == b.first_row for a, b in pairwise(journal))
        if len(journal) > _COALESCE_CHUNKS and neighbours:
            journal = [join(journal)]
        self._journal_chunks[table] = journal
        self.chunks[table] = segments + journal

    @property
    def damage(self) -> list[Damage]:
        """What cannot be read. A torn end that a later file made good is none."""
        found = [file.damage for file in self._files.values() if file.damage is not None]
        last = {_stem(name): name for name in sorted(self._files)}
        complete = not any(self.missing(table) for table in TABLES)
        return [d for d in found if not (d.torn and complete and d.file.name != last[_stem(d.file.name)])]

    def missing(self, table: str) -> int:
        """Rows that were written between others and cannot be read."""
        chunks = self.chunks[table]
        return sum(max(0, b.first_row - a.end_row) for a, b in pairwise(chunks))


def _stem(name: str) -> str:
    return name.rsplit("-", 1)[0]
