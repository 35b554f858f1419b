"""The recognised parts of a loss, with what was put into them: read from one walk over its graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from neuraldbg.capture.torch.evidence.graph_walk import SHAPES, Visit, Walk, saved, shape_of, signed
from neuraldbg.capture.torch.loss import LOSS_NODES

MOST_TERMS = 8
_REDUCTION = {0: "none", 1: "mean", 2: "sum"}
MOST_BRANCHES = 64
_THROUGH = ("Clamp", "ClampMin", "ClampMax", "NanToNum", "MaskedFill")  # leave probabilities what they are
_JOINED = ("Cat", "Stack", "Where", "Maximum", "Minimum")
_CHOSEN = ("Mean", "Max", "Amax", "Min", "Amin")  # over heads or instances: still a probability
_SOFTMAXES = ("Softmax", "SafeSoftmax", "LogSoftmax")
RANGES: dict[str, tuple[float, float]] = {
    "Relu": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Hardsigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Softplus": (0.0, math.inf),
    "Elu": (-1.0, math.inf),
    "Hardtanh": (-1.0, 1.0),
}


@dataclass(slots=True)
class LossTerm:
    kind: str
    visit: Visit  # the operation that is the loss, or the square of a difference written by hand
    fed: Visit | None  # what made the predictions; of a cross entropy what made its scores
    inputs: Tensor | None = None  # of a cross entropy the log-probabilities
    target: Tensor | None = None
    softmax: Visit | None = None  # the log_softmax of a cross entropy
    sign: float | None = None  # -1 where the loss is made larger
    soft: bool = False  # a cross entropy against probabilities

    @property
    def reduction(self) -> str | None:
        name = _REDUCTION.get(saved(self.visit.node, "reduction"))
        if name in (None, "none"):
            above = [one.name for one in self.visit.up()]
            name = "mean" if "Mean" in above else "sum" if "Sum" in above else name
        return name

    @property
    def ignore_index(self) -> int | None:
        index = saved(self.visit.node, "ignore_index")
        return None if index is None else signed(index, 0)

    @property
    def weighted(self) -> bool:
        return any(isinstance(saved(self.visit.node, name), Tensor) for name in ("weight", "pos_weight"))


def terms_of(walk: Walk) -> list[LossTerm]:
    found: list[LossTerm] = []
    for visit in walk.visits:
        term = _term(visit, walk)
        if term is not None:
            found.append(term)
            if len(found) == MOST_TERMS:
                break
    return found


def _term(visit: Visit, walk: Walk) -> LossTerm | None:
    kind = LOSS_NODES.get(f"{visit.name}Backward")
    if kind is not None:
        return _function(visit, walk, kind)
    if visit.name in ("Pow", "Abs", "Mul"):
        return _difference(visit, walk)
    if visit.name == "LogSoftmax":
        return _soft_labels(visit, walk)
    return _picked(visit, walk) if visit.name in ("Gather", "Index") else None


def _function(visit: Visit, walk: Walk, kind: str) -> LossTerm:
    fed, softmax = walk.operand(visit), None
    below = walk.past_shapes(fed)
    if kind == "nll" and below is not None and below.name == "LogSoftmax":
        kind, softmax, fed = "cross_entropy", below, walk.operand(below)
    inputs, target = saved(visit.node, "self"), saved(visit.node, "target")
    two_sided = sum(child is not None for child, _ in visit.edges) > 1  # predictions apart, on purpose
    return LossTerm(kind, visit, fed, _tensor(inputs), _tensor(target), softmax, None if two_sided else visit.sign)


def _difference(visit: Visit, walk: Walk) -> LossTerm | None:
    """`(a - b) ** 2`, `(a - b).abs()`, `(a - b) * (a - b)`, of what a model put out and what needs no gradient."""
    if visit.name == "Pow" and saved(visit.node, "exponent") != 2:
        return None
    children = visit.edges
    if visit.name == "Mul" and (len(children) != 2 or children[0][0] is None or children[0][0] is not children[1][0]):
        return None
    minus = walk.past_shapes(walk.operand(visit))
    if minus is None or minus.name not in ("Sub", "Rsub"):
        return None
    operands = [child for child, _ in minus.edges]
    if all(child is not None for child in operands) and minus.name == "Sub":
        return None  # two predictions compared: a distance, not a target
    fed = walk.operand(minus)
    if fed is None or not _comes_from_a_model(fed, walk):
        return None
    return LossTerm("l1" if visit.name == "Abs" else "mse", visit, fed, sign=visit.sign)


def _comes_from_a_model(visit: Visit, walk: Walk) -> bool:
    """Past shapes and a few element-wise operations: a loop may squash or scale what the model put out."""
    one: Visit | None = visit
    for _ in range(8):
        if one is None:
            return False
        if "neuraldbg_pass" in one.node.metadata:
            return True
        if one.name not in SHAPES and one.name not in (*RANGES, *_THROUGH, "Mul", "Add", "Div"):
            return False
        one = walk.operand(one)
    return False


def _soft_labels(visit: Visit, walk: Walk) -> LossTerm | None:
    """`-(target * log_softmax(x)).sum()`, which is what cross_entropy does with probabilities as target."""
    above = visit.above
    if above is None or above.name != "Mul":
        return None
    target = saved(above.node, "other") if visit.slot == 0 else saved(above.node, "self")
    other = above.edges[1 - visit.slot][0] if len(above.edges) == 2 else None
    result = saved(visit.node, "result")
    if other is not None or not isinstance(target, Tensor) or not isinstance(result, Tensor):
        return None
    if target.shape != result.shape or not _summed_at_once(above):
        return None
    sign = None if visit.sign is None else -visit.sign
    return LossTerm("cross_entropy", visit, walk.operand(visit), result, target, visit, sign, soft=True)


def _summed_at_once(visit: Visit) -> bool:
    """Whether nothing but sums, means, signs and constant factors lie above: no weight of a sample's own."""
    for one in visit.up():
        if one.name in ("Mul", "Div"):
            by = saved(one.node, "other")
            if isinstance(by, Tensor) and by.numel() > 1 and by.shape[0] > 1:
                return False
        elif one.name not in ("Sum", "Mean", "Neg", "Add", "Sub", *SHAPES):
            return False
    return True


def _picked(visit: Visit, walk: Walk) -> LossTerm | None:
    """`-log_probs.gather(1, y).mean()` and `-log_probs[range(n), y].mean()`"""
    below = walk.past_shapes(walk.operand(visit))
    if below is None or below.name != "LogSoftmax" or visit.sign is None or not _summed_at_once(visit):
        return None
    result = saved(below.node, "result")
    target = saved(visit.node, "index") if visit.name == "Gather" else None
    fits = (
        isinstance(target, Tensor)
        and isinstance(result, Tensor)
        and target.numel() * result.shape[-1] == result.numel()
    )
    labels = target.reshape(-1) if fits and isinstance(target, Tensor) else None
    return LossTerm("picked_log_prob", visit, walk.operand(below), _tensor(result), labels, below, -visit.sign)


def _tensor(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) else None


# -- what made the predictions -------------------------------------------------------------------------------------


def activation_of(term: LossTerm, walk: Walk) -> tuple[Visit, str] | None:
    """The squashing operation right in front of the loss, and what it amounts to ("Softmax", "LogSoftmax", ...)."""
    return _squashed(term.fed, walk)


def _squashed(visit: Visit | None, walk: Walk, room: int = 8) -> tuple[Visit, str] | None:
    visit = walk.past_shapes(visit)
    if visit is None or room == 0:
        return None
    below = walk.past_shapes(walk.operand(visit))
    if visit.name in ("Exp", "Log") and below is not None and below.name in _SOFTMAXES:
        return below, "Softmax" if visit.name == "Exp" else "LogSoftmax"
    if visit.name in RANGES or visit.name in _SOFTMAXES:
        return visit, "Softmax" if visit.name == "SafeSoftmax" else visit.name
    if visit.name in _JOINED:
        return _of_every_branch(visit, walk, room - 1)
    if visit.name in _CHOSEN:
        found = _squashed(walk.operand(visit), walk, room - 1)
        return found if found is not None and found[1] in ("Sigmoid", "Softmax") else None
    constant = visit.name in ("Add", "Sub") and sum(child is not None for child, _ in visit.edges) == 1
    return _squashed(below, walk, room - 1) if visit.name in _THROUGH or constant else None


def _of_every_branch(visit: Visit, walk: Walk, room: int) -> tuple[Visit, str] | None:
    """Heads that were joined: the operation at the end of each, where all of them end in the same."""
    branches = [walk.of.get(child) for child, _ in visit.edges if child is not None]
    found = [_squashed(branch, walk, room) for branch in branches[:MOST_BRANCHES]]
    if not found or any(one is None or found[0] is None or one[1] != found[0][1] for one in found):
        return None
    return found[0]


def range_of(visit: Visit, name: str) -> tuple[float, float] | None:
    if name == "Hardtanh":
        low, high = saved(visit.node, "min_val"), saved(visit.node, "max_val")
        return (float(low), float(high)) if isinstance(low, int | float) and isinstance(high, int | float) else None
    if name == "Elu":
        alpha = saved(visit.node, "alpha")
        return (-float(alpha), math.inf) if isinstance(alpha, int | float) else None
    return RANGES.get(name)


def softmax_axis(visit: Visit) -> tuple[int, tuple[int, ...]] | None:
    """The dim a softmax runs over, counted from the front, and the shape it has."""
    result, dim = saved(visit.node, "result"), saved(visit.node, "dim")
    if not isinstance(result, Tensor) or not isinstance(dim, int):
        return None
    return signed(dim, result.dim()), tuple(result.shape)


def chain_of(term: LossTerm, walk: Walk, most: int = 6) -> list[str]:
    """Names of the operations that made the predictions, last one first, without changes of shape."""
    names: list[str] = []
    visit = walk.past_shapes(term.fed)
    while visit is not None and len(names) < most:
        names.append(visit.name)
        visit = walk.past_shapes(walk.operand(visit))
    return names


def passes_below(visit: Visit | None, walk: Walk, limit: int = 64) -> list[int]:
    """Ids of the passes whose outputs a value was computed from."""
    waiting, seen, found = [visit] if visit is not None else [], set[Any](), []
    while waiting and limit:
        one = waiting.pop(0)
        limit -= 1
        mark = one.node.metadata.get("neuraldbg_pass")
        if mark is not None:
            found.append(int(mark))
            continue
        for child, _ in one.edges:
            below = walk.of.get(child) if child is not None else None
            if below is not None and child not in seen:
                seen.add(child)
                waiting.append(below)
    return sorted(set(found))


# -- shapes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operands:
    """Shapes of the two sides of an element-wise loss, before they were broadcast, and of the result."""

    prediction: tuple[int, ...]
    target: tuple[int, ...] | None  # None where the graph does not tell
    result: tuple[int, ...]
    difference: Tensor | None = None  # prediction - target, where the graph keeps it
    reshaped: bool = False  # the loop gave the prediction one more axis on purpose


def operands_of(term: LossTerm, walk: Walk) -> Operands | None:
    if term.kind in ("mse", "l1", "smooth_l1", "huber") and term.target is not None:
        below = walk.operand(term.visit)
        if below is None or term.inputs is None:
            return None
        sizes = saved(below.node, "self_sym_sizes") if below.name == "Expand" else term.inputs.shape
        return Operands(
            tuple(sizes), _unexpanded(term.target), tuple(term.inputs.shape), reshaped=reshaped(below, walk)
        )
    if term.kind in ("mse", "l1") and term.visit.name in ("Pow", "Abs", "Mul"):
        minus = walk.past_shapes(walk.operand(term.visit))
        if minus is None or minus.shape is None:
            return None
        return _subtracted(term, minus, walk)
    return None


def _subtracted(term: LossTerm, minus: Visit, walk: Walk) -> Operands | None:
    result = minus.shape
    entry = next(((child, out) for child, out in minus.edges if child is not None), None)
    if entry is None or result is None:
        return None
    below = walk.of.get(entry[0])
    sizes = shape_of(entry[0], entry[1])
    if below is not None and below.name == "Expand":
        sizes = tuple(saved(below.node, "self_sym_sizes") or ()) or sizes
    if sizes is None:
        return None
    kept = saved(term.visit.node, "self")
    difference = kept if isinstance(kept, Tensor) and tuple(kept.shape) == result else None
    return Operands(sizes, None, result, difference, below is not None and reshaped(below, walk))


def reshaped(visit: Visit, walk: Walk) -> bool:
    """Whether the loop gave a prediction one more axis, which is no oversight."""
    return any(one.name == "Unsqueeze" or _viewed_wider(one) for one in _shape_changes(visit, walk))


def _viewed_wider(visit: Visit) -> bool:
    before, after = saved(visit.node, "self_sym_sizes"), visit.shape
    views = ("View", "UnsafeView", "ReshapeAlias")
    return visit.name in views and before is not None and after is not None and len(after) > len(before)


def _shape_changes(visit: Visit, walk: Walk) -> Iterator[Visit]:
    one: Visit | None = visit
    for _ in range(8):
        if one is None or one.name not in SHAPES or "neuraldbg_pass" in one.node.metadata:
            return
        yield one
        one = walk.operand(one)


def _unexpanded(tensor: Tensor) -> tuple[int, ...]:
    """The shape before `expand`: an expanded axis has stride 0."""
    sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    while len(sizes) > 1 and sizes[0] == 1 and tensor.shape[0] > 1:
        sizes.pop(0)  # an axis that broadcasting put in front
        break
    return tuple(sizes)


def time_slice(term: LossTerm, walk: Walk) -> tuple[int, int] | None:
    """(axis, first position) of a slice the loop took of the predictions, e.g. `logits[:, :-1]` or `logits[:, 1:]`."""
    one = term.fed
    for _ in range(8):
        if one is None or one.name not in SHAPES:
            return None
        if one.name == "Slice":
            sizes = saved(one.node, "self_sym_sizes")
            axis = signed(saved(one.node, "dim"), len(sizes))
            return axis, signed(saved(one.node, "start"), int(sizes[axis]))
        one = walk.operand(one)
    return None
