"""The user's variables that may be a data set: tensors and arrays in sight of a line, and inside what is in sight."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.frames import HOLDS_NOTHING, let_go

MOST_LOOKED_AT = 3000
ENTRIES = 64  # of a list or dict
_ARRAYS = (Tensor, np.ndarray)
_DULL = (str, bytes, int, float, bool, type(None), ModuleType, FunctionType, type, nn.Module)


def arrays_in_sight(frames: Iterator[FrameType]) -> Iterator[tuple[str, Any]]:
    """(name, tensor or array), each once, those of inner frames first."""
    seen: set[int] = set()
    searched: set[int] = set()  # ids of variables of modules: functions that call each other often share them
    room = MOST_LOOKED_AT
    for frame in frames:
        for name, value in _variables(frame, searched):
            inside: list[tuple[str, Any]] = []
            _search(name, value, 0, inside)
            for found in inside:
                room -= 1
                if room < 0:
                    return
                if id(found[1]) not in seen:
                    seen.add(id(found[1]))
                    yield found


def _variables(frame: FrameType, searched: set[int]) -> list[tuple[str, Any]]:
    theirs, outer = frame.f_locals, frame.f_globals
    scopes = [] if theirs is outer else [theirs]
    if id(outer) not in searched:
        searched.add(id(outer))
        scopes.append(outer)
    found = [
        item for scope in scopes for item in scope.items() if type(item[1]) not in HOLDS_NOTHING and item[0][:2] != "__"
    ]
    del scopes, theirs
    let_go(frame)
    return found


def _search(name: str, value: Any, depth: int, found: list[tuple[str, Any]]) -> None:
    if isinstance(value, _ARRAYS):
        found.append((name, value))
    elif depth < 3 and not isinstance(value, _DULL):
        for part, item in _parts(name, value, depth):
            _search(part, item, depth + 1, found)


def _parts(name: str, value: Any, depth: int) -> list[tuple[str, Any]]:
    kind = type(value)
    if kind is list or kind is tuple:
        if len(value) > ENTRIES:
            return []
        return [(f"{name}[{at}]", item) for at, item in enumerate(value) if type(item) not in HOLDS_NOTHING]
    if kind is dict:
        items = (
            [one for one in list(value.items()) if type(one[1]) not in HOLDS_NOTHING] if len(value) <= ENTRIES else []
        )
        return [(f"{name}[{key!r}]" if isinstance(key, str | int) else f"{name}[...]", item) for key, item in items]
    if isinstance(value, DataLoader):
        return [(f"{name}.dataset", value.dataset)]
    if isinstance(value, Subset):
        return [(f"{name}.dataset", value.dataset)]
    if isinstance(value, Dataset) or (depth == 0 and kind.__module__ not in ("builtins", "numpy")):
        held = attempt(lambda: vars(value))
        if type(held) is dict and len(held) <= ENTRIES:
            return [(f"{name}.{key}", item) for key, item in list(held.items()) if type(item) not in HOLDS_NOTHING]
    return []
