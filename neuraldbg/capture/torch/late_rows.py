"""Statistics that came from a device many at a time: columns from the start, no row of them is ever an object."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from neuraldbg.capture.staging import LIMIT, Block
from neuraldbg.capture.torch.device import Head
from neuraldbg.trace.tables import STATS

_HEAD = ("step", "site", "pass_id", "kind", "phase", "slot")
_VALUES = ("count", "mean", "std", "min", "max", "l2", "zero_count", "nan_count", "inf_count")


class LateRows:
    def __init__(self, next_seq: Callable[[], int]) -> None:
        self._next_seq = next_seq
        self._waiting: deque[Block] = deque()
        self._rows = 0  # that have ever waited
        self._drained = 0
        self._lost = 0
        self._told = 0  # of the lost ones

    def write(self, heads: list[Head], rows: NDArray[np.float64]) -> None:
        """One row of statistics for each head, as `DevicePass` makes them."""
        if self._rows - self._drained > LIMIT:
            self._lost += len(heads)  # the flush thread hangs in a write
            return
        block = np.zeros(len(heads), STATS)
        for name, column in zip(_HEAD, zip(*heads, strict=True), strict=True):
            block[name] = column
        for name, values in zip(_VALUES, rows.T, strict=True):
            block[name] = values
        block["seq"] = [self._next_seq() for _ in heads]
        block["wall_ns"] = time.time_ns()
        flat = block["min"] == block["max"]  # sums in float32 leave a rest
        block["mean"][flat], block["std"][flat] = block["min"][flat], 0.0
        nothing = block["nan_count"] + block["inf_count"] >= block["count"]
        for name in _VALUES[1:6]:
            block[name][nothing] = np.nan
        self._rows += len(block)
        self._waiting.append(block)

    def drain(self) -> dict[str, tuple[Block, int]]:
        """For the flush thread: what waits, and how many rows were lost since the last time."""
        blocks = [self._waiting.popleft() for _ in range(len(self._waiting))]
        together = np.concatenate(blocks) if blocks else np.zeros(0, STATS)
        self._drained += len(together)
        lost, self._told = self._lost - self._told, self._lost
        return {"stats": (together, lost)}
