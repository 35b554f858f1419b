"""Gradients that come to a parameter past every pass: a penalty on weights, a temperature beside the model, the
gradient of a gradient. Making the passes again does not give them."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

MOST: Final = 1000  # nodes: of a larger graph outside of passes it is taken for granted


def reaches_leaves(loss: Tensor) -> bool:
    """Whether a way leads from a loss to a leaf that does not go through the output of a pass."""
    seen: set[Any] = set()
    ahead: list[Any] = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen or "neuraldbg_pass" in node.metadata:
            continue
        if hasattr(node, "variable") or len(seen) >= MOST:
            return True
        seen.add(node)
        ahead += [child for child, _ in node.next_functions]
    return False
