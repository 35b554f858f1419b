"""What a run ran, to be run again in a copy of its working directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from neuraldbg.records import RunInfo

NEURAL_FILES = (".neural", ".nr", ".rnr")
NEURAL_TRAINING = "neuraldbg.dsl.train.again"  # run as a module, by its name: this room knows nothing of such files


@dataclass(frozen=True, slots=True)
class Target:
    name: str  # of a file, or of a module
    args: tuple[str, ...]
    module: bool


def target_of(run: RunInfo, scratch: Path) -> Target:
    """Absolute paths into the working directory become those of the copy; what lies outside of it stays where it is."""
    if run.command[:1] == ("-m",):
        return Target(run.command[1], run.command[2:], module=True)
    name, *args = run.command
    origin = Path(run.cwd or ".")
    whole = Path(os.path.normpath(origin / name))
    if not whole.is_relative_to(origin):
        name = str(whole)  # from the copy, ../train.py would be another file
    elif os.path.isabs(name):
        name = str(scratch / whole.relative_to(origin))
    if name.endswith(NEURAL_FILES):
        return Target(NEURAL_TRAINING, (name, *args), module=True)
    return Target(name, tuple(args), module=False)
