"""`fetched.json` in a run directory of the cache: where it came from, and when the run was last heard of there."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuraldbg.trace.rundir import write_atomically

if TYPE_CHECKING:
    from neuraldbg.store.manifest import DataSet

HEARD_FILE: Final = "fetched.json"
MISSED: Final = 3  # signs of life that may fail to come
SLACK_S: Final = 60.0  # for the way there and back


@dataclass(frozen=True, slots=True)
class Heard:
    """Of a run that has told no end: its last sign of life, as its own clock and manifest have it."""

    at_s: float | None  # since 1970; None: it has given none yet
    every_s: float = 0.0

    @property
    def recently(self) -> bool:
        return self.at_s is not None and time.time() - self.at_s < MISSED * self.every_s + SLACK_S


def write_heard(run_dir: Path, data_set: DataSet) -> None:
    at_s, every_s = data_set.heard_s or (None, 0.0)
    told = {"from": data_set.place.shown, "ended": data_set.ended, "at_s": at_s, "every_s": every_s}
    write_atomically(run_dir / HEARD_FILE, json.dumps(told))


def heard_of(run_dir: Path) -> Heard | None:
    """None of a run that was recorded here, or has ended there."""
    told = _read(run_dir)
    with suppress(ValueError, TypeError, KeyError):
        if told is not None and not told["ended"]:
            return Heard(None if told["at_s"] is None else float(told["at_s"]), float(told["every_s"]))
    return None


def came_from(run_dir: Path) -> str | None:
    """The place that a run of the cache was fetched from; None of any other run."""
    told = (_read(run_dir) or {}).get("from")
    return told if isinstance(told, str) else None


def _read(run_dir: Path) -> dict[str, Any] | None:
    try:
        told = json.loads((run_dir / HEARD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None
