"""Between the hooks and the trace: rows as tuples, appended without a lock, turned into columns by the flush thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neuraldbg.trace.tables import TABLES

Block = NDArray[np.void]
LIMIT = 100_000  # rows that may wait for the flush thread before new ones are dropped and counted
HISTOGRAMS_LIMIT = LIMIT // 50  # they are dropped long before anything else is
ROOM_BYTES = 524_288  # rows of so many are put in order without asking for memory


class Sink(Protocol):
    """Copies what it is given."""

    def append(self, table: str, rows: NDArray[np.void]) -> int: ...

    def fact(self, type: str, **fields: Any) -> None: ...


class Staging:
    """One deque per table. `deque.append` is atomic, so the training thread never waits for a lock."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[Any, ...]]] = {name: deque() for name in TABLES}
        self.dropped = dict.fromkeys(TABLES, 0)
        self.blocks: list[Callable[[], dict[str, tuple[Block, int]]]] = []  # rows that are columns already, rows lost
        self.stats, self.spans, self.scalars, self.calls = (
            self._bounded(table) for table in ("stats", "spans", "scalars", "calls")
        )
        self.histograms = self._bounded("histograms", HISTOGRAMS_LIMIT)
        self._room = np.full(ROOM_BYTES, 0, np.uint8)

    def _bounded(self, table: str, limit: int = LIMIT) -> Callable[[tuple[Any, ...]], None]:
        waiting, dropped = self._waiting[table], self.dropped

        def append(row: tuple[Any, ...]) -> None:
            if len(waiting) < limit:
                waiting.append(row)
            else:
                dropped[table] += 1  # the flush thread hangs in a write

        return append

    def drain(self, sink: Sink) -> None:
        """Move what waits into the sink. Runs in the flush thread, and once more at close."""
        made: dict[str, list[Block]] = {}
        for name, waiting in self._waiting.items():
            rows = _take(waiting)
            if rows:
                made.setdefault(name, []).append(np.array(rows, dtype=TABLES[name]))
        for blocks in self.blocks:
            for name, (block, lost) in blocks().items():
                self.dropped[name] += lost
                if len(block):
                    made.setdefault(name, []).append(block)
        for name, parts in made.items():
            sink.append(name, parts[0] if len(parts) == 1 else self._in_order(parts))

    def _in_order(self, parts: list[Block]) -> Block:
        """As they were numbered when they were seen; valid until the next call. NumPy would move each field of each row
        by itself, and fresh memory costs more than all else here: the system hands it out page by page."""
        dtype = parts[0].dtype
        order = np.concatenate([part["seq"] for part in parts]).argsort(kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        together = self._memory(len(order) * dtype.itemsize).view(f"V{dtype.itemsize}")
        at = 0
        for part in parts:
            together[places[at : at + len(part)]] = part.view(together.dtype)
            at += len(part)
        return together.view(dtype)

    def _memory(self, size: int) -> NDArray[np.uint8]:
        return np.empty(size, np.uint8) if size > ROOM_BYTES else self._room[:size]


def _take(waiting: deque[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    take: Callable[[], tuple[Any, ...]] = waiting.popleft
    return [take() for _ in range(len(waiting))]
