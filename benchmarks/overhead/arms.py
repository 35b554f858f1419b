"""One arm of the comparison: a process that trains, bare or watched, and takes its steps when it is told to."""

from __future__ import annotations

import os
import signal
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
Cores = frozenset[int] | None  # that a process may run on; None = all


@dataclass(frozen=True)
class Arm:
    """`neural` = options of `neural debug`, or of another `command`; None = not under it; `peer` = a tool of peers.py;
    `python` = its venv."""

    name: str
    covers: str
    neural: tuple[str, ...] | None = None
    command: tuple[str, ...] = ("debug", "--headless")
    peer: str | None = None
    python: str = sys.executable


BARE = Arm("bare", "nothing: a process that never imported a debugger")
CONTROL = Arm("control", "nothing: a second bare process")
OURS = (
    Arm(
        "default",
        "everything, under a budget of 1 %, a quarter of it for recording the first updates and some later ones",
        ("--budget", "1%"),
    ),
    Arm(
        "full",
        "every step: time, 9 statistics of outputs, their gradients, parameters, gradients, updates; some evidence",
        ("--budget", "full"),
    ),
    Arm(
        "record",
        "everything, under a budget of 1 %, and what making any step again takes",
        ("--budget", "1%", "--record", "full"),
    ),
    Arm("unrecorded", "everything, under a budget of 1 %, nothing recorded", ("--budget", "1%", "--record", "off")),
    Arm("off", "the ledger of calls, loss and facts for the diagnosis; no statistics", ("--budget", "off")),
)


COVERS = {  # of the peers
    "naive": "4 statistics of outputs, their gradients and parameters, by hand",
    "detect_anomaly": "NaN in backward only",
    "profiler": "times of operators; no values, and what comes after the step is not counted",
    "wandb": "histograms of parameters and gradients only (offline)",
    "tensorboard": "histograms of parameters and gradients only",
    "underflow_overflow": "largest and smallest magnitude of weights, inputs and outputs; no gradients",
    "neuraldbg_1_3_2": "transitions of norms (another project's, of the same name)",
}
IN_TORCH = ("naive", "detect_anomaly", "profiler")


def peers(python: str | None, old_python: str | None) -> list[Arm]:
    """Those that are installed where we were told to look."""
    found = [Arm(name, COVERS[name], peer=name) for name in IN_TORCH]
    if python:
        found += [
            Arm(name, COVERS[name], peer=name, python=python) for name in ("wandb", "tensorboard", "underflow_overflow")
        ]
    if old_python:
        found.append(Arm("neuraldbg_1_3_2", COVERS["neuraldbg_1_3_2"], peer="neuraldbg_1_3_2", python=old_python))
    return found


class Trainer:
    """A started arm. Between its turns the whole process is stopped: threads that work by the clock (one writes the
    trace, one reads the machine's resources) would else have all the others' time for it."""

    def __init__(self, arm: Arm, program: str, cores: Cores = None) -> None:
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
        if cores is not None:
            self._keep_to(cores)
        self._cpu_before, self._wall_before, self.peak_kb = self._turn(0)

    def _keep_to(self, cores: frozenset[int]) -> None:
        """Only now: a process that sees one core while it imports NumPy has no thread of OpenBLAS, and without any
        second thread libc and torch take no locks. A bare step is 2 % faster then than anywhere else."""
        everyone = psutil.Process(self.pid)
        for process in (everyone, *everyone.children(recursive=True)):
            for thread in process.threads():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, cores)

    def _command(self, program: str, address: str) -> list[str]:
        script = [str(HERE / "programs.py"), program, address, *([self.arm.peer] if self.arm.peer else [])]
        if self.arm.neural is None:
            return [self.arm.python, *script]
        out = os.path.join(self._folder.name, "run")
        return [self.arm.python, "-m", "neuraldbg", *self.arm.command, "--out", out, *self.arm.neural, *script]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NEURALDBG")}
        root = str(HERE.parent.parent)
        return {**kept, "PYTHONPATH": root if self.arm.neural is not None else "", "WANDB_MODE": "offline"}

    def _turn(self, steps: int) -> tuple[int, int, int]:
        os.kill(self.pid, signal.SIGCONT)
        self._talk.write(f"{steps}\n")
        answer = self._talk.readline().split()
        os.kill(self.pid, signal.SIGSTOP)
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
        """Not waited for: experiments and the verdict come after the run and are no part of the comparison."""
        with suppress(psutil.Error):
            for child in psutil.Process(self.pid).children(recursive=True):
                child.kill()
        self._process.kill()
        self._process.wait()
        self._talk.close()
        self._log.close()
        self._folder.cleanup()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.close()
