"""Before a user's script is run again: whether it can be, and whether the user wants it."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuraldbg.errors import UsageError
from neuraldbg.surfaces.cli.target import DSL_SUFFIXES

if TYPE_CHECKING:
    from neuraldbg.records import RunInfo


def check(run: RunInfo, run_dir: Path) -> None:
    if run_dir.is_file():
        raise UsageError(f"{run_dir} is a packed run; unpack it where its script is, then ask again")
    if not run.command or not run.script:
        raise UsageError(f"{run_dir.name} was not started by `neural debug`: there is no script to run again")
    if run.script.endswith(DSL_SUFFIXES) and run.backend not in (None, "pytorch"):
        raise UsageError(f"{run_dir.name} ran on {run.backend}; only what ran on PyTorch is run again")
    if run.cwd is None or not Path(run.cwd).is_dir():
        raise UsageError(f"the working directory of the run is gone: {run.cwd}")
    if run.command[0] != "-m" and not (Path(run.cwd) / run.script).is_file():
        raise UsageError(f"the script of the run is gone: {Path(run.cwd) / run.script}")


def wrote_before(run: RunInfo, run_dir: Path) -> list[str]:
    """Files of the working directory that the run itself wrote, until the last row of its trace."""
    from neuraldbg.replay.scratch import written_since

    began, origin = datetime.fromisoformat(run.started).timestamp(), Path(run.cwd or ".").resolve()
    rows = [file.stat().st_mtime for file in run_dir.glob("rank-*/*") if file.is_file()]
    ended = max([began + (run.duration_s or 0.0), *rows])
    ours = run_dir.resolve()
    found = written_since(origin, began, ended)
    return [name for name in found if name != run.script and not (origin / name).is_relative_to(ours)]


def confirm(run: RunInfo, run_dir: Path, *, times: str, yes: bool) -> None:
    """The script is run again: whoever is at the terminal sees what it wrote the first time, and agrees."""
    if yes or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    click.echo(f"This runs {' '.join(run.command)} {times}, in a copy of {run.cwd}.")
    wrote = wrote_before(run, run_dir)
    if wrote:
        click.echo(f"The first time it wrote: {', '.join(wrote[:8])}{' ...' if len(wrote) > 8 else ''}")
    click.echo("Files go to the copy, trackers are off; the network and other places on disk are not held.")
    click.confirm("Go on?", default=True, abort=True)


def tell_if_changed(run: RunInfo) -> None:
    began = datetime.fromisoformat(run.started).timestamp()
    script = Path(run.cwd or ".") / (run.script or "")
    if script.is_file() and script.stat().st_mtime > began + 1.0:  # the start is known to the second
        click.echo(f"neuraldbg: {run.script} was changed after the run; it is tried as it is now", err=True)
