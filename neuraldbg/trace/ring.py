"""A preallocated ring of rows between the training thread and the flush thread."""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FETCHED_BYTES: Final = 262_144


class Ring:
    """One producer side (any thread, under the lock), one consumer. Never blocks on a full ring: it refuses."""

    def __init__(self, dtype: np.dtype[np.void], capacity: int) -> None:
        self.dtype = dtype
        self.capacity = capacity
        self._rows: NDArray[np.void] = np.empty(capacity, dtype)
        # numpy copies structured rows field by field (64 ns a row), opaque ones as one block (7 ns)
        self.opaque: np.dtype[Any] = np.dtype((np.void, dtype.itemsize))
        self._blocks = self._rows.view(self.opaque)
        self._rows.view(np.uint8)[:FETCHED_BYTES] = 0  # the system hands memory out page by page: not in a training
        self.refused = 0  # rows there was no room for
        self._put = 0
        self._taken = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return self._put - self._taken

    def append(self, rows: NDArray[np.void]) -> int:
        """Copies as many rows as there is room for; says how many."""
        source = np.ascontiguousarray(rows).view(self.opaque)
        with self._lock:
            count = min(len(source), self.capacity - (self._put - self._taken))
            at = self._put % self.capacity
            head = min(count, self.capacity - at)
            self._blocks[at : at + head] = source[:head]
            if count > head:
                self._blocks[: count - head] = source[head:count]
            self._put += count
        return count

    def refuse(self, count: int) -> None:
        with self._lock:
            self.refused += count

    def waiting(self, limit: int | None = None) -> list[NDArray[np.void]]:
        """Views of the oldest rows, at most `limit`, in order; stable until `release`."""
        with self._lock:
            begin, count = self._taken % self.capacity, self._put - self._taken
        if limit is not None:
            count = min(count, limit)
        head = min(count, self.capacity - begin)
        blocks = [self._rows[begin : begin + head], self._rows[: count - head]]
        return [block for block in blocks if len(block)]

    def release(self, count: int) -> None:
        with self._lock:
            self._taken += count
            if self._taken == self._put:  # begin again at the front: pages that are warm, and no more than needed
                self._taken = self._put = 0
