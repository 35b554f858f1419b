"""Terms of a loss that nobody gave a name, and whose sign matters: the divergence of a Gaussian code."""

from __future__ import annotations

from typing import Any

from neuraldbg.capture.torch.evidence.graph_walk import Visit, Walk, multiplier

_REACH = 48  # operations between the sum and the log-variance


def penalties_of(walk: Walk, most: int = 2) -> list[dict[str, Any]]:
    """`-0.5 * sum(1 + logvar - mu**2 - exp(logvar))`: the share of exp(x) - x in the loss. It has a lowest value when
    its sign is plus, and none when it is minus."""
    found: list[dict[str, Any]] = []
    for visit in walk.named("Exp"):
        if visit.factor is None or visit.sign is None or len(found) == most:
            continue
        share = _share_of(walk.operand(visit), _top(visit), walk)
        if share is not None and share * visit.sign < 0:
            found.append(
                {"kind": "gaussian_divergence", "sign": visit.sign, "factor": visit.factor, "layer": _fed(visit, walk)}
            )
    return found


def _fed(visit: Visit, walk: Walk) -> int | None:
    below = walk.past_shapes(walk.operand(visit))
    return None if below is None else below.layer


def _top(visit: Visit) -> Visit:
    """The sum or mean that the elements go into."""
    return next((one for one in visit.up() if one.name in ("Sum", "Mean")), visit)


def _share_of(wanted: Visit | None, top: Visit, walk: Walk) -> float | None:
    """The factor by which an operation's own result, taken as it is, enters the loss below a sum."""
    if wanted is None or top.factor is None:
        return None
    waiting: list[tuple[Visit, float]] = [(top, top.factor)]
    room = _REACH
    while waiting and room:
        one, factor = waiting.pop(0)
        room -= 1
        for slot, (child, _) in enumerate(one.node.next_functions):
            below = walk.of.get(child) if child is not None else None
            by = multiplier(one, slot)
            if below is None or by is None:
                continue
            if below is wanted:
                return factor * by
            waiting.append((below, factor * by))
    return None
