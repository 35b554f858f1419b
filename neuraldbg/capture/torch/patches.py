"""Whoever opens, closes: every attribute we replace and every hook we add, undone in reverse order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

_ABSENT = object()


class Patches:
    def __init__(self) -> None:
        self._undo = ExitStack()

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute and remember what stood in the owner's own dict."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._undo.callback(_restore, owner, name, before, value)

    def handle(self, handle: Any) -> None:
        """A RemovableHandle of torch."""
        self._undo.callback(handle.remove)

    def undo(self, action: Callable[..., Any], *args: Any) -> None:
        """Something to be done at the end."""
        self._undo.callback(action, *args)

    def close(self) -> None:
        self._undo.close()


def _restore(owner: Any, name: str, before: Any, ours: Any) -> None:
    if vars(owner).get(name, _ABSENT) is not ours:
        return  # somebody patched on top of us; taking theirs away would break them
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
