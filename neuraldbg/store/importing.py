"""A Parquet data set as a run directory again: every row with its number, every fact, every file beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import RunDirectoryError, TraceDamaged
from neuraldbg.store.arrow import parquet_table, rows_of
from neuraldbg.store.layout import rank_folder
from neuraldbg.store.manifest import DataSet, Manifest, Part
from neuraldbg.store.older import count_rows, rows_at
from neuraldbg.trace.files import GrowingFile
from neuraldbg.trace.format import ChunkEncoder, encode_file_header
from neuraldbg.trace.tables import TABLES

CHUNK_ROWS: Final = 65_536
SEGMENT_BYTES: Final = 64_000_000
FACTS_CHUNK: Final = 4_096


def import_run(data_set: DataSet, out: Path) -> Path:
    """Writes `out`, a new or empty directory."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise RunDirectoryError(f"{out} is not empty; choose a new or empty directory with -o")
        for rank, manifest in data_set.manifests.items():
            RankWriter(data_set, manifest, out / rank_folder(rank)).write(manifest.tables)
        write_files(data_set, out)
    except OSError as error:
        raise RunDirectoryError(f"cannot write {out}: {error.strerror or error}; choose another with -o") from error
    return out


def write_files(data_set: DataSet, out: Path) -> None:
    """What belongs to the run and its ranks beside the trace."""
    for one in (*data_set.files, *(each for manifest in data_set.manifests.values() for each in manifest.files)):
        path = out / one.file
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        draft.write_bytes(one.read(data_set.place))
        draft.replace(path)


class RankWriter:
    """Writes parts of one rank as the segments and facts of a trace."""

    def __init__(self, data_set: DataSet, manifest: Manifest, folder: Path) -> None:
        self._data_set = data_set
        folder.mkdir(parents=True, exist_ok=True)
        header = encode_file_header(rank=manifest.rank, pid=0, created_ns=time.time_ns())
        numbers = {stem: _next_number(folder, stem) for stem in ("segment", "facts")}
        self._segments = GrowingFile(folder, "segment", header, first=numbers["segment"])
        self._facts = GrowingFile(folder, "facts", header, first=numbers["facts"])
        self._encoder = ChunkEncoder()

    def write(self, tables: Mapping[str, list[Part]]) -> None:
        try:
            for table, parts in tables.items():
                for part in parts if table in TABLES or table == "facts" else ():
                    self._write_part(table, part)
        finally:
            self._segments.close()
            self._facts.close()

    def write_some(self, table: str, parts: Sequence[Part], apart: int) -> None:
        """Of parts that follow each other the rows at every so many steps; numbered up to the end of the last."""
        place = self._data_set.place
        first = parts[-1].end_row - count_rows(place, parts, apart)
        try:
            for rows in rows_at(place, table, parts, apart):
                for at in range(0, len(rows), CHUNK_ROWS):
                    self._write_rows(table, rows[at : at + CHUNK_ROWS], first + at)
                first += len(rows)
        finally:
            self._segments.close()
            self._facts.close()

    def _write_part(self, table: str, part: Part) -> None:
        where = f"{self._data_set.place.shown}/{part.file}"
        arrow = parquet_table(part.read(self._data_set.place), table, where)
        if arrow.num_rows != part.rows:
            raise TraceDamaged(f"{where} has {arrow.num_rows:,} rows, its manifest says {part.rows:,}")
        if table == "facts":
            self._write_facts(arrow, part.first_row)
            return
        numbers, rows = rows_of(arrow, table)
        for first, block in _unbroken(numbers, rows):
            self._write_rows(table, block, first)

    def _write_rows(self, table: str, rows: NDArray[np.void], first: int) -> None:
        self._segments.write(self._encoder.rows(table, [rows], first))
        if self._segments.size >= SEGMENT_BYTES:
            self._segments.rotate()

    def _write_facts(self, arrow: Any, first: int) -> None:
        lines = [text.encode("utf-8") for text in arrow["json"].to_pylist()]
        for at in range(0, len(lines), FACTS_CHUNK):
            self._facts.write(self._encoder.facts(lines[at : at + FACTS_CHUNK], first + at))


def _next_number(folder: Path, stem: str) -> int:
    return 1 + max((int(path.stem.rpartition("-")[2]) for path in folder.glob(f"{stem}-*.ndt")), default=-1)


def _unbroken(numbers: NDArray[np.int64], rows: NDArray[np.void]) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Blocks of rows whose numbers follow each other, each with the first of them."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    edges = [0, *breaks.tolist(), len(numbers)]
    for begin, end in pairwise(edges):
        for at in range(begin, end, CHUNK_ROWS):
            yield int(numbers[at]), rows[at : min(at + CHUNK_ROWS, end)]
