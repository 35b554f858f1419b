"""Serving the page from a thread of the process that pushes, or for the runs of a folder."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.config import load_config
from neuraldbg.errors import NeuralDbgError, UsageError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from neuraldbg.surfaces.web.asking import Settings

PATIENCE_S = 20.0
_HERE = {"": "127.0.0.1", "localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}


class Serving:
    """The page of a run, served from a thread. `close` ends the thread and gives the port back."""

    def __init__(self, run_dir: Path, host: str, port: int) -> None:
        if host not in _HERE:
            raise UsageError(
                f"a pushed run is served on this machine only, not on {host!r}: use `neural view RUN --host`"
            )
        settings = _settings()
        from neuraldbg.surfaces.web.doorway import Doorway
        from neuraldbg.surfaces.web.serving import Service

        self._door = Doorway(_HERE[host], port)
        try:
            self._service = Service(self._door, [run_dir], settings)
            self._service.open()
        except BaseException:
            self._door.close()
            raise
        self._door.tell(run_dir)
        self._thread = threading.Thread(target=self._service.run, name="neuraldbg-dashboard", daemon=True)
        self._thread.start()
        print(f"neuraldbg: {self._door.line}", file=sys.stderr, flush=True)

    @property
    def url(self) -> str:
        """What to open."""
        return self._door.address

    def close(self) -> None:
        self._service.stop()
        self._thread.join(PATIENCE_S)
        self._door.close()


def page_of(runs: list[Path]) -> FastAPI:
    """The application that serves these runs, for a server of the user's own. `close_page` ends what it opened."""
    settings = _settings()
    from neuraldbg.surfaces.web.app import make_app
    from neuraldbg.surfaces.web.guard import Policy
    from neuraldbg.surfaces.web.runs import ServedRuns

    return make_app(ServedRuns(runs), Policy(port=load_config().port), settings)


def close_page(app: Any) -> None:
    app.state.runs.close()


def _settings() -> Settings:
    """What is configured of the page; UsageError where the web packages are not installed."""
    try:
        from neuraldbg.surfaces.web.asking import Settings as Chosen
    except ModuleNotFoundError as error:
        raise UsageError(f"the page cannot be served: {error}; `neural report RUN` prints the verdict") from error
    config = load_config()
    return Chosen(config.dashboard.refresh_rate, config.history.inspector, config.dashboard.max_history)


def serve_folder(folder: Path) -> int:
    """The page for every run in a folder, the newest first, until Ctrl-C."""
    from neuraldbg.surfaces.cli.view import serve
    from neuraldbg.trace.rundir import RUN_FILE, RUNS_FOLDER

    files = (folder / RUNS_FOLDER).glob(f"*/{RUN_FILE}")
    runs = [path.parent for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)]
    if not runs:
        print(
            f"neuraldbg: no data available: no run in {folder / RUNS_FOLDER}. `neural debug train.py` records one, "
            "and so does update_dashboard_data(new_trace_data=...)",
            file=sys.stderr,
        )
        return 2
    try:
        return serve(runs, load_config())
    except NeuralDbgError as error:
        print(f"neuraldbg: {error}", file=sys.stderr)
        return 2
