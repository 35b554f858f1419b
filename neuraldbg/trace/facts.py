"""Facts on their way to the disk: a bounded buffer of JSON lines, apart from rows, which could crowd them out."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection
from enum import Enum
from typing import Any

import numpy as np


class FactBuffer:
    """Any thread puts, one takes. A full buffer refuses and counts."""

    def __init__(self, limit_bytes: int) -> None:
        self.dropped = 0
        self._limit_bytes = limit_bytes
        self._waiting: list[tuple[str, bytes]] = []
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, type: str, fields: dict[str, Any], *, instead: bool = False) -> None:
        """Adds a fact; `instead` of those of its type that still wait."""
        line = _line_of({"type": type, "wall_ns": time.time_ns(), **fields})
        data = line.encode("utf-8", "backslashreplace")
        with self._lock:
            if instead:
                self._keep([item for item in self._waiting if item[0] != type])
            if self._bytes + len(data) > self._limit_bytes:
                self.dropped += 1
                return
            self._waiting.append((type, data))
            self._bytes += len(data)

    def oldest(self, limit_bytes: int) -> list[bytes]:
        """The first lines that fit, at least one; they stay until `release`."""
        lines: list[bytes] = []
        size = 0
        with self._lock:
            for _, line in self._waiting:
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
            urgent = [item for item in self._waiting if item[0] in types]
            self._waiting = urgent + [item for item in self._waiting if item[0] not in types]
        return len(urgent)

    def give_up(self) -> None:
        """Counts what is left as dropped."""
        with self._lock:
            self.dropped += len(self._waiting)
            self._keep([])

    def forget(self) -> None:
        """In a forked child, where the lock may be held by a thread that is not there."""
        self._waiting = []

    def _keep(self, items: list[tuple[str, bytes]]) -> None:
        self._waiting = items
        self._bytes = sum(len(line) for _, line in items)


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


_line_of = json.JSONEncoder(default=_plain, separators=(",", ":")).encode  # `json.dumps` makes one for every line
