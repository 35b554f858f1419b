"""Numbers in host memory, of whatever array they are, handed to the C kernel by their address; numpy where it is not
there or cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.capture.kernels import twin
from neuraldbg.capture.kernels.elements import MOST_BINS, WITH_POWERS, Element, Row, Spread

fused: Any = None
try:
    from neuraldbg.capture.kernels import _fused as fused
except ImportError:  # built without a compiler
    pass


def measured(flat: NDArray[Any], element: Element) -> Row:
    """Statistics of contiguous elements, stored as `element` says."""
    if fused is None:
        return twin.measure(flat.view(np.uint8), element)
    row: Row = fused.measure(_address(flat), int(element), flat.size)
    return row


def spread(
    flat: NDArray[Any],
    element: Element,
    of: tuple[float, float, float, float],
    counts: NDArray[np.int64],
    *,
    powers: bool,
) -> Spread:
    """The second look: `of` = mean, std, smallest and largest finite value. `counts` is added to; without `powers` only
    the first of the sums means something."""
    found: Spread | None = None
    if hasattr(fused, "spread") and len(counts) <= MOST_BINS:
        found = fused.spread(_address(flat), int(element), flat.size, of, counts, WITH_POWERS if powers else 0)
    return twin.spread(twin.decoded(flat.view(np.uint8), element), of, counts) if found is None else found


def _address(flat: NDArray[Any]) -> int:
    return flat.ctypes.data if flat.size else 0
