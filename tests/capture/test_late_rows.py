"""Rows that come from a device: each to whom it belongs, as the same numbers that one by one they would be."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from neuraldbg.capture.staging import LIMIT
from neuraldbg.capture.torch.device import DeviceQueue, Head, _Buffer, _Flight, _Group, _Slot
from neuraldbg.capture.torch.late_rows import LateRows
from neuraldbg.capture.torch.stats import from_device_row
from neuraldbg.capture.torch.sweep import norm_of
from neuraldbg.trace.tables import STATS

ROWS = [
    [8.0, 1.5, 0.5, 1.0, 2.0, 4.5, 0.0, 0.0, 0.0],
    [4.0, 3.0000001, 1e-9, 3.0, 3.0, 6.0, 0.0, 0.0, 0.0],  # all the same
    [6.0, 0.0, 0.0, math.inf, -math.inf, 0.0, 0.0, 4.0, 2.0],  # nothing finite
    [5.0, 1.0, 1.0, 0.0, 2.0, 3.0, 1.0, 1.0, 0.0],
]


def heads(count: int) -> list[Head]:
    return [(7, 100 + place, 3, 1, 2, place) for place in range(count)]


def test_a_block_holds_what_row_by_row_would_be_written() -> None:
    late = LateRows(itertools.count(50).__next__)
    late.write(heads(4), np.array(ROWS))
    block, lost = late.drain()["stats"]
    assert (block.dtype, lost, late.drain()["stats"][0].size) == (STATS, 0, 0)
    assert block["seq"].tolist() == [50, 51, 52, 53]
    names = ("step", "site", "pass_id", "kind", "phase", "slot")
    assert [tuple(row[name] for name in names) for row in block] == heads(4)
    fields = STATS.names[STATS.names.index("count") : STATS.names.index("wall_ns")]  # type: ignore[index,union-attr]
    for found, row in zip(block, ROWS, strict=True):
        assert [found[name] for name in fields] == pytest.approx(from_device_row(row), nan_ok=True)


def test_rows_that_nobody_writes_are_dropped_and_counted_once() -> None:
    late = LateRows(itertools.count().__next__)
    rows = np.array(ROWS * 5000)
    for _ in range(10):
        late.write(heads(4) * 5000, rows)
    block, lost = late.drain()["stats"]
    assert LIMIT < len(block) <= LIMIT + len(rows)
    assert len(block) + lost == 10 * len(rows)
    late.write(heads(4), np.array(ROWS))
    assert (len(late.drain()["stats"][0]), late.drain()["stats"][1]) == (4, 0)


def test_what_landed_goes_to_the_trace_to_callers_and_to_groups() -> None:
    queue, got, written = DeviceQueue(), list[Any](), list[Any]()
    queue.write = lambda one, rows: written.append((one, rows.tolist()))
    host = torch.tensor(ROWS, dtype=torch.float64)
    slot = _Slot(host, host)
    buffer = _Buffer(slot, None, None)
    first, second = heads(2)
    waiting: list[tuple[int, bool, Any]] = [
        (0, False, first),
        (0, False, second),  # the model's output is that of its last layer
        (1, True, lambda value: got.append(("scalar", value))),
        (3, False, lambda row: got.append(("row", row[0], row[7]))),
        (2, False, _Group(2, lambda rows: got.append(("group", rows[:, 0].tolist())))),
    ]
    queue._land(_Flight(buffer, slot, SimpleNamespace(), 4, waiting))
    assert written == [([first, second], [ROWS[0], ROWS[0]])]
    assert got == [("scalar", 4.0), ("row", 5, 1), ("group", [6.0, 5.0])]
    assert buffer.free == [slot]


def test_the_norm_of_gradients_is_that_of_all_values_together() -> None:
    gradients = [torch.randn(30, dtype=torch.float64), torch.randn(7, dtype=torch.float64)]
    rows = np.zeros((2, 9))
    rows[:, 5] = [float(one.norm()) for one in gradients]
    assert norm_of(rows) == pytest.approx(float(torch.cat(gradients).norm()))
    rows[0, 8] = 1
    assert norm_of(rows) == math.inf
    rows[1, 7] = 2
    assert math.isnan(norm_of(rows))
