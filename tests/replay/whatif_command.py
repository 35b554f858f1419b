"""The command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = str(Path(__file__).parents[2])


def neural(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "neuraldbg", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
