"""Whether what a loss compares with carries a graph of its own: bootstrapped targets and twin networks that should be
constant in the step."""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

from neuraldbg.capture.torch.loss import bare

_COMPARING = ("MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward")
_NEAR = 48  # nodes between a loss and the outputs it compares
PASS = "neuraldbg_pass"


def target_side(loss: Tensor, inputs_have_graph: dict[int, bool]) -> dict[str, Any] | None:
    """The two sides of a squared (or absolute) difference that both lead to outputs of passes; None where only one
    does. `bootstrapped` = one side is a reward plus a scaled (maximal) output."""
    comparison = _comparison(loss.grad_fn)
    if comparison is None:
        return None
    sides = [child for child, _ in comparison.next_functions if child is not None]
    if len(sides) != 2:
        return None
    described = [_describe(side) for side in sides]
    if not all(one["passes"] for one in described):
        return None
    target = next((one for one in described if one["bootstrapped"]), None)
    if target is None:
        return None
    other = described[1] if target is described[0] else described[0]
    return {
        "passes": sorted(target["passes"])[:8],
        "against": sorted(other["passes"])[:8],
        "maximal": target["maximal"],
        "same_pass": bool(set(target["passes"]) & set(other["passes"])),
        "input_has_graph": any(inputs_have_graph.get(number, True) for number in target["passes"]),
    }


def _comparison(root: Any) -> Any:
    """The node that compares: mse, smooth l1, huber, or a difference that is squared or made absolute."""
    queue, seen = deque([root]), 0
    while queue and seen < 24:
        node = queue.popleft()
        seen += 1
        name = bare(node)
        if name in _COMPARING:
            return node
        children = [child for child, _ in node.next_functions if child is not None]
        if name in ("PowBackward", "AbsBackward") and children and bare(children[0]) in ("SubBackward", "RsubBackward"):
            return children[0]
        if PASS not in node.metadata:
            queue.extend(children)
    return None


def _describe(side: Any) -> dict[str, Any]:
    """What lies between the loss and the nearest outputs of passes on one side."""
    passes: set[int] = set()
    scaled = added = maximal = False
    queue: deque[Any] = deque([side])
    seen = 0
    while queue and seen < _NEAR:
        node = queue.popleft()
        seen += 1
        name = bare(node)
        if PASS in node.metadata:
            passes.add(node.metadata[PASS])
            continue
        children = [child for child, _ in node.next_functions if child is not None]
        maximal = maximal or name in ("MaxBackward", "AmaxBackward")
        scaled = scaled or (name == "MulBackward" and len(children) == 1)
        added = added or (name == "AddBackward" and len(children) == 1)
        queue.extend(children)
    return {"passes": passes, "bootstrapped": scaled and added, "maximal": maximal}
