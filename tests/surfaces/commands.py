"""Runs the real command line in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
AS_SCRIPT = "import sys; sys.argv[0] = 'neural'; from neuraldbg.surfaces.cli import main; main()"


def environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS")
    }
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **changes}


def neural(*words: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """`neural ...` as the console script runs it."""
    return subprocess.run(
        [sys.executable, "-c", AS_SCRIPT, *words],
        cwd=cwd, env=environment(**changes), capture_output=True, text=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip


def refused(result: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """The one line of a refusal; fails when there is more, or a traceback, or another exit code."""
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("neural: ")
    return lines[0].removeprefix("neural: ")
