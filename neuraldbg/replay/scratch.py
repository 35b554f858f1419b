"""A copy of the working directory for an experiment, and the proof afterwards that the original was left alone."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neuraldbg.trace.rundir import RUN_FILE

LEFT_OUT = frozenset({"neuraldbg_runs", ".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox"})
LARGE = 1_000_000  # bytes: such a file is linked, not copied
MANY = 500  # files: a folder of data, without Python in it, is linked as a whole
LEVELS = 2  # folders above the working directory whose content a script finds as well
SLACK_S = 1.0  # the start of a run is known to the second
Seen = dict[str, tuple[int, int]]


@contextmanager
def scratch_copy(origin: Path, since: float = math.inf) -> Iterator[Path]:
    """A folder with the same content that may be written to, at the same path below a new root; it is gone afterwards.
    What was written `since` a time is likely to be written again, perhaps below Python, where a link would lead to the
    original: that is copied, however large."""
    place = Path(tempfile.mkdtemp(prefix="neuraldbg-whatif-"))
    try:
        work = place / origin.absolute().relative_to(origin.absolute().anchor)
        work.mkdir(parents=True, exist_ok=True)
        _link_beside(origin.absolute(), work, since - SLACK_S)
        _fill(origin, work, since - SLACK_S)
        yield work
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _link_beside(origin: Path, work: Path, since: float) -> None:
    """What lies beside the folder, and beside the one above it: a script may read `../data`."""
    for folder, copy in list(zip((origin, *origin.parents), (work, *work.parents), strict=False))[:LEVELS]:
        try:
            entries = [entry for entry in os.scandir(folder.parent) if entry.name != folder.name]
        except OSError:
            return
        if folder.parent == folder or len(entries) > MANY:
            return
        for entry in entries:
            with suppress(OSError):
                written = entry.is_file() and entry.stat().st_mtime >= since
                _take(Path(entry.path), copy.parent / entry.name, link=not written)


def _fill(source: Path, target: Path, since: float) -> None:
    for entry in os.scandir(source):
        made = target / entry.name
        if entry.name in LEFT_OUT or _is_run(entry.path):
            continue
        if entry.is_symlink():
            made.symlink_to(os.path.realpath(entry.path))
        elif entry.is_dir():
            if _is_linked_whole(Path(entry.path), since):
                made.symlink_to(entry.path, target_is_directory=True)
            else:
                made.mkdir()
                _fill(Path(entry.path), made, since)
        elif entry.is_file():
            state = entry.stat()
            _take(Path(entry.path), made, link=state.st_size > LARGE and state.st_mtime < since)


def _is_run(folder: str) -> bool:
    """A run of ours that somebody has put elsewhere (--out)."""
    return os.path.isfile(os.path.join(folder, RUN_FILE)) and os.path.isdir(os.path.join(folder, "rank-00000"))


def _take(source: Path, made: Path, *, link: bool) -> None:
    if link:
        made.symlink_to(source)
        return
    try:
        shutil.copy2(source, made)
    except OSError:
        made.symlink_to(source)  # it may not be read: nor could the script


def _is_linked_whole(folder: Path, since: float) -> bool:
    """An environment, or a folder of data with very many files, none of them written since then."""
    if (folder / "pyvenv.cfg").is_file():
        return True
    number = 0
    for inner, _, files in os.walk(folder):
        if any(name.endswith(".py") or _written(os.path.join(inner, name)) >= since for name in files):
            return False
        number += len(files)
    return number > MANY


def _written(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def look(origin: Path) -> Seen:
    """Size and time of every file of a folder, less what is ours."""
    found: Seen = {}
    for folder, inner, files in os.walk(origin):
        inner[:] = [name for name in inner if name not in LEFT_OUT and not _is_run(os.path.join(folder, name))]
        for name in files:
            path = os.path.join(folder, name)
            try:
                state = os.lstat(path)
            except OSError:
                continue
            found[os.path.relpath(path, origin)] = (state.st_size, state.st_mtime_ns)
    return found


def differences(before: Seen, after: Seen) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def written_since(origin: Path, began: float, ended: float) -> list[str]:
    """Files of a folder that were last written in this span of time."""
    first, last = began - SLACK_S, ended + SLACK_S
    return sorted(path for path, (_, mtime) in look(origin).items() if first <= mtime / 1e9 <= last)
