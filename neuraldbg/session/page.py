"""The page of a session: a server in a process of its own, and the line over which it reaches the breakpoints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from neuraldbg.control.channel import ChannelServer
from neuraldbg.control.gate import Gate
from neuraldbg.control.server_file import how_to_continue
from neuraldbg.control.verbs import Verbs

PATIENCE_S = 10.0


class Page:
    """Serves from the moment it is made until `close`. It says where on stderr, as `neural view` does."""

    def __init__(self, run_dir: Path, gate: Gate) -> None:
        self._line = ChannelServer(Verbs(gate), run_dir)
        gate.on_event.append(self._line.publish)
        gate.remote = True
        gate.how_to_answer = lambda: how_to_continue(run_dir) or f"`neural view {run_dir}` serves it"
        package = str(Path(__file__).parents[2])
        search = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
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
