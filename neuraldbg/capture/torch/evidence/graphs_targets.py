"""Whether what a loss compares with carries a graph of its own: bootstrapped targets and twin networks that should be
constant in the step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from neuraldbg.capture.torch.loss import bare

_COMPARING = ("MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward")
_NEAR = 48  # nodes between a loss and the outputs it compares
_BELOW = 800  # nodes below those that are searched for parameters
PASS = "neuraldbg_pass"


def target_side(loss: Tensor, site_of: Callable[[Tensor], int | None]) -> dict[str, Any] | None:
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
    likely = [one for one in described if one["bootstrapped"]]
    if len(likely) != 1:
        return None  # none, or both: predictions scaled back to their units
    target = likely[0]
    other = described[1] if target is described[0] else described[0]
    own, against = (
        _parameters(side, site_of) for side in ((sides[0], sides[1]) if target is described[0] else sides[::-1])
    )
    return {
        "passes": sorted(target["passes"])[:8],
        "against": sorted(other["passes"])[:8],
        "maximal": target["maximal"],
        "same_pass": bool(set(target["passes"]) & set(other["passes"])),
        "only_parameters": sorted(own - against)[:64],  # that only the target depends on
        "shared_parameters": len(own & against),
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


def _parameters(side: Any, site_of: Callable[[Tensor], int | None]) -> set[int]:
    found: set[int] = set()
    queue, seen = deque([side]), {side}
    while queue and len(seen) < _BELOW:
        node = queue.popleft()
        leaf = getattr(node, "variable", None)
        site = site_of(leaf) if isinstance(leaf, Tensor) else None
        if site is not None:
            found.add(site)
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                queue.append(child)
    return found


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
