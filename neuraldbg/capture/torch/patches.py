"""Whoever opens, closes: every attribute we replace and every hook we add, undone in reverse order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

_ABSENT = object()
_MARK = "__neuraldbg_patch__"


@dataclass
class _Patch:
    """Hangs on our replacement and tells what stood there before."""

    before: Any
    closed: bool = False


class Patches:
    def __init__(self) -> None:
        self._undo = ExitStack()

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of our own making and remember what stood in the owner's own dict."""
        patch = _Patch(vars(owner).get(name, _ABSENT))
        setattr(value, _MARK, patch)
        setattr(owner, name, value)
        self._undo.callback(_restore, owner, name, value, patch)

    def handle(self, handle: Any) -> None:
        """A RemovableHandle of torch."""
        self._undo.callback(handle.remove)

    def undo(self, action: Callable[..., Any], *args: Any) -> None:
        """Something to be done at the end."""
        self._undo.callback(action, *args)

    def close(self) -> None:
        self._undo.close()


def _restore(owner: Any, name: str, ours: Any, patch: _Patch) -> None:
    """Put back what stood there. A patch on top of ours stays: taking it away would break its owner, and when that
    owner is another session of ours, it steps over us when it goes."""
    patch.closed = True
    if vars(owner).get(name, _ABSENT) is not ours:
        return
    before = patch.before
    while isinstance(below := getattr(before, _MARK, None), _Patch) and below.closed:
        before = below.before
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
