"""A batch whose rows are pieces of one long sequence: tokens of a text, steps of a series."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.evidence.rows import Array, as_array

LOOKED_FOR = 4  # rows of the batch
LONGER = 2  # times the elements of the batch: below that the batch is most of the sequence
LARGEST = 64 * 2**20  # bytes of a sequence


def sequence_of(batch: Array, variables: Iterator[tuple[str, Any]]) -> dict[str, Any] | None:
    """The shortest variable that some rows of the batch are cut from, each at a place of its own."""
    if batch.ndim < 2 or batch.shape[1] < 4 or len(batch) < 1:
        return None
    rows = batch[:: max(1, len(batch) // LOOKED_FOR)][:LOOKED_FOR]
    found = [
        (len(array), name)
        for name, value in variables
        if (array := attempt(partial(_sequence, value, batch))) is not None and all(_holds(array, row) for row in rows)
    ]
    if not found:
        return None
    length, name = min(found)
    return {"name": name, "length": length, "batch": len(batch), "window": int(batch.shape[1])}


def _sequence(value: Any, batch: Array) -> Array | None:
    array = as_array(value)
    if array is None or array.nbytes > LARGEST or array.shape[1:] != batch.shape[2:]:
        return None
    if len(array) < LONGER * len(batch) * batch.shape[1]:
        return None
    return array.astype(batch.dtype) if array.dtype != batch.dtype else array


def _holds(array: Array, row: Array) -> bool:
    """Place by place: only those that fit so far are looked at again."""
    places = np.arange(len(array) - len(row) + 1)
    for offset in range(len(row)):
        same = array[places + offset] == row[offset]
        places = places[same if same.ndim == 1 else same.reshape(len(same), -1).all(axis=1)]
        if not len(places):
            return False
    return True
