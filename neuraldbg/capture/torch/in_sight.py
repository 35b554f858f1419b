"""What the user's code holds on to, and what it calls it: the variables in sight of the loop, the attributes of the
objects in them, and the variables of the user's other modules."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any, Final

from torch import Tensor, nn

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.frames import Frames, let_go

CONTAINERS: Final = (list, dict, deque, set)
_HOLDS: Final = (*CONTAINERS, tuple, Tensor)
MOST_ATTRIBUTES: Final = 256
MOST_MODULES: Final = 2_000  # of a model
_OF_EVERY_MODULE: Final = frozenset(nn.Module().__dict__)
_PLAIN: Final = ("builtins", "collections", "numpy")
Files = tuple[str, ...]  # in which the line that fills it is looked for, the likeliest first


def held_by_the_user(frames: Frames, besides: Iterable[tuple[str, Any]] = ()) -> Iterator[tuple[Files, str, Any]]:
    """Everything in sight once: where to look for its lines, what it is called, and the value. `besides`: what is held
    and has no name in sight, with one."""
    seen: set[int] = set()
    for frame in frames.user_frames():
        scopes = [frame.f_locals] if frame.f_locals is frame.f_globals else [frame.f_locals, frame.f_globals]
        found = [(name, value) for scope in scopes for name, value in list(scope.items())]
        del scopes
        let_go(frame)
        yield from _all(found, (frame.f_code.co_filename,), seen, frames)
        del found
    yield from _all(list(besides), (), seen, frames)
    for name, held in frames.own_modules():
        found = [(f"{name}.{key}", value) for key, value in list(held.items()) if not key.startswith("__")]
        yield from _all(found, (held["__file__"],), seen, frames)
        del found


def _all(
    found: list[tuple[str, Any]], files: Files, seen: set[int], frames: Frames
) -> Iterator[tuple[Files, str, Any]]:
    for name, value in found:
        if not name.startswith("__") and id(value) not in seen and not issubclass(type(value), ModuleType):
            seen.add(id(value))
            for where, what, owner in attempt(partial(_places, name, value, frames)) or ():
                yield (*frames.files_of(owner), *files), where, what


def _places(name: str, value: Any, frames: Frames) -> list[tuple[str, Any, type | None]]:
    return list(_walk(name, value, frames))


def _walk(name: str, value: Any, frames: Frames) -> Iterator[tuple[str, Any, type | None]]:
    """A variable and, of the user's own objects and what these hold of them, the attributes."""
    yield name, value, None
    if type(value) is dict and len(value) <= 64:
        yield from ((f"{name}[{key!r}]", inner, None) for key, inner in value.items() if isinstance(key, str | int))
    if isinstance(value, nn.Module):
        for path, module in islice(value.named_modules(), MOST_MODULES):
            yield from _attributes(f"{name}.{path}" if path else name, module, frames)
    elif not _is_plain(value):
        for where, inner, owner in _attributes(name, value, frames):
            yield where, inner, owner
            if not _is_plain(inner) and (where.endswith(".dataset") or frames.files_of(type(inner))):
                yield from _attributes(where, inner, frames)


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor | type) or type(value).__module__ in _PLAIN


def _attributes(name: str, value: Any, frames: Frames) -> Iterator[tuple[str, Any, type | None]]:
    """Its own, and the containers that its class shares among all."""
    attributes = getattr(value, "__dict__", None)
    own = list(islice(attributes.items(), MOST_ATTRIBUTES)) if type(attributes) is dict else []
    if isinstance(value, nn.Module):  # there are many of them, and mostly numbers in them
        own = [each for each in own if isinstance(each[1], _HOLDS) and each[0] not in _OF_EVERY_MODULE]
    shared = []
    if type(value).__module__.partition(".")[0] != "torch":
        classes = [kind for kind in type(value).__mro__ if frames.files_of(kind)]
        shared = [each for kind in classes for each in vars(kind).items() if isinstance(each[1], CONTAINERS)]
    for key, inner in (*own, *shared):
        if not key.startswith("__"):
            yield f"{name}.{key}", inner, type(value)
