"""The user's variables that may be a data set: tensors and arrays in sight of a line, and inside what is in sight."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.frames import let_go

MOST_LOOKED_AT = 3000
ENTRIES = 64  # of a list or dict
_DULL = (str, bytes, int, float, bool, type(None), ModuleType, FunctionType, type, nn.Module)


def arrays_in_sight(frames: Iterator[FrameType]) -> Iterator[tuple[str, Any]]:
    """(name, tensor or array), each once, those of inner frames first."""
    seen: set[int] = set()
    room = MOST_LOOKED_AT
    for frame in frames:
        for name, value in _variables(frame):
            for found in _inside(name, value, 0):
                room -= 1
                if room < 0:
                    return
                if id(found[1]) not in seen:
                    seen.add(id(found[1]))
                    yield found


def _variables(frame: FrameType) -> list[tuple[str, Any]]:
    scopes = [frame.f_locals] if frame.f_locals is frame.f_globals else [frame.f_locals, frame.f_globals]
    found = [item for scope in scopes for item in scope.items() if not item[0].startswith("__")]
    del scopes
    let_go(frame)
    return found


def _inside(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor | np.ndarray):
        yield name, value
    elif depth < 3 and not isinstance(value, _DULL):
        for part, item in _parts(name, value, depth):
            yield from _inside(part, item, depth + 1)


def _parts(name: str, value: Any, depth: int) -> list[tuple[str, Any]]:
    kind = type(value)
    if kind is list or kind is tuple:
        return [(f"{name}[{at}]", item) for at, item in enumerate(value[:ENTRIES])] if len(value) <= ENTRIES else []
    if kind is dict:
        items = list(value.items()) if len(value) <= ENTRIES else []
        return [(f"{name}[{key!r}]" if isinstance(key, str | int) else f"{name}[...]", item) for key, item in items]
    if isinstance(value, DataLoader):
        return [(f"{name}.dataset", value.dataset)]
    if isinstance(value, Subset):
        return [(f"{name}.dataset", value.dataset)]
    if isinstance(value, Dataset) or (depth == 0 and kind.__module__ not in ("builtins", "numpy")):
        held = attempt(lambda: vars(value))
        if type(held) is dict and len(held) <= ENTRIES:
            return [(f"{name}.{key}", item) for key, item in list(held.items())]
    return []
