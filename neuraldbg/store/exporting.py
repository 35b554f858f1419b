"""A run directory as a Parquet data set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuraldbg.errors import UsageError
from neuraldbg.store.layout import DATASET_FILE, PLAIN_NAME, rank_folder
from neuraldbg.store.manifest import Stored, page_of, stored
from neuraldbg.store.parts import RankParts
from neuraldbg.store.places import Place
from neuraldbg.trace.merge import MergedRanks

MOST_FILE_BYTES: Final = 256_000_000
# of this machine or this moment, or made again by who reads
_NOT_KEPT: Final = re.compile(r"control\.json|server\.json|.*\.lock|ballast|\..*|.*\.ndt|shipping\.json|fetched\.json")


@dataclass(slots=True)
class Written:
    """What an export wrote."""

    ranks: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    left_out: tuple[str, ...] = ()

    def count(self, size: int, rows: int = 0) -> None:
        self.files, self.bytes, self.rows = self.files + 1, self.bytes + size, self.rows + rows


def export_run(run_dir: Path, place: Place) -> Written:
    """Writes every rank's rows and facts, then what tells of them: who reads finds a whole data set or none."""
    place.check()
    if DATASET_FILE in place.names():
        raise UsageError(f"{place.shown} already holds a data set; choose another place with -o")
    ranks = MergedRanks(run_dir)
    ranks.refresh()
    if ranks.damage:
        raise UsageError(
            f"{run_dir} cannot be exported whole: {ranks.damage}; `neural export --format zip` takes it as it is"
        )
    written = Written(ranks=len(ranks.views))
    left_out: list[str] = []
    for rank in ranks.views:
        parts = RankParts(ranks, rank)
        for table, part, data in parts.take():
            place.write(part.file, data)
            parts.manifest.add(table, part)
            written.count(len(data), part.rows)
        folder = rank_folder(rank)
        parts.manifest.files = list(_files(run_dir / folder, place, f"{folder}/", written, left_out))
        parts.manifest.ended = True
        place.write(parts.manifest.name, parts.manifest.encoded())
    files = list(_files(run_dir, place, "", written, left_out))
    written.left_out = tuple(sorted(left_out))
    place.write(DATASET_FILE, page_of(ranks.run.id, ranks.views, files, left_out))
    return written


def other_files(folder: Path) -> tuple[list[Path], list[str]]:
    """The files beside the trace that belong to a run, and the names of those that stay where they are."""
    kept: list[Path] = []
    left: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            left += [] if path.name.startswith("rank-") or path.name == "shipping" else [f"{path.name}/"]
        elif not _NOT_KEPT.fullmatch(path.name):
            if PLAIN_NAME.fullmatch(path.name) and path.stat().st_size <= MOST_FILE_BYTES:
                kept.append(path)
            else:
                left.append(path.name)
    return kept, left


def _files(folder: Path, place: Place, prefix: str, written: Written, left_out: list[str]) -> Iterator[Stored]:
    kept, left = other_files(folder)
    left_out += [f"{prefix}{name}" for name in left]
    for path in kept:
        data = path.read_bytes()
        place.write(f"{prefix}{path.name}", data)
        written.count(len(data))
        yield stored(f"{prefix}{path.name}", data)
