"""The page of a session: a server in a process of its own, and the line over which it reaches the breakpoints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from neuraldbg.capture.attachment import package_parent
from neuraldbg.control.gate import Gate
from neuraldbg.control.reach import open_line

PATIENCE_S = 10.0


class Page:
    """Serves from the moment it is made until `close`. It says where on stderr, as `neural view` does."""

    def __init__(self, run_dir: Path, gate: Gate) -> None:
        self._line = open_line(gate, run_dir, served=True)
        search = os.pathsep.join(filter(None, (package_parent(), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "neuraldbg", "view", str(run_dir)]
        self._server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": search}, stdin=subprocess.DEVNULL)

    def close(self) -> None:
        self._server.terminate()
        try:
            self._server.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._line.close()
