"""What a call is given and what it returns, taken apart: tensors inside of nested containers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any

from torch import Tensor

MOST_ITEMS = 4096  # in the arguments of a pass that is kept
LOOKED_AT = 512  # items of an argument or output that are searched for tensors


@dataclass(frozen=True, slots=True)
class NamedItems:
    """A named tuple taken apart: its own constructor may refuse what we keep in place of tensors (PackedSequence
    does)."""

    kind: Any
    items: tuple[Any, ...]


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    return map_leaves(value, Tensor, change)


def map_leaves(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """A copy of nested tuples, lists and dicts with every leaf of one type changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, NamedItems):
        return value.kind(*(map_leaves(item, kind, change) for item in value.items))
    if isinstance(value, tuple):
        mapped = tuple([map_leaves(item, kind, change) for item in value])
        return NamedItems(type(value), mapped) if hasattr(value, "_fields") else mapped
    if isinstance(value, list):
        return [map_leaves(item, kind, change) for item in value]
    if isinstance(value, dict):
        return {key: map_leaves(item, kind, change) for key, item in value.items()}
    return value


def leaves(value: Any, kind: type) -> Iterator[Any]:
    """Every leaf of one type inside nested containers, dataclasses and mapping-like model outputs; of huge ones the
    beginning."""
    waiting: deque[tuple[Any, int]] = deque([(value, 0)])
    room = LOOKED_AT
    while waiting and room:
        current, depth = waiting.popleft()
        room -= 1
        if isinstance(current, kind):
            yield current
        elif depth < 8:
            waiting.extend((item, depth + 1) for item in islice(_parts(current), room))


def few_given(
    entered: tuple[Tensor, ...], args: tuple[Any, ...], kwargs: dict[str, Any], most: int = MOST_ITEMS
) -> bool:
    """`few_items` of a call whose tensors are known: mostly they are all that it is given."""
    return (entered is args and not kwargs and len(args) <= most) or few_items((args, kwargs), most)


def few_items(value: Any, most: int = MOST_ITEMS) -> bool:
    """Whether arguments are small enough as Python objects to be copied: a batch may be a list of a million numbers."""
    waiting, seen = [value], 0
    while waiting:
        parts = list(islice(_parts(waiting.pop()), most + 1))
        seen += len(parts)
        if seen > most:
            return False
        waiting += parts
    return True


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, NamedItems):
        return iter(value.items)
    if isinstance(value, dict):
        return iter(value.values())
    if isinstance(value, list | tuple):
        return iter(value)
    if is_dataclass(value) and not isinstance(value, type):
        return (getattr(value, one.name, None) for one in fields(value))
    return iter(())


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        return iter((value,))
    return leaves(value, Tensor)


def given_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Of a call; mostly it is given nothing else."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        return args
    if not kwargs and all(isinstance(item, Tensor) for item in args):
        return args
    return tuple(tensors((args, kwargs)))
