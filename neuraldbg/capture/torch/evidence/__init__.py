"""Exact evidence for diagnoses, beyond the ledger and the statistics: each watcher writes facts of its own."""

from __future__ import annotations

from typing import Any

WATCHERS: tuple[str, ...] = ()  # "module:Class", each made with the TorchCapture it takes part in


def start_watchers(capture: Any) -> list[Any]:
    """Imported one by one when a run is attached to: importing the package costs nothing."""
    from importlib import import_module

    started = []
    for name in WATCHERS:
        module, _, kind = name.partition(":")
        started.append(getattr(import_module(f"{__name__}.{module}"), kind)(capture))
    return started
