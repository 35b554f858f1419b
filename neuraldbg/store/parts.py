"""The parts of one rank: rows and facts that are in no part yet, cut into Parquet files of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from neuraldbg.store.arrow import arrow_of, facts_of, parquet_bytes
from neuraldbg.store.layout import part_name, rank_folder
from neuraldbg.store.manifest import Manifest, Part, stored
from neuraldbg.trace import format as ndt
from neuraldbg.trace.merge import MergedRanks
from neuraldbg.trace.reader import Chunk, TraceFile
from neuraldbg.trace.tables import TABLES

PART_BYTES: Final = 64_000_000  # of rows as the trace has them; a Parquet file of them is a third of it


def rows_from(chunk: Chunk, first: int) -> Chunk:
    """The chunk without the rows before `first`."""
    skip = first - chunk.first_row
    if skip <= 0:
        return chunk
    columns = {name: chunk.column(name)[skip:] for name in TABLES[chunk.table].names or ()}
    head = ndt.ChunkHeader(0, chunk.rows - skip, 0, 0, first, chunk.step_min, chunk.step_max, 0, 0)
    return Chunk(chunk.table, head, columns)


class FactLines:
    """The facts of one process as they were written, line by line."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, TraceFile] = {}
        self.lines: list[bytes] = []  # from the one numbered `first_row` on
        self.first_row = 0

    def refresh(self) -> None:
        for path in sorted(self._directory.glob("facts-*.ndt")):
            file = self._files.setdefault(path.name, TraceFile(path, mapped=False))
            for head, _, payload in file.advance():
                if head.code == ndt.FACTS_CODE:
                    self.lines += [line for line in bytes(payload).split(b"\n") if line]

    def after(self, count: int) -> list[bytes]:
        """All lines that are there but the first `count`, which are in parts already."""
        self.refresh()
        self.lines, self.first_row = self.lines[count - self.first_row :], count
        return self.lines


class RankParts:
    """What one rank recorded, on its way into parts. `manifest` says how far it is; who takes a part adds it there."""

    def __init__(self, ranks: MergedRanks, rank: int, manifest: Manifest | None = None) -> None:
        self.rank = rank
        self.manifest = manifest or Manifest(rank)
        self._ranks = ranks
        self._facts = FactLines(ranks.views[rank].reader.directory)

    def waiting_bytes(self, table: str) -> int:
        """Of rows that are in no part yet."""
        first = self.manifest.next_row(table)
        chunks = self._ranks.views[self.rank].reader.chunks[table]
        return sum(min(chunk.rows, max(0, chunk.end_row - first)) for chunk in chunks) * TABLES[table].itemsize

    def take(self, *, least_bytes: int = 0) -> Iterator[tuple[str, Part, bytes]]:
        """Table, part and file of whatever waits, of tables in which at least so much does. The caller has refreshed
        the ranks, and adds each part to the manifest before the next is made."""
        for table in TABLES:
            while (waiting := self.waiting_bytes(table)) and waiting >= least_bytes:
                yield self._next_part(table)
        if not least_bytes:
            yield from self._fact_part()

    def _next_part(self, table: str) -> tuple[str, Part, bytes]:
        view, first = self._ranks.views[self.rank], self.manifest.next_row(table)
        taken: list[Chunk] = []
        size = 0
        for chunk in view.reader.chunks[table]:
            if chunk.end_row <= first:
                continue
            taken.append(rows_from(chunk, first))
            size += taken[-1].rows * TABLES[table].itemsize
            if size >= PART_BYTES:
                break
        arrow = self.arrow(taken)
        steps = arrow["step"].to_numpy()
        numbers = {"first_row": taken[0].first_row, "end_row": taken[-1].end_row}
        part = self._part(table, arrow, **numbers, step_min=int(steps.min()), step_max=int(steps.max()))
        view.reader.release()
        return part

    def _fact_part(self) -> Iterator[tuple[str, Part, bytes]]:
        first = self.manifest.next_row("facts")
        lines = self._facts.after(first)
        if lines:
            arrow = facts_of(lines, self.rank, first)
            yield self._part("facts", arrow, first_row=first, end_row=first + len(lines))

    def _part(self, table: str, arrow: Any, **numbers: int) -> tuple[str, Part, bytes]:
        name = part_name(table, len(self.manifest.tables.get(table, ())))
        data = parquet_bytes(arrow)
        told = stored(f"{rank_folder(self.rank)}/{name}", data)
        part = Part(told.file, told.size_bytes, told.crc32, arrow.num_rows, **numbers)
        return table, part, data

    def arrow(self, chunks: Sequence[Chunk]) -> Any:
        """Chunks of one table with the names that the run has for layers."""
        return arrow_of(chunks, self.rank, self._name_of)

    def _name_of(self, site: int) -> str:
        """The name that the run as a whole has for a site of this rank; of one that is no site, none."""
        if site < 0:
            return ""
        view = self._ranks.views[self.rank]
        return self._ranks.name(view.global_of.get(site, site))
