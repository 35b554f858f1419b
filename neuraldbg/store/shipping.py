"""A run goes to an object store while it is recorded: parts wait in a spool, are tried again, counted, never lost
silently. Runs in the viewer; the training neither waits for it nor knows of it.

In the run directory: `shipping/rank-*/` holds the parts that wait and a manifest of all that were made, so that another
viewer goes on where one was killed; `shipping.json` has the counters.
"""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from neuraldbg.errors import StoreDenied, StoreError, StoreNotFound, TraceError
from neuraldbg.store.counters import Counters, read_counters
from neuraldbg.store.exporting import other_files
from neuraldbg.store.layout import DATASET_FILE, MANIFEST_FILE, rank_folder
from neuraldbg.store.manifest import Manifest, Stored, manifest_of, page_of, stored, told_there
from neuraldbg.store.parts import PART_BYTES, RankParts
from neuraldbg.store.places import Place, open_place
from neuraldbg.trace.merge import MergedRanks

SPOOL: Final = "shipping"
EVERY_S: Final = 60.0  # rows wait no longer for their part to fill
SPOOL_BYTES: Final = 1_000_000_000  # beyond it rows wait in the trace, which the disk limit may delete: then counted
FIRST_PAUSE_S: Final = 0.5
LEAST_LONGEST_S, LONGEST_PAUSE_S = 5.0, 30.0  # between the two: as often as there are new parts
LAUNCH_S: Final = 900.0  # processes of one launch begin within it


def _time_of(started: Any) -> float:
    """Of a time as `run.json` has it; one that is no time is never near another."""
    try:
        return datetime.fromisoformat(str(started).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return math.inf


class Refused(Exception):
    """The place cannot be used as it is: told at the start, and nothing is tried again."""


class Taken(Refused):
    """Another run lies there."""


class StoreTaken(StoreError):
    pass


class Shipper:
    """One run on its way. `tend` is called often; whatever fails is tried again later, a little later each time."""

    def __init__(self, run_dir: Path, url: str, *, every_s: float = EVERY_S, spool_bytes: int = SPOOL_BYTES) -> None:
        self.run_dir = run_dir
        self.place: Place = open_place(url)
        self.counters = Counters(self.place.shown)
        self._every_s, self._spool_bytes = every_s, spool_bytes
        self._ranks = MergedRanks(run_dir)
        self._parts: dict[int, RankParts] = {}
        self._told: dict[str, tuple[int, int]] = {}  # files there: size and checksum
        self._cut_s, self._retry_s = -math.inf, 0.0
        self._claimed = False
        self._not_cut: str | None = None  # why rows are still in the trace
        self._silent = True  # since longer than every_s, or not heard at all
        self._pause_s = FIRST_PAUSE_S
        self._dice = random.Random()
        self._take_up()

    def _take_up(self) -> None:
        """Goes on from where another viewer was."""
        before = read_counters(self.run_dir)
        if before is not None and before.get("to") == self.counters.to:
            for name in ("parts", "bytes", "failures"):
                setattr(self.counters, name, int(before.get(name) or 0))

    def begin(self) -> None:
        """Says who we are. Raises Refused where nothing can ever be put, or lies what is another run's; a store that
        does not answer is no reason."""
        try:
            self._claim()
        except StoreTaken as error:
            raise Taken(str(error)) from error
        except (StoreDenied, StoreNotFound, TraceError) as error:
            raise Refused(str(error)) from error
        except StoreError as error:
            self._failed(error)

    def _claim(self) -> None:
        """Before anything is put: what lies there is never written over."""
        if self._claimed:
            return
        there = told_there(self.place)
        if there is not None and not self._is_ours(there):
            raise StoreTaken(f"{self.place.shown} holds the run {there.get('run')} already; choose another place")
        self._ship_page(first=there is None and self._ranks.run.settings.get("ship_first") is not False)
        self._claimed = True

    def _is_ours(self, there: dict[str, Any]) -> bool:
        """Ours, or of processes that were launched with ours: those are many, begin together, and ask nobody."""
        run, launch = self._ranks.run, there.get("launch")
        if there.get("run") == run.id:
            return True
        mine = self._launch()
        if not isinstance(launch, dict) or mine is None or launch.get("key") != mine["key"]:
            return False
        return abs(_time_of(launch.get("started")) - _time_of(run.started)) < LAUNCH_S

    def _launch(self) -> dict[str, Any] | None:
        run = self._ranks.run
        key = run.settings.get("ship_launch")
        return {"key": key, "started": run.started} if isinstance(key, str) else None

    def tend(self, *, hurry: bool = False) -> None:
        """Cuts what is due into parts and ships what waits, unless the last failure was a moment ago."""
        now = time.monotonic()
        due = hurry or now - self._cut_s >= self._every_s
        self._cut(least_bytes=0 if due else PART_BYTES)
        if due:
            self._cut_s, self._silent = now, True
        if now >= self._retry_s:
            self._ship_all()
        else:
            self._count()

    def finish(self, *, seconds: float, pause: Callable[[float], None] = time.sleep) -> bool:
        """Ships the rest, in this time; False where it did not suffice: the spool stays, and `finish` can go on."""
        until = time.monotonic() + seconds
        while True:
            whole = self._cut(least_bytes=0)
            if self._ship_all(last=whole) and whole:
                break
            left = until - time.monotonic()
            if left <= 0:
                return False
            pause(min(max(self._retry_s - time.monotonic(), 0.05), left))
        self.counters.complete = True
        self._count()
        shutil.rmtree(self.run_dir / SPOOL, ignore_errors=True)
        return True

    # -- cutting -------------------------------------------------------------------------------------------------------

    def _cut(self, *, least_bytes: int) -> bool:
        """False where something had to be left in the trace: the spool is full, or the disk."""
        whole = True
        try:
            self._ranks.refresh()
            for rank in self._ranks.views:
                if rank not in self._parts:
                    self._parts[rank] = RankParts(self._ranks, rank, self._local_manifest(rank))
                whole &= self._cut_rank(self._parts[rank], least_bytes)
        except (OSError, TraceError) as error:  # a full disk, a file deleted meanwhile: the rows are in the trace
            self._not_cut = self.counters.error = f"cannot make parts: {error}"
            self._count()
            return False
        self._not_cut = None
        return whole

    def _cut_rank(self, parts: RankParts, least_bytes: int) -> bool:
        if self._waiting()[1] > self._spool_bytes:
            return False
        for table, part, data in parts.take(least_bytes=least_bytes):
            self._put_aside(part.file, data)
            parts.manifest.add(table, part)
            self._put_aside(parts.manifest.name, parts.manifest.encoded())
            if self._waiting()[1] > self._spool_bytes:
                return False
        return True

    def _local_manifest(self, rank: int) -> Manifest | None:
        path = self.run_dir / SPOOL / rank_folder(rank) / MANIFEST_FILE
        try:
            return manifest_of(path.read_bytes(), str(path))
        except (OSError, TraceError):
            return None

    def _put_aside(self, name: str, data: bytes) -> None:
        path = self.run_dir / SPOOL / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}")
        draft.write_bytes(data)
        draft.replace(path)

    def _waiting(self) -> tuple[int, int]:
        """Parts in the spool, and their bytes."""
        sizes = [path.stat().st_size for path in (self.run_dir / SPOOL).glob("rank-*/*.parquet")]
        return len(sizes), sum(sizes)

    # -- shipping ------------------------------------------------------------------------------------------------------

    def _ship_all(self, *, last: bool = False) -> bool:
        """True where everything that waits has arrived."""
        try:
            self._claim()
            changed = False
            for parts in self._parts.values():
                changed |= self._ship_rank(parts.manifest, last=last)
            if changed or last:
                self._ship_page(last=last)
        except StoreError as error:
            self._failed(error)
            return False
        except (OSError, TraceError) as error:
            what = "the spool cannot be read" if isinstance(error, OSError) else "what lies there cannot be used"
            self._failed(StoreError(f"{what}: {error}"))
            return False
        self._silent = False
        self._pause_s, self._retry_s, self.counters.error = FIRST_PAUSE_S, 0.0, self._not_cut
        self._count()
        return True

    def _ship_rank(self, manifest: Manifest, *, last: bool) -> bool:
        spool = self.run_dir / SPOOL
        waiting = [part for _, part in manifest.parts() if (spool / part.file).exists()]
        for part in waiting:
            data = (spool / part.file).read_bytes()
            self.place.write(part.file, data)
            (spool / part.file).unlink()
            self.counters.parts += 1
            self.counters.bytes += len(data)
        if waiting or last or self._silent:
            self._ship_manifest(manifest, last=last)
        return bool(waiting)

    def _ship_manifest(self, manifest: Manifest, *, last: bool) -> None:
        """Only what has arrived is told of."""
        spool = self.run_dir / SPOOL
        there = {
            table: [part for part in parts if not (spool / part.file).exists()]
            for table, parts in manifest.tables.items()
        }
        folder = rank_folder(manifest.rank)
        files = list(self._ship_files(other_files(self.run_dir / folder)[0], f"{folder}/")) if last else []
        told = replace(manifest, tables=there, files=files, ended=last, written_s=time.time(), every_s=self._every_s)
        self.place.write(manifest.name, told.encoded())

    def _ship_page(self, *, first: bool = False, last: bool = False) -> None:
        """What belongs to the run as a whole is the business of whoever has its first rank, or will have; in the end
        all of it once more, in case somebody took himself for that."""
        self._ranks.refresh()
        if 0 not in self._ranks.views and not first:
            return
        kept, left = other_files(self.run_dir)
        if last:
            self._told.clear()
        files = list(self._ship_files(kept, ""))
        ranks = {*range(max(1, self._ranks.run.world_size)), *self._ranks.views}
        page = page_of(self._ranks.run.id, ranks, files, left, self._launch())
        mark = stored(DATASET_FILE, page)
        if self._told.get(DATASET_FILE) != (mark.size_bytes, mark.crc32):
            self.place.write(DATASET_FILE, page)
            self._told[DATASET_FILE] = (mark.size_bytes, mark.crc32)

    def _ship_files(self, paths: Iterable[Path], prefix: str) -> Iterable[Stored]:
        for path in paths:
            data = path.read_bytes()
            one = stored(f"{prefix}{path.name}", data)
            if self._told.get(one.file) != (one.size_bytes, one.crc32):
                self.place.write(one.file, data)
                self._told[one.file] = (one.size_bytes, one.crc32)
            yield one

    def _failed(self, error: StoreError) -> None:
        self.counters.failures += 1
        self.counters.error = str(error)
        self._retry_s = time.monotonic() + self._pause_s * self._dice.uniform(0.75, 1.25)  # ranks not all at once
        self._pause_s = min(self._pause_s * 2, max(LEAST_LONGEST_S, min(self._every_s, LONGEST_PAUSE_S)))
        self._count()

    def _count(self) -> None:
        self.counters.waiting_parts, self.counters.waiting_bytes = self._waiting()
        self.counters.lost_rows = sum(sum(parts.manifest.lost.values()) for parts in self._parts.values())
        self.counters.write(self.run_dir)
