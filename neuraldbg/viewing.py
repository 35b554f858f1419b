"""The viewer as a child of ours: starting it, outliving it, and waiting for its last word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neuraldbg.capture.attachment import package_parent
from neuraldbg.control.server_file import STAY
from neuraldbg.script import flush_streams

VIEWER_PATIENCE_S = 60.0


def say(text: str) -> None:
    with suppress(OSError, ValueError):  # the terminal is gone, or the script has closed it
        print(f"neuraldbg: {text}", file=sys.stderr, flush=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """The viewer inherits the block: a Ctrl-C while it is still starting does not end it. Ours comes a moment later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Viewer:
    """The child that reports. It learns of our end, however we end, from a pipe that only we hold open."""

    def __init__(self, run_dir: Path, words: list[str], path: list[str], *, apart: bool = False) -> None:
        self._apart = apart  # a launcher ends the whole process group of a rank: the last word is ours
        reading, self._writing = os.pipe()
        options = ["--parent-fd", str(reading), *words]
        search = [*(entry for entry in path if entry not in ("", os.getcwd())), package_parent()]
        code = f"import sys; sys.path[:] = {search!r}; from neuraldbg.surfaces.viewer import main; sys.exit(main())"
        self._command = [sys.executable, "-c", code, str(run_dir), *options]
        self._process: subprocess.Popen[bytes] | None = None
        self._start(self._command, reading)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._let_go)

    def _start(self, command: list[str], reading: int) -> None:
        try:
            with _interrupts_held():
                self._process = subprocess.Popen(
                    command, pass_fds=(reading,), stdin=subprocess.DEVNULL, start_new_session=self._apart
                )
        except OSError as error:
            print(f"neuraldbg: no verdict will be printed, the viewer did not start: {error}", file=sys.stderr)
        finally:
            os.close(reading)

    @property
    def running(self) -> bool:
        return self._process is not None

    def _second(self, by: int) -> int:
        """Somebody has killed the viewer: another one has the last word. The first could not give the bottom row
        back."""
        if sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty():
            sys.stderr.write("\x1b7\x1b[r\x1b8\x1b[J")
        say(f"the viewer was killed ({signal.Signals(-by).name}); the verdict comes from another one")
        reading, writing = os.pipe()
        at = self._command.index("--parent-fd") + 1
        kept = [word for word in self._command if word != "--live"]
        self._start([*kept[:at], str(reading), *kept[at + 1 :]], reading)
        os.close(writing)
        assert self._process is not None
        return self._process.wait(VIEWER_PATIENCE_S)

    def _farewell(self) -> int:
        """Wait for Ctrl-C, whatever the script has made of it."""
        assert self._process is not None
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self._process.wait()
        except KeyboardInterrupt:
            self._process.terminate()
            return self._process.wait(VIEWER_PATIENCE_S)
        finally:
            signal.signal(signal.SIGINT, handler)

    def _let_go(self) -> None:
        """A forked worker must not keep the pipe open after us."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1

    def finish(self, *, stay: bool = False) -> int:
        """Close our end, wait for the report, and return the viewer's exit code (0, or 6 and 7 by --fail-on). With
        `stay`, somebody is at this terminal: the page stays until Ctrl-C."""
        flush_streams()
        if self._process is None:
            self._let_go()
            return 0
        if stay and self._process.poll() is None:
            with suppress(OSError):  # it went in this very moment
                os.write(self._writing, STAY)
        self._let_go()
        try:
            code = self._farewell() if stay else self._process.wait(VIEWER_PATIENCE_S)
            return max(code if code >= 0 else self._second(code), 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            print("neuraldbg: the viewer did not finish in time; `neural report` prints the verdict", file=sys.stderr)
            return 0
