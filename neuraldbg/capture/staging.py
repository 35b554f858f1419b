"""Between the hooks and the trace: rows as tuples, appended without a lock, turned into columns by the flush thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neuraldbg.trace.tables import TABLES

LIMIT = 100_000  # rows that may wait for the flush thread before new ones are dropped and counted
HISTOGRAMS_LIMIT = LIMIT // 50  # they are dropped long before anything else is


class Sink(Protocol):
    def append(self, table: str, rows: NDArray[np.void]) -> int: ...

    def fact(self, type: str, **fields: Any) -> None: ...


class Staging:
    """One deque per table. `deque.append` is atomic, so the training thread never waits for a lock."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[Any, ...]]] = {name: deque() for name in TABLES}
        self.dropped = dict.fromkeys(TABLES, 0)
        self.stats, self.spans, self.scalars, self.calls = (
            self._bounded(table) for table in ("stats", "spans", "scalars", "calls")
        )
        self.histograms = self._bounded("histograms", HISTOGRAMS_LIMIT)

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
        for name, waiting in self._waiting.items():
            rows = _take(waiting)
            if rows:
                sink.append(name, np.array(rows, dtype=TABLES[name]))


def _take(waiting: deque[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    take: Callable[[], tuple[Any, ...]] = waiting.popleft
    return [take() for _ in range(len(waiting))]
