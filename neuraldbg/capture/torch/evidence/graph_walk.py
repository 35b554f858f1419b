"""One walk over the graph of a loss: every operation with its sign in the loss and the modules it ran in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.loss import RESHAPING, without_number

if TYPE_CHECKING:
    from neuraldbg.capture.torch.core import Core

WRAPPED = 2**63  # torch hands out a negative dim or index as an unsigned number
SMALL = 65_536  # elements of a factor that are looked at
SHAPES = frozenset(name.removesuffix("Backward") for name in RESHAPING)
_SAME = SHAPES | {"Stack", "Cat", "MaskedFill", "Sum"}
LEAF: Any = vars(torch._C._functions)["AccumulateGrad"]  # torch's stubs leave it out
# monotone: the sign survives them, the factor does not
_RISING = ("Sqrt", "Log1P", "Log1p", "Log", "Exp", "ClampMin", "Minimum", "Maximum")


@dataclass(slots=True, eq=False)
class Visit:
    """An operation met on the way down from the loss, by the shortest path."""

    node: Any
    name: str  # "Softmax" of SoftmaxBackward0
    above: Visit | None
    slot: int  # which operand of the operation above it made
    output: int  # which of its outputs that was
    sign: float | None  # of its share in the loss: 1, -1; None past anything that may turn it
    factor: float | None  # what the loss multiplies it by; None past anything that is not linear
    inside: tuple[int, ...]  # sites of the modules it ran in, outermost first
    marks: dict[Any, Any]  # what watchers noted at the node
    edges: tuple[tuple[Any, int], ...]  # what made its operands: torch makes them anew whenever it is asked

    @property
    def layer(self) -> int | None:
        return self.inside[-1] if self.inside else None

    @property
    def shape(self) -> tuple[int, ...] | None:
        return shape_of(self.node, self.output)

    def up(self) -> Iterator[Visit]:
        one = self.above
        while one is not None:
            yield one
            one = one.above


@dataclass(slots=True)
class Walk:
    root: Any = None
    whole: bool = True  # nothing was left out for want of room
    packed: bool = False  # something was left out because its tensors are packed
    visits: list[Visit] = field(default_factory=list)
    of: dict[Any, Visit] = field(default_factory=dict)
    passes: set[int] = field(default_factory=set)
    leaves: list[tuple[Any, Visit]] = field(default_factory=list)  # each time that an operation takes one

    def named(self, *names: str) -> list[Visit]:
        return [visit for visit in self.visits if visit.name in names]

    def below(self, visit: Visit, slot: int = 0) -> Visit | None:
        """What made one operand; None where it needs no gradient."""
        edges = visit.edges
        return self.of.get(edges[slot][0]) if slot < len(edges) and edges[slot][0] is not None else None

    def operand(self, visit: Visit) -> Visit | None:
        """What made the first operand that needs a gradient."""
        for child, _ in visit.edges:
            if child is not None and (one := self.of.get(child)) is not None:
                return one
        return None

    def past_shapes(self, visit: Visit | None) -> Visit | None:
        """The operation that computed a value, past mere changes of shape, type or selection."""
        room = 64
        while visit is not None and room and visit.name in SHAPES:
            visit = self.operand(visit)
            room -= 1
        return visit


def shared_walk(core: Core, loss: Tensor, limit: int) -> Walk:
    """As `walk`; the one that another watcher of this backward made, if it is the same. Only for those who are told
    that one begins: it is let go of before the backward runs."""
    known = known_walk(core, loss)
    if known is not None and len(known.visits) <= limit:
        return known
    made = core.graph = walk(loss, limit)
    return made


def known_walk(core: Core, loss: Tensor) -> Walk | None:
    """Of all of the graph but what is packed, if another watcher of this backward made one."""
    known: Walk | None = core.graph
    return known if known is not None and known.root is loss.grad_fn and known.whole else None


def walk(loss: Tensor, limit: int) -> Walk:
    """Breadth first from the loss, without its leaves (weights). Holds nodes of the graph: let go of it before the
    backward runs."""
    result = Walk(loss.grad_fn)
    if result.root is None:
        return result
    of, visits = result.of, result.visits
    first = of[result.root] = _visit(result.root, None, 0, 0)
    waiting = deque([first])
    while waiting and len(visits) < limit:
        one = waiting.popleft()
        if "neuraldbg_packed" in one.marks:
            result.packed = True
            continue  # to look at what it saved would run a checkpointed forward again
        visits.append(one)
        mark = one.marks.get("neuraldbg_pass")
        if mark is not None:
            result.passes.add(mark)
        for slot, (child, output) in enumerate(one.edges):
            if type(child) is LEAF:
                result.leaves.append((child, one))
            elif child is not None and child not in of:
                below = of[child] = _visit(child, one, slot, output)
                waiting.append(below)
    result.whole = not waiting
    return result


@lru_cache(maxsize=1024)
def _operation(name: str) -> str:
    return without_number(name).removesuffix("Backward")


def _visit(node: Any, above: Visit | None, slot: int, output: int) -> Visit:
    sign, factor = (1.0, 1.0) if above is None else (None, None) if above.sign is None else _passed_on(above, slot)
    inside = () if above is None else above.inside
    marks = node.metadata
    if marks:
        left, entered = marks.get("neuraldbg_in"), marks.get("neuraldbg_out")
        if left and inside:
            inside = tuple([site for site in inside if site not in left])
        for site in reversed(entered or ()):
            inside = inside if site in inside else (*inside, site)
    name = _operation(node.name())
    return Visit(node, name, above, slot, output, sign, factor, inside, marks, node.next_functions)


def _passed_on(above: Visit, slot: int) -> tuple[float | None, float | None]:
    """Sign and factor of one operand, given those of the result."""
    if above.sign is None:
        return None, None
    by = multiplier(above, slot)
    if by is None:
        return (above.sign if above.name in _RISING else None), None
    if by == 0 or not math.isfinite(by):
        return None, None
    return math.copysign(1.0, by) * above.sign, None if above.factor is None else above.factor * by


def multiplier(visit: Visit, slot: int) -> float | None:
    name, node = visit.name, visit.node
    if name in _SAME:
        return 1.0
    if name == "Mean":
        return _share_of_mean(visit)
    if name == "Neg":
        return -1.0
    if name in ("Add", "Sub", "Rsub"):
        alpha = _number(saved(node, "alpha"))
        turned = (name == "Sub" and slot == 1) or (name == "Rsub" and slot == 0)
        weighed = alpha if (slot == 1) != (name == "Rsub") else 1.0
        return None if weighed is None else -weighed if turned else weighed
    if name == "Mul":
        return _number(saved(node, "other") if slot == 0 else saved(node, "self"))
    if name == "Div" and slot == 0:
        by = _number(saved(node, "other"))
        return None if not by else 1.0 / by
    return None


def _share_of_mean(visit: Visit) -> float:
    sizes, shape = saved(visit.node, "self_sym_sizes"), visit.shape
    before, after = math.prod(sizes or ()), math.prod(shape or ())
    return after / before if before else 1.0


def _number(value: Any) -> float | None:
    """A constant factor; of a weight per element the mean, when all are of one sign."""
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, Tensor) or value.device.type != "cpu" or value.numel() == 0 or value.is_complex():
        return None
    if value.numel() == 1:
        return float(value)
    if value.numel() > SMALL:
        return None
    low, high = float(value.min()), float(value.max())
    return float(value.double().mean()) if low >= 0 or high <= 0 else None


def saved(node: Any, name: str) -> Any:
    """What the graph keeps for backward; None when it was let go, or never kept."""
    try:
        value = getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None
    return value.detach() if isinstance(value, Tensor) else value


def signed(number: int, size: int) -> int:
    """A dim, start or end as the user meant it, counted from the front."""
    number = number - 2 * WRAPPED if number >= WRAPPED else number
    return number + size if number < 0 else number


def shape_of(node: Any, output: int = 0) -> tuple[int, ...] | None:
    """The shape of one result of an operation."""
    try:
        return tuple(map(int, node._input_metadata[output].shape))
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None
