"""One arm of the comparison: a process that trains, bare or watched, and takes its steps when it is told to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

HERE = Path(__file__).parent
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Arm:
    """`neural` = options of `neural debug`, None = not under it; `peer` = a tool of peers.py; `python` = its venv."""

    name: str
    covers: str
    neural: tuple[str, ...] | None = None
    peer: str | None = None
    python: str = sys.executable


BARE = Arm("bare", "nothing: a process that never imported a debugger")
CONTROL = Arm("control", "nothing: a second bare process")
OURS = (
    Arm("default", "everything, under a budget of 1 %", ("--budget", "1%")),
    Arm(
        "full",
        "every step: time, 9 statistics of outputs, their gradients, parameters, gradients, updates; all evidence",
        ("--budget", "full"),
    ),
    Arm("off", "the ledger of calls, loss and facts for the diagnosis; no statistics", ("--budget", "off")),
)


class Trainer:
    """A started arm. Its CPU time is read at the end of every turn, so that what its threads do while others have
    theirs counts too."""

    def __init__(self, arm: Arm, program: str) -> None:
        self.arm = arm
        self._folder = tempfile.TemporaryDirectory(prefix="neuraldbg-overhead-")
        address = os.path.join(self._folder.name, "line")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(address)
        listening.listen(1)
        listening.settimeout(PATIENCE_S)
        self._log = open(os.path.join(self._folder.name, "log"), "wb")  # noqa: SIM115
        self._process = subprocess.Popen(
            self._command(program, address),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=self._environment(),
            cwd=self._folder.name,
        )
        try:
            line, _ = listening.accept()
        except TimeoutError:
            raise RuntimeError(f"{arm.name} did not start:\n{self.said()}") from None
        finally:
            listening.close()
        self._talk = line.makefile("rw", buffering=1)
        line.close()
        self.pid = int(self._talk.readline())
        self._cpu_before, self._wall_before, self.peak_kb = self._turn(0)

    def _command(self, program: str, address: str) -> list[str]:
        script = [str(HERE / "programs.py"), program, address, *([self.arm.peer] if self.arm.peer else [])]
        if self.arm.neural is None:
            return [self.arm.python, *script]
        out = os.path.join(self._folder.name, "run")
        return [self.arm.python, "-m", "neuraldbg", "debug", "--headless", "--out", out, *self.arm.neural, *script]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NEURALDBG")}
        root = str(HERE.parent.parent)
        return {**kept, "PYTHONPATH": root if self.arm.neural is not None else "", "WANDB_MODE": "offline"}

    def _turn(self, steps: int) -> tuple[int, int, int]:
        self._talk.write(f"{steps}\n")
        answer = self._talk.readline().split()
        if len(answer) != 3:
            raise RuntimeError(f"{self.arm.name} ended early:\n{self.said()}")
        return int(answer[0]), int(answer[1]), int(answer[2])

    def steps(self, steps: int) -> int:
        """CPU nanoseconds of the process since the end of its last turn."""
        cpu, _, self.peak_kb = self._turn(steps)
        took, self._cpu_before = cpu - self._cpu_before, cpu
        return took

    def unique_bytes(self) -> int:
        """USS: what would come back if the process went."""
        return int(psutil.Process(self.pid).memory_full_info().uss)

    def viewer_cpu_s(self) -> float | None:
        """CPU time of the viewer so far; None where there is none."""
        with suppress(psutil.Error):
            times = [child.cpu_times() for child in psutil.Process(self.pid).children(recursive=True)]
            return sum(one.user + one.system for one in times) if times else None
        return None

    def said(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text(errors="replace")[-3000:]

    def close(self) -> None:
        self._talk.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()
        self._folder.cleanup()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.close()
