"""Means over the positions of a sequence: whether they count padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.capture.torch.evidence.graph_walk import Visit, Walk, saved, signed
from neuraldbg.capture.torch.evidence.sequences import padding_of

_MASKED = ("Mul", "MaskedFill", "Where")  # a mask was laid on the values before


def pools_of(walk: Walk, lengths: set[int], most: int = 4) -> list[tuple[Visit, int]]:
    """Means over an axis as long as the token ids, of values that no mask was laid on, and that length."""
    found: list[tuple[Visit, int]] = []
    for visit in walk.named("Mean"):
        dims, sizes = saved(visit.node, "dim"), saved(visit.node, "self_sym_sizes")
        if not isinstance(dims, tuple) or len(dims) != 1 or sizes is None or len(sizes) < 3 or len(found) == most:
            continue
        axis = signed(dims[0], len(sizes))
        below = walk.past_shapes(walk.operand(visit))
        if int(sizes[axis]) in lengths and axis < len(sizes) and (below is None or below.name not in _MASKED):
            found.append((visit, int(sizes[axis])))
    return found


def padding_share(ids: NDArray[Any]) -> dict[str, Any] | None:
    padding = padding_of(ids)
    if padding is None:
        return None
    return {
        "pad_token": padding["token"],
        "pad_share": float(np.mean(ids == padding["token"])),
        "side": padding["side"],
    }
