"""Runs fetched from elsewhere, kept on this machine within a limit: the ones not looked at for longest go first."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuraldbg.errors import RunDirectoryError, TraceDamaged
from neuraldbg.store.choosing import NOT_AT_ALL, WHOLE, Choice, Known, choose
from neuraldbg.store.heard import write_heard
from neuraldbg.store.importing import RankWriter, write_files
from neuraldbg.store.layout import rank_folder
from neuraldbg.store.manifest import DataSet, Part, open_dataset
from neuraldbg.store.places import Place, open_place
from neuraldbg.trace.rundir import RUN_FILE, write_atomically

HAVE_FILE: Final = "have.json"
LOCK_FILE: Final = "cache.lock"
TRIES: Final = 4  # a run that is being shipped may replace a page while it is read
PAUSE_S: Final = 0.3


def default_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "neuraldbg"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A run directory on this machine with what a data set held a moment ago."""

    path: Path
    ended: bool
    notes: tuple[str, ...]  # what is not there, in words


class RunCache:
    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._root = root / "runs"
        self._limit_bytes = limit_bytes

    def fetch(self, url: str | Path) -> Fetched:
        """Brings what is new of a data set; asks only for pages where nothing is."""
        place = open_place(url)
        folder = self._root / hashlib.sha256(f"{place.filesystem.type_name} {place.path}".encode()).hexdigest()[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder / LOCK_FILE):
                return self._fetch(place, folder)
        except OSError as error:
            raise RunDirectoryError(f"cannot keep {place.shown} in {folder}: {error.strerror or error}") from error

    def _fetch(self, place: Place, folder: Path) -> Fetched:
        for attempt in range(TRIES):
            data_set = open_dataset(place)
            choice = choose(data_set, self._limit_bytes, _read_have(folder))
            try:
                run = self._bring(data_set, folder, choice)
                break
            except TraceDamaged:
                if attempt == TRIES - 1:
                    raise
                time.sleep(PAUSE_S)
        self._make_room(keep=folder)
        return Fetched(run, data_set.ended, tuple(_notes(data_set, choice)))

    def _bring(self, data_set: DataSet, folder: Path, choice: Choice) -> Path:
        run = folder / data_set.folder_name
        parts = [(rank, *one) for rank, manifest in data_set.manifests.items() for one in manifest.parts()]
        wanted = {part.file: (part.crc32, choice.every[part.file]) for _, _, part in parts if part.file in choice.every}
        have, old = _read_have(folder), list[Path]()
        if not set(have.items()) <= set(wanted.items()) or not run.is_dir():
            have, old = _what_stays(folder, run, have, wanted)
        _write_have(folder, {})  # until everything below has arrived
        fresh: dict[int, dict[tuple[str, int], list[Part]]] = {}
        for rank, table, part in parts:
            if part.file in wanted and part.file not in have and wanted[part.file][1] != NOT_AT_ALL:
                fresh.setdefault(rank, {}).setdefault((table, wanted[part.file][1]), []).append(part)
        for rank, tables in fresh.items():
            _write_rank(data_set, rank, tables, run / rank_folder(rank))
        for path in old:
            path.unlink()
        write_files(data_set, run)
        _belongs_to_nobody_here(run)
        write_heard(run, data_set)
        _write_have(folder, wanted)
        return run

    def _make_room(self, *, keep: Path) -> None:
        others = [entry for entry in self._root.iterdir() if entry.is_dir() and entry != keep]
        oldest = sorted(
            others, key=lambda entry: (entry / HAVE_FILE).stat().st_mtime if (entry / HAVE_FILE).exists() else 0
        )
        total = _size(keep) + sum(map(_size, others))
        for entry in oldest:
            if total <= self._limit_bytes:
                return
            with _locked(entry / LOCK_FILE, wait=False) as mine:
                if mine:
                    total -= _size(entry)
                    shutil.rmtree(entry, ignore_errors=True)


def _what_stays(folder: Path, run: Path, have: Known, wanted: Known) -> tuple[dict[str, tuple[int, int]], list[Path]]:
    """Of another run nothing. Of the same, where older parts have to go, its facts: who looks at it meanwhile has read
    them, and knows the other files by their names. So the last of those goes when the new ones have theirs."""
    facts = {file: told for file, told in have.items() if "/facts-" in file}
    if not run.is_dir() or not facts or not set(facts.items()) <= set(wanted.items()):
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        return {}, []
    last: list[Path] = []
    for ours in run.glob("rank-*"):
        segments = sorted(ours.glob("segment-*.ndt"))
        last += segments[-1:]
        for path in segments[:-1]:
            path.unlink()
    return facts, last


def _write_rank(data_set: DataSet, rank: int, tables: Mapping[tuple[str, int], list[Part]], folder: Path) -> None:
    whole = {table: parts for (table, apart), parts in tables.items() if apart == WHOLE}
    RankWriter(data_set, data_set.manifests[rank], folder).write(whole)
    for (table, apart), parts in tables.items():
        if apart != WHOLE:
            RankWriter(data_set, data_set.manifests[rank], folder).write_some(table, parts, apart)


def _notes(data_set: DataSet, choice: Choice) -> Iterator[str]:
    if data_set.heard_s is not None:
        ago_s = max(0.0, time.time() - data_set.heard_s[0])
        yield f"it has not ended there; its last sign of life came {ago_s:,.0f} s ago"
    if choice.left_rows:
        yield (
            f"{choice.left_rows:,} rows of older steps were not fetched: they are beyond the limit of the cache "
            "(max_cache); with neural-debugger[duckdb] some of them are"
        )
    if choice.thinned_rows:
        yield (
            f"of older steps only every {choice.apart}th was fetched ({choice.thinned_rows:,} rows are there): all are "
            "beyond the limit of the cache (max_cache)"
        )
    if data_set.missing:
        shown = ", ".join(map(str, data_set.missing[:10])) + (", ..." if len(data_set.missing) > 10 else "")
        yield f"ranks that have put nothing there yet: {shown}"
    lost = sum(sum(manifest.lost.values()) for manifest in data_set.manifests.values())
    if lost:
        yield f"{lost:,} rows were deleted by the disk limit before they were shipped"


def _belongs_to_nobody_here(run: Path) -> None:
    """A process of this machine that has the number of the trainer there is not the trainer."""
    told = json.loads((run / RUN_FILE).read_text(encoding="utf-8")) if (run / RUN_FILE).exists() else {}
    if told.get("pid") is not None:
        write_atomically(run / RUN_FILE, json.dumps({**told, "pid": None}, indent=1))


def _read_have(folder: Path) -> dict[str, tuple[int, int]]:
    """By file its checksum, and of which steps it was taken."""
    try:
        found = json.loads((folder / HAVE_FILE).read_text(encoding="utf-8"))
        return {str(file): (int(crc32), int(every)) for file, (crc32, every) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_have(folder: Path, have: Known) -> None:
    write_atomically(folder / HAVE_FILE, json.dumps(have))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Whether the lock is ours; with `wait` it is, unless the file system knows no locks."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield _lock(descriptor, wait=wait)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


Say = Callable[[str], Any]


def keep_fetching(
    cache: RunCache, url: str, until: Callable[[float], bool], say: Say, *, every_s: float = 10.0
) -> None:
    """Until the data set has ended, or `until`, which waits so long, says so. A failure is told once."""
    from neuraldbg.errors import NeuralDbgError

    silent = False
    while not until(every_s):
        try:
            if cache.fetch(url).ended:
                return
            silent = False
        except NeuralDbgError as error:
            if not silent:
                say(f"no news from {url}: {error}")
            silent = True
