"""How much of a run can be made again, as its recording said when it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PLACE = Path("record", "end.json")  # in the run directory


def read_replayable(run_dir: Path) -> dict[str, Any] | None:
    """None where nothing was recorded, or the run was killed."""
    try:
        found = json.loads((run_dir / PLACE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("updates"), int) else None


def replayable(run_dir: Path, steps: int) -> str | None:
    """What can be made again of so many steps and what was left out, in words; None where there is nothing to say."""
    found = read_replayable(run_dir)
    if found is None or not steps:
        return None
    kept, failed = found["updates"], found.get("failed")
    if not kept and not failed:
        return None
    said = "nothing" if not kept else f"{kept:,} of {steps:,} steps" if kept < steps else "every step"
    ways = " (neural replay --step N)" if kept else ""
    more = "; --record full keeps all" if found.get("windows") and kept < steps else ""
    why = f"; recording stopped: {failed}" if failed else ""
    return f"{said} can be made again{ways}{why}{more}"
