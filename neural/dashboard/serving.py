"""Serving the page from a thread of the process that pushes, or for the runs of a folder."""

from __future__ import annotations

import errno
import socket
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from neuraldbg.errors import UsageError

MOST_PORTS = 100
PATIENCE_S = 20.0


class Serving:
    """A page that is being served. `close` ends the thread and gives the port back."""

    def __init__(self, app: Any, listener: socket.socket) -> None:
        import uvicorn

        self.host, self.port = listener.getsockname()[:2]
        self._listener = listener
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="auto"))
        self._thread = threading.Thread(target=self._run, name="neuraldbg-dashboard", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        self._listener.close()


def page_of(runs: list[Path]) -> Any:
    """The application that serves these runs."""
    try:
        made = import_module("neuraldbg.surfaces.web.app")
    except ModuleNotFoundError as error:
        raise UsageError(f"the page cannot be served: {error}; `neural report RUN` prints the verdict") from error
    return made.make_app(runs)


def serve(app: Any, host: str, port: int) -> Serving:
    serving = Serving(app, listening(host, port))
    print(f"neuraldbg: dashboard at {serving.url}", file=sys.stderr, flush=True)
    return serving


def listening(host: str, port: int) -> socket.socket:
    """A socket on the port, or on the next free one, which is then said."""
    address = "127.0.0.1" if host in ("localhost", "") else host
    if address not in ("127.0.0.1", "::1"):
        raise UsageError(f"a pushed run is served on this machine only, not on {host!r}: use `neural view RUN --host`")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for number in range(port, min(port + MOST_PORTS, 65_536)) if port else (0,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind((address, number))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                continue
            raise UsageError(f"cannot serve on {host}:{number}: {error.strerror}") from error
        if number != port:
            print(f"neuraldbg: port {port} is taken, using {number}", file=sys.stderr)
        return listener
    raise UsageError(f"no free port from {port} on: choose another")


def serve_folder(folder: Path) -> int:
    """The page for every run in a folder, until Ctrl-C."""

    from neuraldbg.config import load_config
    from neuraldbg.trace.rundir import RUN_FILE, RUNS_FOLDER

    runs = sorted(path.parent for path in (folder / RUNS_FOLDER).glob(f"*/{RUN_FILE}"))
    if not runs:
        print(
            f"neuraldbg: no data available: no run in {folder / RUNS_FOLDER}. `neural debug train.py` records one, "
            "and so does update_dashboard_data(new_trace_data=...)",
            file=sys.stderr,
        )
        return 2
    serving = serve(page_of(runs), "localhost", load_config().port)
    try:
        while serving._thread.is_alive():
            serving._thread.join(0.5)
    except KeyboardInterrupt:
        pass
    finally:
        serving.close()
    return 0
