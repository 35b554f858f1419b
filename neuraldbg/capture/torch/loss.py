"""What a loss is made of, read from its autograd graph: no loss function is patched, however it was imported."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import Tensor

WALK_LIMIT = 4000  # nodes; a loss is read near its root
_TEXT_DEPTH = 4

# The node that a loss function leaves in the graph, and what people call that loss.
LOSS_NODES = {
    "NllLossBackward": "nll",
    "NllLoss2DBackward": "nll",
    "MseLossBackward": "mse",
    "SmoothL1LossBackward": "smooth_l1",
    "HuberLossBackward": "huber",
    "BinaryCrossEntropyBackward": "bce",
    "BinaryCrossEntropyWithLogitsBackward": "bce_with_logits",
    "CtcLossBackward": "ctc",
    "MultiMarginLossBackward": "multi_margin",
    "MultilabelMarginLossBackward": "multilabel_margin",
    "SoftMarginLossBackward": "soft_margin",
    "KlDivBackward": "kl_div",
    "CrossEntropyLossBackward": "cross_entropy",
}
_OTHER_WORK = ("Exp", "Log", "Norm", "LinalgVectorNorm", "Gather", "Index", "Select", "Softplus")
RESHAPING = frozenset(
    f"{name}Backward"
    for name in (
        "View",
        "UnsafeView",
        "ReshapeAlias",
        "Index",
        "Permute",
        "Transpose",
        "ToCopy",
        "Squeeze",
        "Unsqueeze",
        "Slice",
        "Select",
        "Clone",
        "Alias",
        "Expand",
        "Unbind",
        "Split",
        "SplitWithSizes",
        "MaskedSelect",
        "T",
        "UnsafeSplit",
        "IndexSelect",
        "Repeat",
        "Flip",
        "Roll",
        "AsStrided",
    )
)
_COMPARING = ("Sub", "Rsub", "Pow", "Abs", "Log", "Exp")
_REDUCTION = {0: "none", 1: "mean", 2: "sum"}


@dataclass(slots=True)
class Term:
    """One recognised part of a loss."""

    kind: str
    node: str
    fed_by: str | None = None  # the node that produced its input
    reduction: str | None = None
    inputs: Tensor | None = None
    target: Tensor | None = None


@dataclass(slots=True)
class LossAnatomy:
    terms: list[Term] = field(default_factory=list)
    text: str = ""
    passes: set[int] = field(default_factory=set)  # pass outputs the loss was computed from
    in_model: bool = False  # the loss itself came out of the model

    @property
    def kinds(self) -> list[str]:
        """Distinct kinds, in the order they were met. A loss of nothing we know is `custom`."""
        kinds = list(dict.fromkeys(term.kind for term in self.terms))
        return kinds or ["custom"]

    @property
    def reduction(self) -> str | None:
        return next((term.reduction for term in self.terms if term.reduction), None)


def bare(node: Any) -> str:
    """`NllLossBackward0` -> `NllLossBackward`."""
    return without_number(node.name())


@lru_cache(maxsize=1024)
def without_number(name: str) -> str:
    return name.rstrip("0123456789").rsplit("::", 1)[-1]


def anatomy_of(loss: Tensor, *, passes_seen: bool = False) -> LossAnatomy:
    """Walk from the loss down to the outputs of passes. Nothing of the graph is held afterwards but saved loss
    inputs and targets."""
    result = LossAnatomy()
    root = loss.grad_fn
    if root is None:
        return result
    result.text = describe(root)
    custom = False
    for node, path in _walk(root, result):
        term = _recognise(node, path, passes_seen)
        if term is not None:
            result.terms.append(term)
        elif _is_custom_leaf(node):
            custom = True
    if custom and result.terms and not result.in_model:
        result.terms.append(Term("custom", "arithmetic"))
    return result


def packed(node: Any) -> bool:
    """Inside of activation checkpointing: to read what it saved would run the forward again."""
    return "neuraldbg_packed" in node.metadata


def _walk(root: Any, result: LossAnatomy) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Breadth first; below a loss node or the output of a pass nothing more is read."""
    seen = {root}
    queue: deque[tuple[Any, tuple[str, ...]]] = deque([(root, ())])
    visited = 0
    while queue and visited < WALK_LIMIT:
        node, path = queue.popleft()
        visited += 1
        mark = node.metadata.get("neuraldbg_pass")
        if mark is not None:
            result.passes.add(mark)
            if "neuraldbg_scalar" in node.metadata and not any(name.startswith(_COMPARING) for name in path):
                result.in_model = True  # the model hands out its own loss
            elif node is not root:
                continue
        if packed(node):
            continue
        yield node, path
        if bare(node) in LOSS_NODES:
            _note_passes_below(node, result)
            continue
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                queue.append((child, (*path[-6:], bare(node))))


def _note_passes_below(node: Any, result: LossAnatomy, limit: int = 64) -> None:
    queue = deque([node])
    seen = set()
    while queue and limit:
        current = queue.popleft()
        limit -= 1
        mark = current.metadata.get("neuraldbg_pass")
        if mark is not None:
            result.passes.add(mark)
            continue
        for child, _ in current.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                queue.append(child)


def _recognise(node: Any, path: tuple[str, ...], passes_seen: bool) -> Term | None:
    name = bare(node)
    kind = LOSS_NODES.get(name)
    if kind is not None:
        return _loss_term(node, name, kind)
    if name in ("PowBackward", "AbsBackward"):
        return _difference(node, name, path) if _compares_outputs(node, passes_seen) else None
    return _soft_labels(node, name, path)


def _compares_outputs(node: Any, passes_seen: bool) -> bool:
    """Whether a squared or absolute value is of a difference, and of what a model put out (not of a weight or a
    norm)."""
    difference = _producer(node)
    if difference is None or bare(difference) not in ("SubBackward", "RsubBackward"):
        return False
    operands = [child for child, _ in difference.next_functions if child is not None]
    if passes_seen:
        return any(_is_output(operand) for operand in operands)
    return not all(
        bare(operand).startswith(("Norm", "LinalgVectorNorm", "Sqrt", "AccumulateGrad")) for operand in operands
    )


def _is_output(node: Any) -> bool:
    while node is not None:
        if "neuraldbg_pass" in node.metadata:
            return True
        if bare(node) not in RESHAPING:
            return False
        node = next((child for child, _ in node.next_functions if child is not None), None)
    return False


def _producer(node: Any) -> Any:
    """The node that computed the first input of this one, past mere changes of shape, type or selection."""
    below = next((child for child, _ in node.next_functions if child is not None), None)
    while below is not None and bare(below) in RESHAPING:
        below = next((child for child, _ in below.next_functions if child is not None), None)
    return below


def _loss_term(node: Any, name: str, kind: str) -> Term:
    below = _producer(node)
    if kind == "nll" and below is not None and bare(below) == "LogSoftmaxBackward":
        kind, below = "cross_entropy", _producer(below)
    fed_by = None if below is None else bare(below)
    reduction = _REDUCTION.get(getattr(node, "_saved_reduction", -1))
    return Term(kind, name, fed_by, reduction, _saved(node, "_saved_self"), _saved(node, "_saved_target"))


def _saved(node: Any, name: str) -> Tensor | None:
    """A tensor the graph keeps for backward; gone after a backward without retain_graph."""
    try:
        value = getattr(node, name, None)
    except RuntimeError:
        return None
    return value.detach() if isinstance(value, Tensor) else None


def _difference(node: Any, name: str, path: tuple[str, ...]) -> Term | None:
    """`((a - b) ** 2).mean()` and `(a - b).abs().mean()`"""
    if not _reduced(path) or (name == "PowBackward" and getattr(node, "_saved_exponent", None) != 2):
        return None
    return Term("mse" if name == "PowBackward" else "l1", name, reduction=_reduction_name(path))


def _soft_labels(node: Any, name: str, path: tuple[str, ...]) -> Term | None:
    """log_softmax times something, summed: cross-entropy with probabilities, or a KL divergence."""
    if name != "LogSoftmaxBackward" or "MulBackward" not in path[-3:]:
        return None
    if "GatherBackward" in path or "IndexBackward" in path:
        return None
    negated = "NegBackward" in path
    kind = "cross_entropy" if negated else "kl_div" if "SubBackward" in path[-3:] else "custom"
    below = _producer(node)
    return Term(kind, name, None if below is None else bare(below), _reduction_name(path))


def _reduced(path: tuple[str, ...]) -> bool:
    """Whether the value is averaged or summed as it is, at most weighted before: not one part of a longer formula."""
    above = [name for name in path[::-1] if not (name.startswith(("Mul", "Div")) or name in RESHAPING)]
    return bool(above) and above[0].startswith(("Mean", "Sum"))


def _reduction_name(path: tuple[str, ...]) -> str | None:
    if any(name.startswith("Mean") for name in path):
        return "mean"
    return "sum" if any(name.startswith("Sum") for name in path) else None


def _is_custom_leaf(node: Any) -> bool:
    """An operation outside the model that no recognised loss explains: exp, log, norm, gather and their like."""
    name = bare(node)
    return name.startswith(_OTHER_WORK) and "Softmax" not in name


def describe(node: Any, depth: int = 0) -> str:
    """`NllLoss(LogSoftmax(Addmm))`, a few levels deep."""
    name = bare(node).removesuffix("Backward")
    children = [child for child, _ in node.next_functions if child is not None]
    if depth >= _TEXT_DEPTH or not children:
        return name
    inner = [describe(child, depth + 1) for child in children[:3]]
    more = f", +{len(children) - 3}" if len(children) > 3 else ""
    return f"{name}({', '.join(inner)}{more})"


def leaves_of(loss: Tensor) -> list[Tensor]:
    """Trainable leaf tensors that a loss depends on (the graph is walked, not held)."""
    node = loss.grad_fn
    if node is None:
        return []
    seen, stack, found = {node}, [node], []
    while stack and len(seen) < 10_000:
        current = stack.pop()
        variable = getattr(current, "variable", None)
        if isinstance(variable, Tensor):
            found.append(variable)
        for child, _ in current.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    return found
