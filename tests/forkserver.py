"""Runs Python programs in forked children of a process that has torch loaded already.

A bare torch process needs seconds to start; a fork of a warm one needs milliseconds. The child behaves as a fresh
`python script.py` would: its own `__main__`, argv, sys.path[0], cwd, environment, standard streams, exit handlers and
exit code. Not fresh: what the environment decides while torch loads (thread counts), and the modules already imported.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
HOST = Path(__file__).with_name("forkserver_host.py")


@dataclass(frozen=True)
class Result:
    """How a program ended: its exit code (or minus the signal that ended it) and what it wrote."""

    code: int
    out: bytes
    err: bytes

    @property
    def stdout(self) -> str:
        return self.out.decode()

    @property
    def stderr(self) -> str:
        return self.err.decode()


@dataclass
class Running:
    """A program under way."""

    server: ForkServer
    pid: int
    folder: Path
    status: int | None = None

    @property
    def code(self) -> int | None:
        self.server._listen(0)
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)

    @property
    def out(self) -> bytes:
        return (self.folder / "stdout").read_bytes()

    @property
    def err(self) -> bytes:
        return (self.folder / "stderr").read_bytes()

    def kill(self, number: int = signal.SIGKILL, *, group: bool = False) -> None:
        """Sends a signal to the program, or to it and everything of its process group."""
        self.server._ask({"do": "kill", "pid": self.pid, "signal": int(number), "group": group})

    def wait_for_output(self, text: bytes, *, timeout: float = 60) -> None:
        """Returns as soon as the program has written `text` on stdout."""
        deadline = time.monotonic() + timeout
        while text not in self.out:
            if self.code is not None or time.monotonic() > deadline:
                raise AssertionError(f"never saw {text!r} (exit code {self.code})\n{self._tails()}")
            time.sleep(0.002)

    def wait(self, *, timeout: float = 60, offspring: bool = True) -> Result:
        """Waits for the program and, unless told otherwise, for the processes it leaves behind (a viewer)."""
        deadline = time.monotonic() + timeout
        while self.status is None or (offspring and self.server.orphans()):
            left = deadline - time.monotonic()
            if left <= 0:
                self._give_up(timeout)
            self.server._listen(min(left, 0.01 if self.status is not None else left))
        assert self.status is not None
        return Result(os.waitstatus_to_exitcode(self.status), self.out, self.err)

    def _give_up(self, timeout: float) -> None:
        self.kill(group=True)
        for pid in self.server.orphans():
            os.kill(pid, signal.SIGKILL)
        raise TimeoutError(f"process {self.pid} still ran after {timeout} s\n{self._tails()}")

    def _tails(self) -> str:
        return f"--- stdout\n{self.out[-2000:].decode()}\n--- stderr\n{self.err[-4000:].decode()}"


class ForkServer:
    """The warm process, and how to run things in children of it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._host = subprocess.Popen(
                [sys.executable, str(HOST), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ONE_THREAD},
                stdin=subprocess.DEVNULL,
            )
        self._buffer = b""
        self._answers: list[dict[str, Any]] = []
        self._running: dict[int, Running] = {}
        self._ended: dict[int, int] = {}  # ended before anyone could ask
        self._scratch = tempfile.TemporaryDirectory(prefix="forkserver-")
        self._numbers = count()
        self.about = self._answer(120)

    def python(self, script: str | Path, *args: str, timeout: float = 60, **how: Any) -> Result:
        """`python script args...`; see `start` for cwd, stdin, env and tty."""
        return self.start(str(script), *args, **how).wait(timeout=timeout)

    def neural(self, *args: str, timeout: float = 60, **how: Any) -> Result:
        """`neural args...`; see `start` for cwd, stdin, env and tty."""
        return self.start(*args, neural=True, **how).wait(timeout=timeout)

    def start(
        self,
        *args: str,
        neural: bool = False,
        cwd: str | Path | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str | None] | None = None,
        tty: str | None = None,
    ) -> Running:
        """Starts `python args...`, or `neural args...`.

        env: changes to this process's environment, None removes a variable. tty: path of a terminal that replaces all
        three standard streams.
        """
        folder = Path(self._scratch.name, str(next(self._numbers)))
        folder.mkdir()
        files = [folder / name for name in ("stdin", "stdout", "stderr")]
        for file in files:
            file.write_bytes(stdin if file.name == "stdin" else b"")
        streams = [tty or str(file) for file in files]
        environment = {**os.environ, **(env or {})}
        order = {
            "do": "start",
            "how": "neural" if neural else "python",
            "args": [str(arg) for arg in args],
            "cwd": os.path.abspath(cwd or os.getcwd()),
            "env": {name: value for name, value in environment.items() if value is not None},
            "streams": streams,
        }
        pid = self._ask(order)["pid"]
        running = Running(self, pid, folder, self._ended.pop(pid, None))
        if running.status is None:
            self._running[pid] = running
        return running

    def orphans(self) -> list[int]:
        """Processes that programs started and did not take with them when they ended."""
        found: list[int] = self._ask({"do": "orphans"})["pids"]
        return found

    def close(self) -> None:
        """Ends the server and whatever still runs in it."""
        for running in list(self._running.values()):
            running.kill(group=True)
        self._socket.close()
        self._host.wait(timeout=30)
        self._scratch.cleanup()

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        self._socket.sendall(json.dumps(order).encode() + b"\n")
        return self._answer(60)

    def _answer(self, timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while not self._answers:
            left = deadline - time.monotonic()
            if left <= 0 or not self._listen(left):
                raise RuntimeError(f"the fork server does not answer (exit code {self._host.poll()})")
        return self._answers.pop(0)

    def _listen(self, timeout: float) -> bool:
        """Takes in messages for at most `timeout` seconds, until the first; False when the server is gone."""
        if not select.select([self._socket], [], [], timeout)[0]:
            return True
        chunk = self._socket.recv(65536)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "ended" in message:
                self._note_end(message["ended"], message["status"])
            else:
                self._answers.append(message)
        return bool(chunk)

    def _note_end(self, pid: int, status: int) -> None:
        running = self._running.pop(pid, None)
        if running is None:
            self._ended[pid] = status
        else:
            running.status = status
