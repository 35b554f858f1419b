"""`neural whatif` of a run that is over, started from the page: a process of its own, one at a time, never unasked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from neuraldbg.errors import NotNow, UsageError

SAID = 40  # lines that are kept
PLAN_S = 60.0
PATIENCE_S = 8.0
PREFIX = "neuraldbg: "
NOT_IDENTICAL = 6  # the exit code of a replay that is not


@dataclass
class Trial:
    """One experiment, under way or over."""

    process: subprocess.Popen[str]
    job: str
    started: str
    said: deque[str] = field(default_factory=lambda: deque(maxlen=SAID))
    tried: int = 0
    stopped: bool = False
    listener: threading.Thread | None = None

    def listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            text = line.strip().removeprefix(PREFIX)
            if text:
                self.said.append(text)
                self.tried += text.startswith("trying ")
        self.process.stderr.close()
        self.process.wait()

    def told(self) -> dict[str, Any]:
        code = self.process.poll()
        ended = "stopped" if self.stopped else "done" if code == 0 else "failed"
        lines = list(self.said)
        return {
            "job": self.job,
            "state": "running" if code is None else ended,
            "started": self.started,
            "doing": lines[-1] if lines and code is None else None,
            "runs": self.tried,  # of the script, begun so far
            "said": lines,
            "error": (lines[-1] if lines else f"exit code {code}") if code and not self.stopped else None,
        }


class Trying:
    """The experiments on one run."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._trial: Trial | None = None
        self._count = 0
        self._making = threading.Lock()

    def told(self) -> dict[str, Any] | None:
        """The last one; None where none was started here."""
        return None if self._trial is None else self._trial.told()

    def plan(self, options: Sequence[str]) -> dict[str, Any]:
        """What would be run and tried, and what the first run wrote. Runs nothing of the user's."""
        return _answer(["whatif", str(self._run.absolute()), "--dry-run", "--json", *options], PLAN_S)

    def past(self, layer: str, step: int, what: str, part: str, seconds: float) -> dict[str, Any]:
        """A tensor of a recorded step, made again by a process of its own; one at a time."""
        if not self._making.acquire(blocking=False):
            raise NotNow("a step of this run is being made again already; wait for it")
        try:
            words = ["replay", str(self._run.absolute()), "--json", "--yes", f"--step={step}", f"--timeout={seconds:g}"]
            words += [f"--layer={layer}", f"--what={what}", f"--slice={part}"]
            return _answer(words, seconds + PATIENCE_S)
        finally:
            self._making.release()

    def start(self, options: Sequence[str]) -> dict[str, Any]:
        with self._lock:
            if self._trial is not None and self._trial.process.poll() is None:
                raise NotNow("an experiment on this run is under way; wait for it, or stop it")
            words = ["whatif", str(self._run.absolute()), "--yes", *options]
            process = subprocess.Popen(
                _command(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._count += 1
            began = datetime.now(timezone.utc).isoformat(timespec="seconds")
            self._trial = trial = Trial(process, f"{self._run.name}:{self._count}", began)
            trial.listener = threading.Thread(target=trial.listen, name="neuraldbg-whatif", daemon=True)
            trial.listener.start()
        return trial.told()

    def stop(self) -> dict[str, Any] | None:
        """As Ctrl-C would: it ends the script that it runs."""
        trial = self._trial
        if trial is None:
            return None
        if trial.process.poll() is None:
            trial.stopped = True
            for signum in (signal.SIGINT, signal.SIGKILL):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(trial.process.pid, signum)
                with suppress(subprocess.TimeoutExpired):
                    trial.process.wait(PATIENCE_S)
                    break
        if trial.listener is not None:
            trial.listener.join(PATIENCE_S)
        return trial.told()


def _command(words: Sequence[str]) -> list[str]:
    code = f"import sys; sys.path[:] = {sys.path!r}; from neuraldbg.surfaces.cli import main; main(sys.argv[1:])"
    return [sys.executable, "-c", code, *words]


def _answer(words: Sequence[str], seconds: float) -> dict[str, Any]:
    """What a command says in JSON, in time."""
    try:
        done = subprocess.run(
            _command(words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
        if done.returncode not in (0, NOT_IDENTICAL):
            raise UsageError(_last(done.stderr) or f"it ended with exit code {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"no answer: {error}") from None
    return found


def _last(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ").removeprefix(PREFIX) if lines else None
