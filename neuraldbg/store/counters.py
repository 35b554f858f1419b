"""`shipping.json` in a run directory: how far the shipping of the run has come."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from neuraldbg.trace.rundir import write_atomically

COUNTERS_FILE: Final = "shipping.json"


@dataclass(slots=True)
class Counters:
    """What was put on the store, what failed on the way, what waits."""

    to: str
    parts: int = 0
    bytes: int = 0
    failures: int = 0
    lost_rows: int = 0
    waiting_parts: int = 0
    waiting_bytes: int = 0
    error: str | None = None  # the last failure, until something arrives again
    complete: bool = False  # the run is over and everything has arrived

    def write(self, run_dir: Path) -> None:
        with suppress(OSError):
            write_atomically(run_dir / COUNTERS_FILE, json.dumps(asdict(self)))


def read_counters(run_dir: Path) -> dict[str, Any] | None:
    """None of a run that is not shipped."""
    try:
        found = json.loads((run_dir / COUNTERS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
