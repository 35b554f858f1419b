"""Finds and opens a trace: a run directory, live or finished, or a zip of one."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from neuraldbg.errors import TraceDamaged, TraceNotFound
from neuraldbg.trace.query import Trace
from neuraldbg.trace.rundir import RUN_FILE, RUNS_FOLDER, rank_directories


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Opens a run directory (or a `.zip` of one) for reading; imports no framework and changes nothing in it."""
    target = Path(path)
    if not target.exists():
        raise TraceNotFound(f"no run at {target}{_latest_hint(target.parent)}")
    if target.is_file():
        if target.name == RUN_FILE:
            return Trace(target.parent)
        return _open_zip(target)
    return Trace(_run_directory(target))


def _run_directory(folder: Path) -> Path:
    if _is_run(folder):
        return folder
    if folder.name.startswith("rank-") and _is_run(folder.parent):
        return folder.parent
    raise TraceNotFound(f"{folder} holds no {RUN_FILE} and no rank-* folder, so it is no run{_latest_hint(folder)}")


def _is_run(folder: Path) -> bool:
    try:
        return (folder / RUN_FILE).is_file() or bool(rank_directories(folder))
    except OSError as error:
        raise TraceNotFound(f"cannot look into {folder}: {error.strerror}; is it yours to read?") from error


def _latest_hint(folder: Path) -> str:
    for place in (folder, folder / RUNS_FOLDER, Path(RUNS_FOLDER)):
        try:
            runs = [entry for entry in place.iterdir() if (entry / RUN_FILE).is_file()]
        except OSError:
            continue
        if runs:
            return f"; the latest one is {max(runs, key=lambda run: run.name)}"
    return "; `neural debug train.py` records one"


def _open_zip(archive: Path) -> Trace:
    folder = tempfile.mkdtemp(prefix="neuraldbg-")
    try:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        places = [Path(folder), *sorted(entry for entry in Path(folder).iterdir() if entry.is_dir())]
        run = next((place for place in places if not place.name.startswith("rank-") and _is_run(place)), None)
        if run is None:
            raise TraceNotFound(f"{archive} holds no run: zip a whole run directory, with its {RUN_FILE}")
        trace = Trace(run)
        trace.remove_with(folder)
        return trace
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise TraceDamaged(
            f"{archive} is neither a run directory nor a readable zip ({error}); copy it again"
        ) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
