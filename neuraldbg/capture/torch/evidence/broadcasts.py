"""Predictions and targets that broadcast against each other in any operation of a loss, not only in one we know."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from neuraldbg.capture.torch.evidence.graph_walk import Visit, Walk, saved, shape_of
from neuraldbg.capture.torch.evidence.loss_terms import passes_below, reshaped

Shape = tuple[int, ...]
_PAIRING = ("Sub", "Rsub", "Add", "Mul", "Div")
_AFFINE = ("Mul", "Div", "Neg", "Add", "Sub", "Rsub")  # with a constant: all pairs stay what they are
_UP = 6


def broadcast_of(walk: Walk) -> tuple[dict[str, Any], Tensor | None] | None:
    """The first operation outside of models that makes N x N of N predictions and a tensor without gradient: what a
    loss term records of it (and its node), and the numbers that came out where the graph keeps them."""
    for visit in walk.visits:
        found = _paired(visit, walk) if visit.name in _PAIRING and not visit.inside else None
        if found is not None:
            return found
    return None


def _paired(visit: Visit, walk: Walk) -> tuple[dict[str, Any], Tensor | None] | None:
    computed = [(slot, child, out) for slot, (child, out) in enumerate(visit.node.next_functions) if child is not None]
    result = visit.shape
    if len(computed) != 1 or result is None or len(result) < 2:
        return None
    slot, child, out = computed[0]
    below, shape = walk.of.get(child), shape_of(child, out)
    if below is None or shape is None or not all_pairs(shape, result) or reshaped(below, walk):
        return None
    if any("neuraldbg_pass" in one.node.metadata for one in visit.up()) or not passes_below(below, walk):
        return None
    other = saved(visit.node, "other" if slot == 0 else "self") if visit.name in ("Mul", "Div") else None
    target = tuple(other.shape) if isinstance(other, Tensor) else None
    if target is not None and (len(target) == len(shape) or math.prod(target) != math.prod(shape)):
        return None  # one axis more or less is an oversight; (1, N) was written on purpose
    facts: dict[str, Any] = {"kind": "elementwise", "prediction_shape": list(shape), "result_shape": list(result)}
    facts["target_before"] = None if target is None else list(target)
    facts |= {"operation": visit.name, "slot": slot, "node": visit.node}
    return facts, None if target is not None else _numbers(visit, result)


def all_pairs(prediction: Shape, result: Shape) -> bool:
    """(N, 1, ...) or (N, ...) that became (N, N, ...)."""
    rows = prediction[0] if prediction else 0
    if rows < 2 or result[:2] != (rows, rows) or math.prod(result) != rows * math.prod(prediction):
        return False
    return prediction in ((rows, 1, *result[2:]), (rows, *result[2:]))


def _numbers(visit: Visit, result: Shape) -> Tensor | None:
    """The result, or a multiple of it, where an operation above keeps what it was given."""
    below = visit
    for _, one in zip(range(_UP), visit.up(), strict=False):
        operands = sum(child is not None for child, _ in one.node.next_functions)
        kept = saved(one.node, "other" if below.slot == 1 and operands == 2 else "self")
        if isinstance(kept, Tensor) and tuple(kept.shape) == result:
            return kept.reshape(*result[:2], -1)[..., 0]
        if one.name not in _AFFINE or operands != 1 or one.shape != result:
            return None
        below = one
    return None
