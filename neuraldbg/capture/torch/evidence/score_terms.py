"""Score-function terms of a loss: the logarithm of the probability of what was drawn, times what it was worth.

The graph says with which sign such a product enters the loss, and whether the worth carries a graph of its own; which
of the script's variables the worth rises with is read from their values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.evidence.graph_walk import Visit, Walk, multiplier, saved, shared_walk
from neuraldbg.capture.torch.frames import let_go
from neuraldbg.capture.torch.origin.lines import made_at
from neuraldbg.capture.torch.ungraded import ungraded

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

LOOKS = 3  # in the first updates, while autograd keeps the line of every operation
LINES = 8
NODES = 400
MOST_TERMS = 4
_DEPTH = 14  # operations between a product and the probability in it
_SAME_VALUE = ("Stack", "Cat", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias", "ToCopy",
               "T", "Expand")  # fmt: skip
_COMPARING = ("MseLoss", "SmoothL1Loss", "HuberLoss")
_LARGEST = 65_536
_VARIABLES = 200
Edge = tuple[Any, int]  # a node of the graph and which of its results


@dataclass(slots=True)
class ScoreTerm:
    product: Visit
    sign: float  # 1: minimising the loss lowers the worth of what is drawn
    worth: Tensor | None  # None: it has a graph
    baseline: Baseline | None = None
    slot: int = 1  # which operand of the product the worth is


@dataclass(slots=True)
class Baseline:
    """The output that is subtracted in a worth with a graph, and that another term fits to a constant."""

    visit: Visit  # the subtraction
    made_by: Visit | None


class ScoreTerms:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._looks: dict[int, int] = {}
        self.core.take_part("backward_begun", "score terms", self._begun, rarely=True)

    def _begun(self, loss: Tensor | None, source: int) -> None:
        core = self.core
        if loss is None or loss.grad_fn is None or not core.closely or core.packed or loss.is_cuda:
            return
        seen = self._looks.get(source, 0)
        if seen >= LOOKS or (source not in self._looks and len(self._looks) >= LINES):
            return
        self._looks[source] = seen + 1
        terms = list(score_terms(shared_walk(core, loss, NODES)))
        single = [term for term in terms if term.worth is not None and term.worth.numel() == 1]
        others = [term for term in terms if term not in single][:MOST_TERMS]
        for term in others:
            self._write(source, term, term.worth)
        if len(single) > 1 and len({term.sign for term in single}) == 1:  # one product per action
            worths = [term.worth.reshape(()).double() for term in single if term.worth is not None]
            self._write(source, single[0], torch.stack(worths))

    def _write(self, source: int, term: ScoreTerm, worth: Tensor | None) -> None:
        frames = self.core.recorder.frames
        base = term.baseline
        rises = [] if worth is None else attempt(lambda: self._rises_with(worth.detach())) or []
        inside = () if base is None or base.made_by is None else base.made_by.inside
        self.core.recorder.fact(
            "score_term",
            source_id=source,
            sign=term.sign,
            constant=term.worth is not None,
            slot=term.slot,
            both_ways=worth is not None and bool((worth > 0).any()) and bool((worth < 0).any()),
            line=made_at(term.product.node, frames),
            rises_with=rises,
            baseline_line=None if base is None else made_at(base.visit.node, frames),
            baseline_inside=list(inside),
            baseline=base is not None,
        )

    def _rises_with(self, worth: Tensor) -> list[list[Any]]:
        """Variables of the script with as many numbers, and how they go together with the worth."""
        found: dict[str, float] = {}
        wanted = _numbers(worth)
        if wanted is None or wanted.numel() < 4 or float(wanted.std()) == 0.0:
            return []
        for frame in self.core.recorder.frames.user_frames(3):
            for name, value in list(frame.f_locals.items())[:_VARIABLES]:
                numbers = None if name in found else _numbers(value)
                if numbers is not None and numbers.numel() == wanted.numel() and float(numbers.std()) > 0.0:
                    found[name] = float(torch.corrcoef(torch.stack([wanted, numbers]))[0, 1])
            let_go(frame)
        return [[name, one] for name, one in found.items() if abs(one) > 0.2][:16]


@ungraded
def _numbers(value: Any) -> Tensor | None:
    if type(value) is list and 1 < len(value) <= 4096 and all(isinstance(one, int | float) for one in value):
        return torch.tensor(value, dtype=torch.float64)
    several = type(value) is list and 1 < len(value) <= 64 and all(isinstance(one, Tensor) for one in value)
    if several and len({one.shape for one in value}) == 1 and not value[0].is_cuda:
        value = torch.stack([one.detach() for one in value])
    if not isinstance(value, Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
        return None
    if not 1 < value.numel() <= _LARGEST or value.is_complex():
        return None
    return value.detach().double().reshape(-1)


# -- reading the graph -----------------------------------------------------------------------------------------------


def score_terms(graph: Walk) -> Iterator[ScoreTerm]:
    for visit in graph.named("Mul"):
        if visit.sign is None or len(visit.node.next_functions) != 2:
            continue
        for slot in (0, 1):
            below = graph.below(visit, slot)
            if below is None:
                continue
            other = visit.node.next_functions[1 - slot]
            worth = saved(visit.node, "self" if slot else "other") if other[0] is None else None
            if isinstance(worth, int | float):
                worth = torch.tensor(float(worth))
            if other[0] is None and not isinstance(worth, Tensor):
                continue
            rising = _log_probability(below, graph, whole=worth is not None and worth.numel() == 1)
            if rising is None:
                continue
            base = None if other[0] is None else _baseline(visit, below, other, graph)
            yield ScoreTerm(visit, visit.sign * rising, worth, base, 1 - slot)


def _log_probability(start: Visit, graph: Walk, *, whole: bool) -> float | None:
    """1 where a value rises with the logarithm of the probability of something constant, -1 where it falls. `whole` =
    it is multiplied by one number: a squared error or a mean is then a weighted term and no score."""
    waiting: list[tuple[Visit, float, int]] = [(start, 1.0, 0)]
    while waiting:
        one, sign, depth = waiting.pop(0)
        if whole and one.name in ("Mean", "Pow"):
            return None
        found = _recognised(one, graph)
        if found is not None:
            return sign * found
        if depth >= _DEPTH or one.name in ("LogSoftmax", "Softmax") or "neuraldbg_pass" in one.node.metadata:
            continue
        for slot, (child, _) in enumerate(one.node.next_functions):
            below = graph.of.get(child) if child is not None else None
            by = 1.0 if one.name in ("Exp", "Clamp", "Minimum", "Maximum") else multiplier(one, slot)
            if below is not None and by:
                waiting.append((below, sign * (1.0 if by > 0 else -1.0), depth + 1))
            if one.name in ("Stack", "Cat"):
                break
    return None


def _recognised(visit: Visit, graph: Walk) -> float | None:
    if visit.name in ("NllLoss", "NllLoss2D", "BinaryCrossEntropyWithLogits", "BinaryCrossEntropy"):
        return -1.0 if saved(visit.node, "reduction") == 0 else None
    if visit.name in ("Gather", "Index"):
        below = graph.past_shapes(graph.operand(visit))
        return 1.0 if below is not None and _normalised(below, graph) else None
    if visit.name == "Log":
        chosen = graph.operand(visit)
        while chosen is not None and chosen.name in ("Clamp", "ClampMin", "Squeeze", "Add"):
            chosen = graph.operand(chosen)
        below = graph.past_shapes(graph.operand(chosen)) if chosen and chosen.name in ("Gather", "Index") else None
        return 1.0 if below is not None and below.name == "Softmax" else None
    if visit.name == "Pow" and saved(visit.node, "exponent") == 2:
        return -1.0 if _compares_with_constant(graph.past_shapes(graph.operand(visit))) else None
    return None


def _normalised(visit: Visit, graph: Walk) -> bool:
    """Logarithms of probabilities: log_softmax, `x - x.logsumexp()`, log of a softmax."""
    if visit.name == "LogSoftmax":
        return True
    if visit.name == "Sub":
        other = graph.below(visit, 1)
        return other is not None and other.name == "Logsumexp"
    if visit.name == "Log":
        below = graph.past_shapes(graph.operand(visit))
        while below is not None and below.name in ("Clamp", "ClampMin", "Div", "Add"):
            below = graph.past_shapes(graph.operand(below))
        return below is not None and below.name == "Softmax"
    return False


def _compares_with_constant(visit: Visit | None) -> bool:
    if visit is None or visit.name not in ("Sub", "Rsub"):
        return False
    return sum(child is not None for child, _ in visit.node.next_functions) == 1


def _baseline(product: Visit, probability: Visit, worth: Edge, graph: Walk) -> Baseline | None:
    """In `log_prob * (reward - value)` the value, where a term of its own fits it to a constant as well."""
    fitted = {edge for visit in graph.visits for edge in _fitted(visit, product, graph)}
    behind = set(_below(probability.node, NODES))
    for node in _below(worth[0], 64):
        visit = graph.of.get(node)
        if visit is None or visit.name not in ("Sub", "Rsub", "Add"):
            continue
        for edge in visit.node.next_functions:
            value = _value(edge)
            if value is not None and value in fitted and value[0] not in behind:
                return Baseline(visit, graph.past_shapes(graph.of.get(value[0])))
    return None


def _fitted(visit: Visit, product: Visit, graph: Walk) -> list[Edge]:
    """What a squared or absolute difference compares with a constant."""
    if visit.name in ("Pow", "Abs"):
        minus = graph.past_shapes(graph.operand(visit))
        if minus is None or minus.name not in ("Sub", "Rsub"):
            return []
        compared = minus.node
    elif visit.name in _COMPARING:
        compared = visit.node
    else:
        return []
    if any(one is product for one in visit.up()):
        return []
    edges = [_value(edge) for edge in compared.next_functions]
    return [edge for edge in edges if edge is not None]


def _value(edge: Edge) -> Edge | None:
    """Past changes of shape that keep all numbers."""
    for _ in range(16):
        node, number = edge
        if node is None:
            return None
        name = node.name().rstrip("0123456789").removesuffix("Backward")
        if name not in _SAME_VALUE or "neuraldbg_pass" in node.metadata:
            return node, number
        following = next((one for one in node.next_functions if one[0] is not None), None)
        if following is None:
            return node, number
        edge = following
    return edge


def _below(node: Any, limit: int) -> Iterator[Any]:
    waiting, seen = [node], {node}
    while waiting and limit:
        one = waiting.pop(0)
        limit -= 1
        yield one
        for child, _ in one.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
