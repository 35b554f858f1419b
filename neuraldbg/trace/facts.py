"""Facts on their way to the disk: a bounded buffer of JSON lines, apart from rows, which could crowd them out."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any

import numpy as np


class FactBuffer:
    """Any thread puts, one takes. A full buffer refuses and counts."""

    def __init__(self, limit_bytes: int) -> None:
        self.dropped = 0
        self._limit_bytes = limit_bytes
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, type: str, fields: dict[str, Any], *, instead: bool = False) -> None:
        """Adds a fact; `instead` of those of its type that still wait."""
        self.put_whole({"type": type, "wall_ns": time.time_ns(), **fields}, instead=instead)

    def put_whole(self, fields: dict[str, Any], *, instead: bool = False) -> None:
        """The same of a dict that is given away, and has its type and time in it."""
        size = _size_of_lasting(fields)
        fact = _Waiting(fields["type"], fields, size or 0)
        if size is None:
            fact.size = len(fact.line())  # here it raises, to who told what cannot be written
        with self._lock:
            if instead:
                self._keep([item for item in self._waiting if item.type != fact.type])
            if self._bytes + fact.size > self._limit_bytes:
                self.dropped += 1
                return
            self._waiting.append(fact)
            self._bytes += fact.size

    def put_later(self, type: str, fields: Callable[[], dict[str, Any]], size: int) -> bool:
        """Adds a fact of which only the place in the row is known: its fields, of about `size` characters, are asked
        for once, in the thread that writes. False where there is no room."""
        fact = _Waiting(type, fields, _PER_FACT + size)
        with self._lock:
            room = self._bytes + fact.size <= self._limit_bytes
            if room:
                self._waiting.append(fact)
                self._bytes += fact.size
            else:
                self.dropped += 1
        return room

    def oldest(self, limit_bytes: int) -> list[bytes]:
        """The first lines that fit, at least one; they stay until `release`."""
        lines: list[bytes] = []
        size = 0
        with self._lock:
            waiting = list(self._waiting)
        for fact in waiting:
            line = fact.line()
            if lines and size + len(line) > limit_bytes:
                break
            lines.append(line)
            size += len(line)
        return lines

    def release(self, count: int) -> None:
        with self._lock:
            self._keep(self._waiting[count:])

    def bring_forward(self, types: Collection[str]) -> int:
        """Moves facts of these types to the front; says how many there are."""
        with self._lock:
            urgent = [item for item in self._waiting if item.type in types]
            self._waiting = urgent + [item for item in self._waiting if item.type not in types]
        return len(urgent)

    def give_up(self) -> None:
        """Counts what is left as dropped."""
        with self._lock:
            self.dropped += len(self._waiting)
            self._keep([])

    def forget(self) -> None:
        """In a forked child, where the lock may be held by a thread that is not there."""
        self._waiting = []

    def _keep(self, items: list[_Waiting]) -> None:
        self._waiting = items
        self._bytes = sum(item.size for item in items)


class _Waiting:
    """A fact, and its line: made at once where something in it could change or is not ours to keep, else by who takes
    it. In a row that is a third of the work it is in the middle of a training step."""

    __slots__ = ("_fields", "_line", "size", "type")

    def __init__(self, type: str, fields: dict[str, Any] | Callable[[], dict[str, Any]], size: int) -> None:
        self.type, self.size = type, size
        self._fields: dict[str, Any] | Callable[[], dict[str, Any]] | None = fields
        self._line = b""

    def line(self) -> bytes:
        fields = self._fields
        if fields is not None:
            self._line = (_line_of(fields) if isinstance(fields, dict) else _line_of_late(fields)).encode()
            self._fields = None
        return self._line


_PER_FACT = 400  # bytes of a line beside its texts, about
_FEW = 32  # values in a row
_WHOLE = 10**300  # larger numbers may have more digits than Python writes
_LEAST = -_WHOLE
_LASTING = frozenset((float, bool, type(None)))


def _size_of_lasting(fields: dict[str, Any]) -> int | None:
    """About how long the line will be; None where something in it can change or be long, or may not be written: then it
    is made at once. A short list of plain values is made a tuple, which nobody can change."""
    size = _PER_FACT
    for name, value in fields.items():
        kind = value.__class__
        if kind in _LASTING:
            continue
        if kind is str:
            size += len(value)
        elif kind is int:
            if not _LEAST < value < _WHOLE:
                return None
        elif kind is tuple or kind is list:
            if len(value) > _FEW:
                return None
            if kind is list:
                fields[name] = value = tuple(value)
            for item in value:
                kind = item.__class__
                if kind is str:
                    size += len(item)
                elif not (kind in _LASTING or (kind is int and _LEAST < item < _WHOLE)):
                    return None
        else:
            return None
    return size


def _plain(value: Any) -> Any:
    """What JSON cannot say by itself."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


def _made_once() -> Any:
    """The C function that `JSONEncoder.encode` makes anew for every line, and that does all the work; None without."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    try:
        return make(None, _plain, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)
    except (TypeError, AttributeError):  # another Python's
        return None


_encoder = json.JSONEncoder(default=_plain, separators=(",", ":"))
_encode = _made_once()


def _line_of(fields: dict[str, Any]) -> str:
    if _encode is not None:
        try:
            return "".join(_encode(fields, 0))
        except RecursionError:  # one that holds itself is looked for below only
            pass
    return _encoder.encode(fields)


def _line_of_late(fields: Callable[[], dict[str, Any]]) -> str:
    """Who told it is not there to hear that something in it cannot be written: the rest is."""
    fact = fields()
    try:
        return _line_of(fact)
    except (TypeError, ValueError, ArithmeticError, LookupError, RuntimeError, AttributeError):  # of a value's text
        return _line_of({name: value for name, value in fact.items() if value.__class__ in (str, int)})
