"""How processes that somebody else launched (`torchrun -m neuraldbg train.py`) find one run directory: the first rank
makes it and leaves a note where the others look. No network, no environment variable."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from neuraldbg.ranks.orders import read_orders
from neuraldbg.trace.rundir import RUNS_FOLDER, write_atomically

PATIENCE_S = 60.0
OLDER_S = 300.0  # a note of another node may be older than this process by so much
LOOK_S = 0.05
NODE = "NEURALDBG_NODE"  # where every node has a run of its own; set for the key only, never in the environment
_LAUNCH = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_MCA_ess_base_jobid",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    NODE,
)


def of_this_node(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The same in the processes of one launch that run on this machine."""
    return {**environ, NODE: socket.gethostname()}


def launch_key(environ: Mapping[str, str]) -> str:
    """The same in every process of one launch."""
    told = "|".join(environ.get(name, "") for name in _LAUNCH)
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


class Note:
    """Where the run is, for the other ranks of this launch; taken away again by whoever wrote it."""

    def __init__(self, run_dir: Path, environ: Mapping[str, str]) -> None:
        self._file = _file(run_dir.parent, launch_key(environ))
        told = {"run": str(run_dir), "host": socket.gethostname(), "agent": os.getppid(), "time": time.time()}
        self._text = json.dumps(told)
        with suppress(OSError):
            write_atomically(self._file, self._text)

    def close(self) -> None:
        with suppress(OSError):
            if self._file.read_text(encoding="utf-8") == self._text:
                self._file.unlink()


def find_run(environ: Mapping[str, str], out: Path | None, patience_s: float = PATIENCE_S) -> Path | None:
    """The run that the first rank has begun; None when it does not come in time."""
    began, until = time.time(), time.monotonic() + patience_s
    key = launch_key(environ)
    while True:
        found = out if out is not None else _noted(_file(Path.cwd() / RUNS_FOLDER, key), began)
        with suppress(OSError, ValueError, KeyError, TypeError):
            if found is not None and read_orders(found).key == key:
                return found.resolve()
        if time.monotonic() >= until:
            return None
        time.sleep(LOOK_S)


def _noted(file: Path, began: float) -> Path | None:
    try:
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        ours = told["agent"] == os.getppid() if told["host"] == socket.gethostname() else told["time"] > began - OLDER_S
        return Path(told["run"]) if ours else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file(folder: Path, key: str) -> Path:
    return folder / f".launch-{key}"
