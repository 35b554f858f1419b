"""Launchers: programs that start the real training several times (torchrun, accelerate launch).

A launcher runs in this process as it would alone. The Python programs that it starts as ranks are started through us,
with the same interpreter, options, environment and arguments; whatever else it starts is left alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from neuraldbg.capture.attachment import package_parent
from neuraldbg.capture.place import place_of
from neuraldbg.capture.torch.patches import Patches
from neuraldbg.errors import ScriptNotFound
from neuraldbg.script import Program, load_module, load_script
from neuraldbg.trace.rundir import write_launched

MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
COMMANDS = {"torchrun": "torch.distributed.run", "accelerate": None}  # the module behind a command, where it is one
_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?(\.exe)?", re.IGNORECASE)
_WITH_VALUE = ("-X", "-W")  # options of the interpreter that take the next word
_CODE = "import sys; sys.path.append({parent!r}); from neuraldbg.ranks.member import main; main({run!r})"
LAST_WORDS_S = 2.0  # a launcher that has failed may leave before the last of its children


def is_launcher(target: str, *, module: bool) -> bool:
    if module:
        return target in MODULES
    return os.path.basename(target) in COMMANDS and not Path(target).is_dir()


def launcher_program(target: str, args: tuple[str, ...], *, module: bool) -> Program:
    """The launcher as the main program of this process."""
    if module:
        return load_module(target, args)
    name = os.path.basename(target)
    behind = COMMANDS[name]
    if behind is not None:
        return load_module(behind, args)
    found = shutil.which(target)
    if found is None:
        raise ScriptNotFound(f"can't run {target!r}: no such command; is it installed beside {sys.executable}?")
    return load_script(found, args)


def script_of(args: Sequence[str]) -> str | None:
    """The training script among a launcher's words, for the name of the run."""
    return next((word for word in args if word.endswith(".py")), None)


def as_member(words: Sequence[str], environ: Mapping[str, str], run_dir: Path) -> list[str] | None:
    """The command that runs the same program as a rank of the run; None for a command that is none of ours: no Python,
    no script or module, or no rank."""
    if not words or not _PYTHON.fullmatch(os.path.basename(words[0])):
        return None
    if place_of(environ) is None and "ACCELERATE_MIXED_PRECISION" not in environ:
        return None
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        at += 2 if words[at] in _WITH_VALUE else 1
    target = words[at : at + 2]
    if not target or target[0] in ("-c", "-") or target == ["-m", "neuraldbg"]:
        return None
    code = _CODE.format(parent=package_parent(), run=str(run_dir))
    return [*words[:at], "-c", code, *words[at:]]


class Launcher:
    """Stands where the capture of a training process would: in here nothing trains."""

    capture = None

    def __init__(self, run_dir: Path, *, node: int | None = None) -> None:
        self._run_dir = run_dir
        self._node = node  # another than the one that made the run
        self._patches = Patches()
        self._children: list[tuple[int | None, subprocess.Popen[Any]]] = []

    def start(self) -> None:
        original = subprocess.Popen.__init__
        run_dir, children = self._run_dir, self._children

        @wraps(original)
        def __init__(process: subprocess.Popen[Any], args: Any, *rest: Any, **options: Any) -> None:
            environ = options.get("env") or os.environ
            told = as_member([str(word) for word in args], environ, run_dir) if isinstance(args, list | tuple) else None
            original(process, args if told is None else told, *rest, **options)
            if told is not None:
                place = place_of(environ)
                children.append((None if place is None else place.rank, process))

        self._patches.replace(subprocess.Popen, "__init__", __init__)

    def fact(self, type: str, **fields: Any) -> None:
        """Nothing is recorded of a launcher but how it ended."""

    def close(self, **end: Any) -> None:
        self._patches.close()
        until = time.monotonic() + LAST_WORDS_S
        while time.monotonic() < until and any(process.poll() is None for _, process in self._children):
            time.sleep(0.05)
        codes = [[rank, process.poll()] for rank, process in self._children]
        error = str(end.get("error") or "").partition("\n")[0].rstrip(": ") or None  # torchrun's is a page long
        if error is not None and "SignalException" in error and error.endswith("signal: 2"):
            error = f"KeyboardInterrupt: {error}"  # torchrun's own word for Ctrl-C
        write_launched(self._run_dir, {**end, "error": error, "children": codes}, node=self._node)
