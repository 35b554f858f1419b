"""Runs to analyse: run directories, and Parquet data sets here or on an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import StoreNotFound
from neuraldbg.fleet.reduction import Job
from neuraldbg.store.arrow import parquet_table
from neuraldbg.store.exporting import export_run
from neuraldbg.store.manifest import DataSet, Part, open_dataset
from neuraldbg.store.parts import RankParts
from neuraldbg.store.places import open_place
from neuraldbg.trace.findings import read_findings
from neuraldbg.trace.merge import MergedRanks
from neuraldbg.trace.rundir import FINDINGS_FILE

Steps = NDArray[np.int64] | None  # in order; none: all


class Source:
    """One run. An engine of its own wants Parquet: a run directory is written as that for as long as it is asked."""

    def __init__(self, given: str | Path, kept: ExitStack) -> None:
        self._kept = kept
        self._data_set: DataSet | None = None
        self._ranks: MergedRanks | None = None
        path = Path(given)
        if "://" in str(given) or (path / "dataset.json").is_file():
            self._data_set = open_dataset(open_place(given))
            self.name = self._data_set.run
        else:
            self._ranks = MergedRanks(path)
            self._ranks.refresh()
            self.name = path.name

    @property
    def data_set(self) -> DataSet:
        if self._data_set is None:
            assert self._ranks is not None
            folder = self._kept.enter_context(TemporaryDirectory(prefix="neuraldbg-analyze-"))
            place = open_place(Path(folder) / "run")
            export_run(self._ranks.path, place)
            self._data_set = open_dataset(place)
        return self._data_set

    def files(self, table: str, steps: Steps = None) -> list[str]:
        """The Parquet files of a table that have rows of these steps, as the file system of the place has them."""
        return [self.data_set.place.at(part.file) for part in self._parts(table, steps)]

    def size_bytes(self, table: str, steps: Steps = None) -> int:
        """Of those files together."""
        return sum(part.size_bytes for part in self._parts(table, steps))

    def _parts(self, table: str, steps: Steps) -> Iterator[Part]:
        for manifest in self.data_set.manifests.values():
            for part in manifest.tables.get(table, ()):
                if _touches(steps, part.step_min, part.step_max):
                    yield part

    def batches(self, job: Job, steps: Steps = None) -> Iterator[Any]:
        """The rows a job reads, piece by piece, with no engine but ourselves; pieces without these steps are left."""
        if self._ranks is not None:
            for rank, view in self._ranks.views.items():
                parts = RankParts(self._ranks, rank)
                for chunk in view.reader.chunks[job.table]:
                    if _touches(steps, chunk.step_min, chunk.step_max):
                        yield parts.arrow([chunk]).select(list(job.columns))
                        view.reader.release()
            return
        place = self.data_set.place
        for part in self._parts(job.table, steps):
            yield parquet_table(part.read(place), job.table, f"{place.shown}/{part.file}", job.columns)

    def findings(self) -> list[dict[str, Any]]:
        found = _parsed(self._read(FINDINGS_FILE)) if self._ranks is None else read_findings(self._ranks.path)
        return [one for one in found if not one.get("withdrawn")]

    def _read(self, name: str) -> bytes:
        try:
            return self.data_set.place.read(name)
        except StoreNotFound:
            return b""


def _parsed(data: bytes) -> list[dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for line in data.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found[entry.get("id")] = entry
    return list(found.values())


def _touches(steps: Steps, low: int | None, high: int | None) -> bool:
    """Whether a piece with rows from step `low` to `high` has some of these steps; one that does not say may have."""
    if steps is None or low is None or high is None:
        return True
    at = int(np.searchsorted(steps, low))
    return at < len(steps) and int(steps[at]) <= high


def open_sources(given: Sequence[str | Path], kept: ExitStack) -> list[Source]:
    """With names that tell them apart."""
    found = [Source(one, kept) for one in given]
    taken: set[str] = set()
    for source in found:
        stem, number = source.name, 2
        while source.name in taken:
            source.name, number = f"{stem} ({number})", number + 1
        taken.add(source.name)
    return found
