"""What a run directory holds, for comparing one with another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuraldbg.store.parts import FactLines
from neuraldbg.trace.reader import RankReader
from neuraldbg.trace.tables import TABLES


def rows_and_facts(run_dir: Path, rank: int = 0) -> dict[str, Any]:
    """Everything a process recorded: the bytes of every row with its number, and every fact as it was written."""
    folder = run_dir / f"rank-{rank:05d}"
    reader = RankReader(rank, folder)
    reader.refresh()
    found: dict[str, Any] = {}
    for table, chunks in reader.chunks.items():
        names = TABLES[table].names or ()
        found[table] = {name: b"".join(chunk.column(name).tobytes() for chunk in chunks) for name in names}
        found[table]["numbers"] = [n for chunk in chunks for n in range(chunk.first_row, chunk.end_row)]
    facts = FactLines(folder)
    facts.refresh()
    return {**found, "facts": facts.lines}
