"""What was found over many runs: which diagnosis, in how many of them, how early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuraldbg.fleet.sources import Source

LOUD = {"critical": 0, "warning": 1, "info": 2}


def findings_over(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """The gravest and most common first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for source in sources:
        for one in source.findings():
            key = (str(one.get("kind")), str(one.get("severity")))
            entry = found.setdefault(key, {"kind": key[0], "severity": key[1], "runs": [], "first_step": None})
            if source.name not in entry["runs"]:
                entry["runs"].append(source.name)
            steps = [step for step in (entry["first_step"], one.get("step")) if isinstance(step, int)]
            entry["first_step"] = min(steps, default=None)
    rows = [{**entry, "of": len(sources)} for entry in found.values()]
    return sorted(rows, key=lambda one: (LOUD.get(one["severity"], 3), -len(one["runs"]), one["kind"]))
