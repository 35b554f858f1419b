"""Trace entries as a loop pushes them: a dict per layer, with numbers of any framework in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuraldbg.analysis.by_hand import readable
from neuraldbg.errors import UsageError

from ..profiling.plain import plain_json

MOST: Final = {  # of a pushed profile that are kept in the run: as much as the page shows
    "layer_stats": 200,
    "memory_snapshots": 60,
    "gpu_metrics": 60,
    "bottlenecks": 30,
    "recommendations": 30,
}


def plain(value: Any) -> Any:
    """A scalar of numpy or a framework as a Python number; anything else as it is."""
    if hasattr(value, "item"):
        try:
            return value.item()
        except (TypeError, ValueError, RuntimeError):  # more than one element
            return value
    return value


def number(value: Any) -> float | None:
    """None for what is no number: text, flags, whole tensors."""
    found = plain(value)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        return float(found)
    except OverflowError:
        return None


def plain_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with plain numbers; a UsageError where it has no layer."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("layer"), str) or not entry["layer"]:
        raise UsageError(f"a trace entry is a dict with a 'layer' and its numbers, not {entry!r:.200}")
    return {key: plain(value) for key, value in entry.items()}


def shown_profile(told: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a profile by hand: the slowest layers, some points of each curve, no single calls."""
    kept = readable(plain_json(told))
    for name, most in MOST.items():
        rows = kept.get(name) or ()
        if len(rows) <= most:
            continue
        if isinstance(rows, dict):
            slowest = sorted(rows, key=lambda layer: -(rows[layer].get("mean_time") or 0.0))
            kept[name] = {layer: rows[layer] for layer in slowest[:most]}
        elif name in ("bottlenecks", "recommendations"):
            kept[name] = rows[:most]
        else:
            kept[name] = [rows[(len(rows) - 1) * at // (most - 1)] for at in range(most)]
    return kept
