"""The command line under the original project's import path: `from neural.cli import cli`, `python -m neural.cli`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuraldbg.surfaces.cli import cli, main

__all__ = ["cli", "main"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from neuraldbg.surfaces import cli as commands

    return getattr(commands, name)
