"""Processes that we start, watch by the file they write to, and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

from neuraldbg.capture.attachment import package_parent

LOOK_EVERY_S = 0.05
PATIENCE_S = 30.0  # of one that was asked to end
Found = TypeVar("Found")


class Child:
    """A process in a session of its own: Ctrl-C at our terminal is not meant for it. What it says goes to `log`."""

    def __init__(self, command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # a token may stand in it
        self._log, self._from = log, os.fstat(descriptor).st_size
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        finally:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def said(self) -> str:
        try:
            with self._log.open("rb") as file:
                return _since(file, self._from)
        except OSError:
            return ""

    def last_words(self) -> str:
        """In one line, what it said last."""
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        ended = "" if self.exit_code is None else f" and ended with {self.exit_code}"
        return lines[-1][:500] if lines else f"it said nothing{ended}"

    def wait_for(self, seen: Callable[[], Found | None], seconds: float) -> Found | None:
        """What `seen` gives once it gives something; None when the process or the time has ended before."""
        until = time.monotonic() + seconds
        while True:
            ended = self.exit_code is not None
            found = seen()
            if found is not None or ended or time.monotonic() > until:
                return found
            time.sleep(LOOK_EVERY_S)

    def end(self) -> None:
        """Asks it to end; what does not is killed, with all that it has started. One that is over is left alone: its
        number may be another's by now."""
        self._process.terminate()
        if self._process.returncode is not None:
            return
        until = time.monotonic() + PATIENCE_S
        while not self._over() and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL) if hasattr(os, "killpg") else self._process.kill()
        self._process.wait()

    def _over(self) -> bool:
        """Without taking note of it: until then its number, and that of its group, are nobody else's."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13, Windows
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _since(file: IO[bytes], start: int) -> str:
    file.seek(start)
    return file.read().decode("utf-8", "replace")


def own_command(*words: str) -> list[str]:
    """A command of ours, by the Python that runs this."""
    return [sys.executable, "-m", "neuraldbg", *words]


def own_environment() -> dict[str, str]:
    """In which a child finds the same package."""
    search = [package_parent(), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, search)), "PYTHONUNBUFFERED": "1"}
