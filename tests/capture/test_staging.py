"""Rows that come as columns and rows that come one by one leave in the order in which they were numbered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from neuraldbg.capture.staging import ROOM_BYTES, Staging
from neuraldbg.trace.tables import SCALARS


class Sink:
    def __init__(self) -> None:
        self.rows: list[NDArray[np.void]] = []

    def append(self, table: str, rows: NDArray[np.void]) -> int:
        self.rows.append(rows.copy())
        return len(rows)

    def fact(self, type: str, **fields: Any) -> None:
        raise AssertionError


@pytest.mark.parametrize("count", [10, ROOM_BYTES // SCALARS.itemsize + 1])
def test_blocks_and_single_rows_leave_in_order(count: int) -> None:
    staging, sink = Staging(), Sink()
    block = np.zeros(count, SCALARS)
    for round in range(2):
        block["seq"], block["value"] = np.arange(count) * 2, np.arange(count) * 2.0 + round
        staging.blocks[:] = [lambda: {"scalars": (block, 0)}]
        for number in (1, 7, 3):
            staging.scalars((0, number, 0, -1, float(number), 0))
        staging.drain(sink)
        [rows] = [rows for rows in sink.rows if len(rows)][round:]
        assert len(rows) == count + 3
        assert rows["seq"].tolist() == sorted(rows["seq"].tolist())
        moved = np.where(rows["seq"] % 2, 0.0, round)
        assert (rows["value"] == rows["seq"] + moved).all()
