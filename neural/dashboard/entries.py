"""Trace entries as a loop pushes them: a dict per layer, with numbers of any framework in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuraldbg.errors import UsageError


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
