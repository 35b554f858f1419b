"""Run directories: where a run is written, and which folder of it belongs to which process."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from neuraldbg.config.installation import own_version
from neuraldbg.errors import RunDirectoryError
from neuraldbg.records import RunInfo

RUNS_FOLDER: Final = "neuraldbg_runs"
RUN_FILE: Final = "run.json"
FINDINGS_FILE: Final = "findings.jsonl"
LAUNCHED_FILE: Final = "launched.json"  # how a launcher and the processes that it started ended
STACKS_FILE: Final = "stacks.json"  # of ranks that stood still, as a tool from outside saw them
_RANK: Final = re.compile(r"rank-(\d{5,})")


def create_run(info: RunInfo, *, out: Path | None = None) -> Path:
    """Makes the run directory with its `run.json`; `out` names it exactly, else it is `neuraldbg_runs/<id>`."""
    try:
        directory = _claim(Path(out)) if out is not None else _claim_numbered(Path.cwd() / RUNS_FOLDER, info.id)
        write_atomically(directory / RUN_FILE, json.dumps({**asdict(info), "id": directory.name}, indent=1))
    except OSError as error:
        where = error.filename or out or RUNS_FOLDER
        raise RunDirectoryError(
            f"cannot write the run directory {where}: {error.strerror or error}; choose another with --out DIR"
        ) from error
    return directory


def _claim(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise RunDirectoryError(f"{directory} is not empty; choose a new or empty directory with --out DIR")
    return directory.resolve()


def _claim_numbered(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        directory = parent / (name if number == 1 else f"{name}-{number}")
        try:
            directory.mkdir()
        except FileExistsError:
            number += 1
        else:
            return directory.resolve()


def write_atomically(path: Path, text: str) -> None:
    """A reader sees the old file or the whole new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_launched(run_directory: Path, end: Mapping[str, Any], *, node: int | None = None) -> None:
    """Never fails: a launcher ends as it would. `node`: of another node than the one that made the run."""
    name = LAUNCHED_FILE if node is None else f"launched-{node:05d}.json"
    with suppress(OSError):
        write_atomically(run_directory / name, json.dumps(dict(end)))


def read_launched(run_directory: Path) -> dict[str, Any] | None:
    """What a launcher has told of its end, with the children of all nodes; None where there was none, or it goes on."""
    told = _read_object(run_directory / LAUNCHED_FILE)
    if told is None:
        return None
    others = [_read_object(file) or {} for file in sorted(run_directory.glob("launched-*.json"))]
    return {**told, "children": [child for one in (told, *others) for child in one.get("children") or ()]}


def write_stacks(run_directory: Path, told: Mapping[str, Any]) -> None:
    with suppress(OSError):
        write_atomically(run_directory / STACKS_FILE, json.dumps(dict(told), indent=1))


def read_stacks(run_directory: Path) -> dict[str, Any] | None:
    return _read_object(run_directory / STACKS_FILE)


def _read_object(file: Path) -> dict[str, Any] | None:
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def claim_rank(run_directory: Path, rank: int | None) -> tuple[int, Path]:
    """Makes the folder of one process: the given rank, or the next free one. mkdir decides races."""
    number = 0 if rank is None else rank
    while True:
        directory = run_directory / f"rank-{number:05d}"
        try:
            directory.mkdir(parents=True)
        except OSError as error:
            if isinstance(error, FileExistsError) and rank is None and run_directory.is_dir():
                number += 1
                continue
            raise RunDirectoryError(
                f"cannot write into {run_directory}: {error.strerror or error}; choose another with --out DIR"
            ) from error
        return number, directory


def rank_directories(run_directory: Path) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for entry in sorted(run_directory.iterdir()):
        match = _RANK.fullmatch(entry.name)
        if match and entry.is_dir():
            found[int(match[1])] = entry
    return found


def load_run_info(run_directory: Path) -> tuple[RunInfo, str | None]:
    """What `run.json` says, and, where it cannot be read, why not."""
    known = {field.name for field in fields(RunInfo)}
    unknown: dict[str, Any] = {"id": run_directory.name, "command": (), "backend": None, "versions": {}, "started": ""}
    try:
        stored = json.loads((run_directory / RUN_FILE).read_text(encoding="utf-8"))
        given = {key: value for key, value in stored.items() if key in known}
    except FileNotFoundError:
        return RunInfo(**unknown), None  # a TraceWriter of one's own needs none
    except (OSError, ValueError, AttributeError) as error:
        return RunInfo(**unknown), f"{RUN_FILE} cannot be read ({error})"
    merged = {**unknown, **given}
    merged["command"] = tuple(merged["command"] or ())
    return RunInfo(**merged), None


def new_run_info(
    command: tuple[str, ...],
    *,
    script: str | None,
    budget: str,
    settings: Mapping[str, Any] | None = None,
    deterministic: bool = False,
) -> RunInfo:
    """What is known of a run before it starts."""
    stem = (Path(script).stem if script else "").strip("-") or "session"  # a program read from stdin is called "-"
    return RunInfo(
        id=f"{datetime.now():%Y%m%d-%H%M%S}-{stem}",
        command=command,
        backend=None,
        versions={"neuraldbg": own_version(), "python": sys.version.split()[0]},
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        script=script,
        cwd=os.getcwd(),
        pid=os.getpid(),
        budget=budget,
        settings=dict(settings or {}),
        deterministic=deterministic,
    )
