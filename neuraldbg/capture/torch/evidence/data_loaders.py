"""Rows that a loader hands out within one epoch: how many, how many of them different."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neuraldbg.capture.torch.evidence.rows import as_array, bytes_of, joined, keys_of
from neuraldbg.capture.torch.nested import tensors

EPOCH_BYTES = 8 * 2**20  # of one loader's batches
MOST_LOADERS = 8
MOST_ROWS = 500_000


@dataclass
class Epoch:
    """The first one of a loader."""

    number: int
    rows: int = 0
    batches: int = 0
    keys: dict[int, int] = field(default_factory=dict)  # row -> times seen
    room: int = EPOCH_BYTES
    repeats_inside: int = 0  # rows that were already in their own batch
    over: bool = False
    whole: bool = True


class LoaderRows:
    """A fact `loader_rows` for each loader, after its first epoch and at the end."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self.batches = capture.batches
        self._epochs: dict[int, Epoch] = {}
        self._counts: dict[int, int] = {}
        self.core.take_part("batch", "rows of loaders", self._batch)
        self.core.take_part("ending", "rows of loaders", self._ending)

    def _batch(self, site: int, batch: Any) -> None:
        if site < 0 or self.core.budget.share == 0.0:
            return
        self._counts[site] = self._counts.get(site, 0) + 1
        number = self.batches.iterators[site]
        epoch = self._epochs.get(site)
        if epoch is None:
            if len(self._epochs) >= MOST_LOADERS:
                return
            epoch = self._epochs[site] = Epoch(number)
        if epoch.over:
            return
        if epoch.number != number:
            epoch.over = True
            self._write(site, epoch)
            return
        epoch.batches += 1
        self._add(epoch, batch)

    def _add(self, epoch: Epoch, batch: Any) -> None:
        parts = [array for array in map(as_array, tensors(batch)) if array is not None]
        rows = len(parts[0]) if parts else 0
        parts = [part for part in parts if len(part) == rows]
        epoch.room -= sum(bytes_of(part) for part in parts)
        if not parts or rows == 0 or epoch.room < 0 or len(epoch.keys) > MOST_ROWS:
            epoch.whole = False
            return
        several = [keys for keys in map(keys_of, parts) if keys is not None]
        keys = joined(several).tolist() if several else []
        epoch.rows += len(keys)
        epoch.repeats_inside += len(keys) - len(set(keys))
        for key in keys:
            epoch.keys[key] = epoch.keys.get(key, 0) + 1

    def _ending(self) -> None:
        for site, epoch in self._epochs.items():
            self._write(site, epoch)

    def _write(self, site: int, epoch: Epoch) -> None:
        times = epoch.keys.values()
        self.core.recorder.fact(
            "loader_rows",
            site=site,
            iterators=self.batches.iterators[site],
            batches=self._counts[site],
            epoch_batches=epoch.batches,
            rows=epoch.rows,
            distinct=len(epoch.keys),
            most_times=max(times, default=0),
            least_times=min(times, default=0),
            repeats_inside=epoch.repeats_inside,
            whole=epoch.whole,
        )
