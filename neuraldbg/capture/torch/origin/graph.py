"""The graph of a loss that is still whole: which of its nodes keeps inputs that explain a NaN.

Works where nothing can be run again: loss code outside any model, compiled models, models with hooks of their own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.origin.values import describe, not_finite, readable
from neuraldbg.capture.torch.stats import plain

MOST_NODES = 4000
Path = tuple[int, ...]  # from the root: which of its inputs, which of that one's, ...


@dataclass(slots=True)
class Suspect:
    """A node whose kept inputs make its result, or the gradient through it, NaN or infinite."""

    op: str
    node: str
    path: Path
    above: tuple[str, ...]  # operations between it and the loss, nearest first
    inputs: list[dict[str, Any]] = field(default_factory=list)
    forward: bool = False  # its result is not finite
    backward: bool = False  # its result is, the gradient through it is not
    in_model: bool = False
    wide: dict[str, Any] | None = None  # what the same operation gives in float32


Walked = tuple[Any, Path, tuple[str, ...], bool]  # node, path, operations above, whether inside a pass
Held = tuple[str, str, Path, tuple[str, ...], dict[str, Any]]  # op, node name, path, above, saved values


def walk(root: Any, *, into_models: bool, limit: int = MOST_NODES) -> Iterator[Walked]:
    """Breadth first from the loss."""
    if root is None:
        return
    seen = {root}
    queue: deque[Walked] = deque([(root, (), (), False)])
    while queue and limit:
        node, path, above, inside = queue.popleft()
        limit -= 1
        inside = inside or "neuraldbg_pass" in node.metadata
        if inside and not into_models and "neuraldbg_scalar" not in node.metadata:
            continue
        yield node, path, above, inside
        name = op_of(node)
        for number, (child, _) in enumerate(node.next_functions):
            if child is not None and child not in seen:
                seen.add(child)
                queue.append((child, (*path, number), (name, *above[:11]), inside))


def op_of(node: Any) -> str:
    """`LogBackward0` -> `log`, `NllLossBackward0` -> `nll_loss`."""
    return op_named(node.name())


@lru_cache(1024)
def op_named(node: str) -> str:
    name = node.rstrip("0123456789").rsplit("::", 1)[-1].removesuffix("Backward")
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def at_path(root: Any, path: Path) -> Any:
    """The node at a place of the graph; None when the graph has another form this time."""
    for number in path:
        below = root.next_functions
        if number >= len(below) or below[number][0] is None:
            return None
        root = below[number][0]
    return root


def saved(node: Any, *names: str) -> dict[str, Any]:
    """Values that a node keeps for its backward; those that are gone or were overwritten are left out."""
    found = {}
    for name in names:
        value = attempt(lambda name=name: getattr(node, f"_saved_{name}", None))  # type: ignore[misc]
        if isinstance(value, Tensor | int | float):
            found[name] = value.detach() if isinstance(value, Tensor) else value
    return found


# -- what can go wrong -----------------------------------------------------------------------------------------------
# Each judge takes the kept values and tells (result not finite, gradient not finite).

Verdict = tuple[bool, bool]
Judge = Callable[[dict[str, Any]], Verdict]


def _any(condition: Tensor) -> bool:
    return bool(condition.any())


def _log(kept: dict[str, Any]) -> Verdict:
    x = kept.get("self")
    return (_finite(x) and _any(plain(x) <= 0), False) if isinstance(x, Tensor) else (False, False)


def _log1p(kept: dict[str, Any]) -> Verdict:
    x = kept.get("self")
    return (_finite(x) and _any(plain(x) <= -1), False) if isinstance(x, Tensor) else (False, False)


def _div(kept: dict[str, Any]) -> Verdict:
    x, divisor = kept.get("self"), kept.get("other")
    if not isinstance(divisor, Tensor):
        return divisor == 0, False
    zero = _any(plain(divisor) == 0)
    return zero and (not isinstance(x, Tensor) or _finite(x)), zero


def _sqrt(kept: dict[str, Any]) -> Verdict:
    result = kept.get("result")
    if not isinstance(result, Tensor):
        return False, False
    return _any(torch.isnan(plain(result))), _any(plain(result) == 0)


def _inverse(kept: dict[str, Any]) -> Verdict:
    result = kept.get("result")
    bad = isinstance(result, Tensor) and not_finite(result)
    return bad, bad


def _pow(kept: dict[str, Any]) -> Verdict:
    x, exponent = kept.get("self"), kept.get("exponent")
    if not isinstance(x, Tensor) or not isinstance(exponent, int | float):
        return False, False
    zero = _any(plain(x) == 0)
    negative = exponent != int(exponent) and _any(plain(x) < 0)
    overflow = _finite(x) and not_finite(x**exponent)
    return overflow or negative, zero and 0 < exponent < 1


def _exp(kept: dict[str, Any]) -> Verdict:
    result = kept.get("result")
    return (isinstance(result, Tensor) and _any(torch.isposinf(plain(result))), False)


def _softmax(kept: dict[str, Any]) -> Verdict:
    result = kept.get("result")
    return isinstance(result, Tensor) and _any(torch.isnan(plain(result))), False


def _beyond_one(kept: dict[str, Any]) -> Verdict:
    x = kept.get("self")
    if not isinstance(x, Tensor):
        return False, False
    return _any(plain(x).abs() > 1), _any(plain(x).abs() == 1)


def _atan2(kept: dict[str, Any]) -> Verdict:
    x, y = kept.get("self"), kept.get("other")
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return False, False
    return False, _any((plain(x) == 0) & (plain(y) == 0))


def _nll(kept: dict[str, Any]) -> Verdict:
    weight, reduction = kept.get("total_weight"), kept.get("reduction")
    return isinstance(weight, Tensor) and reduction == 1 and not _any(weight != 0), False


def _squares(kept: dict[str, Any]) -> Verdict:
    """A loss of differences: the square of a large finite one overflows."""
    x, y = kept.get("self"), kept.get("target")
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not (_finite(x) and _finite(y)):
        return False, False
    difference = (plain(x) - plain(y)).abs().max().to(x.dtype)
    return not_finite(difference * difference), False


def _xlogy(kept: dict[str, Any]) -> Verdict:
    factor, x = kept.get("self"), kept.get("other")
    if not isinstance(x, Tensor):
        return False, False
    zero = plain(x) <= 0
    wanted = zero & (plain(factor) != 0) if isinstance(factor, Tensor) else zero
    return _any(wanted), _any(zero)


def _logit(kept: dict[str, Any]) -> Verdict:
    x = kept.get("self")
    return (isinstance(x, Tensor) and _any((plain(x) <= 0) | (plain(x) >= 1)), False)


def _entropy(kept: dict[str, Any]) -> Verdict:
    x = kept.get("self")
    return (False, isinstance(x, Tensor) and _any(plain(x) == 0))


def _root_norm(kept: dict[str, Any]) -> Verdict:
    """Torch gives 0 as the gradient of the 2-norm at 0; other orders between 0 and 2 have none."""
    result, order = kept.get("result"), kept.get("p", kept.get("ord"))
    steep = isinstance(order, int | float) and order < 2 and order not in (0, 1)
    return False, steep and isinstance(result, Tensor) and _any(plain(result) == 0)


def _mean(kept: dict[str, Any]) -> Verdict:
    """The mean of nothing is 0/0."""
    return kept.get("self_sym_numel") == 0, False


def _spread(kept: dict[str, Any]) -> Verdict:
    result, x = kept.get("result"), kept.get("self")
    return isinstance(x, Tensor) and _finite(x) and isinstance(result, Tensor) and not_finite(result), False


def _reduced(kept: dict[str, Any]) -> Verdict:
    """A sum of finite half-precision values that is not finite."""
    x = kept.get("self")
    return isinstance(x, Tensor) and _finite(x) and not_finite(x.sum()), False


def _product(kept: dict[str, Any]) -> Verdict:
    x, y = kept.get("self"), kept.get("other")
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return False, False
    return _finite(x) and _finite(y) and not_finite(x * y), False


_KEPT: dict[str, tuple[tuple[str, ...], Judge]] = {
    "log": (("self",), _log),
    "log2": (("self",), _log),
    "log10": (("self",), _log),
    "log1p": (("self",), _log1p),
    "xlogy": (("self", "other"), _xlogy),
    "logit": (("self", "eps"), _logit),
    "special_entr": (("self",), _entropy),
    "norm": (("result", "p"), _root_norm),
    "linalg_vector_norm": (("result", "ord"), _root_norm),
    "div": (("self", "other"), _div),
    "sqrt": (("result",), _sqrt),
    "rsqrt": (("result",), _inverse),
    "reciprocal": (("result",), _inverse),
    "pow": (("self", "exponent"), _pow),
    "exp": (("result",), _exp),
    "expm1": (("result",), _exp),
    "softmax": (("result",), _softmax),
    "log_softmax": (("result",), _softmax),
    "logsumexp": (("result",), _softmax),
    "acos": (("self",), _beyond_one),
    "asin": (("self",), _beyond_one),
    "atanh": (("self",), _beyond_one),
    "atan2": (("self", "other"), _atan2),
    "nll_loss": (("total_weight", "reduction", "target", "ignore_index"), _nll),
    "nll_loss2_d": (("total_weight", "reduction", "target", "ignore_index"), _nll),
    "mse_loss": (("self", "target"), _squares),
    "mean": (("self_sym_numel",), _mean),
    "std": (("self", "result"), _spread),
    "mul": (("self", "other"), _product),
    "sum": (("self",), _reduced),
}
_STEEP = frozenset({"sqrt", "pow", "div", "rsqrt", "reciprocal", "acos", "asin", "atan2", "log", "xlogy",
                    "special_entr", "norm", "linalg_vector_norm"})  # fmt: skip


def _finite(x: Any) -> bool:
    return isinstance(x, Tensor) and not not_finite(x)


# -- looking ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def suspects(loss: Tensor, *, into_models: bool = True) -> list[Suspect]:
    """Nodes whose result is not finite although what they keep of their inputs is: the deepest first."""
    found = []
    for node, path, above, inside in walk(loss.grad_fn, into_models=into_models):
        suspect = attempt(lambda node=node: judge(op_of(node), _keep(node)))  # type: ignore[misc]
        if suspect is not None and suspect.forward:
            suspect.path, suspect.above, suspect.node, suspect.in_model = path, above, node.name(), inside
            found.append(suspect)
    return sorted(found, key=lambda one: -len(one.path))


def _keep(node: Any) -> dict[str, Any]:
    op = op_of(node)
    names = _KEPT.get(op)
    if op == "sum" and node.next_functions:
        below = _value_of(node.next_functions[0][0])
        return {} if below is None else {"self": below}
    return {} if names is None else saved(node, *names[0])


def _value_of(node: Any) -> Tensor | None:
    """The result of a node, where it follows from what the node keeps."""
    if node is None:
        return None
    kept = saved(node, "self", "other", "exponent", "result")
    x, y, power = kept.get("self"), kept.get("other"), kept.get("exponent")
    op = op_of(node)
    if op == "pow" and isinstance(x, Tensor) and isinstance(power, int | float):
        return x**power
    if op == "mul" and isinstance(x, Tensor) and isinstance(y, Tensor):
        return x * y
    result = kept.get("result")
    return result if isinstance(result, Tensor) and op in ("exp", "sqrt", "softmax", "log_softmax") else None


def judge(op: str, kept: dict[str, Any]) -> Suspect | None:
    if op not in _KEPT or not kept:
        return None
    forward, backward = _KEPT[op][1](kept)
    if not forward and not backward:
        return None
    wide = _wider(op, kept) if forward else None
    inputs = [{"name": name, **describe(value)} for name, value in kept.items() if isinstance(value, Tensor)]
    inputs += [{"name": name, "value": float(value)} for name, value in kept.items() if isinstance(value, int | float)]
    return Suspect(op, op, (), (), inputs, bool(forward), bool(backward), wide=wide)


def _wider(op: str, kept: dict[str, Any]) -> dict[str, Any] | None:
    """Of a float16 operation: whether float32 would hold its result. exp keeps only the result, so its range must
    do: below 88 nothing overflows float32, and float16 ends at exp(11)."""
    tensors = [value for value in kept.values() if isinstance(value, Tensor)]
    if not any(value.dtype is torch.float16 for value in tensors):
        return None
    wide = {name: value.float() if isinstance(value, Tensor) else value for name, value in kept.items()}
    if "result" not in kept and _KEPT[op][1](wide)[0]:
        return None
    return {"dtype": "float32", "nan": 0, "inf": 0}


def steep_places(loss: Tensor) -> list[tuple[str, Path]]:
    """Where in the loss code a gradient may become infinite although the value is finite."""
    found = []
    for node, path, _, _ in walk(loss.grad_fn, into_models=False, limit=400):
        op = op_of(node)
        if op in _STEEP and not _plain_power(op, node) and _keeps_tensor(node):
            found.append((op, path))
    return found[:12]


def _plain_power(op: str, node: Any) -> bool:
    exponent = saved(node, "exponent").get("exponent")
    return op == "pow" and (not isinstance(exponent, int | float) or exponent >= 1)


def _keeps_tensor(node: Any) -> bool:
    return any(isinstance(value, Tensor) for value in _keep(node).values())


def hold(loss: Tensor, places: list[tuple[str, Path]]) -> list[tuple[str, Path, dict[str, Any]]]:
    """What those places keep in this graph: looked at only if the gradients turn out bad."""
    found = []
    for op, path in places:
        node = at_path(loss.grad_fn, path)
        if node is not None and op_of(node) == op:
            found.append((op, path, _keep(node)))
    return found


def bad_saved(loss: Tensor) -> tuple[str, Path, str, Tensor] | None:
    """The deepest node of the loss code that was given something bad which no node of the graph made: a target."""
    found = None
    for node, path, _, inside in walk(loss.grad_fn, into_models=False):
        if inside:
            continue
        value = saved(node, "target").get("target")
        if isinstance(value, Tensor) and readable(value) and not_finite(value):
            found = (op_of(node), path, "target", value)
    return found


def bad_constants(loss: Tensor) -> list[Tensor]:
    """Bad tensors that nodes of the loss code keep and that need no gradient: computed outside of any graph."""
    found = []
    for node, _, _, inside in walk(loss.grad_fn, into_models=False, limit=400):
        if not inside:
            kept = saved(node, "other", "self", "weight", "target", "mask").values()
            found += [value for value in kept if readable(value) and not_finite(value)]
    return found[:8]


def factor_of(loss: Tensor) -> float | None:
    """By which number the loss is multiplied last, before backward: a loss scale of the script's own."""
    node: Any = loss.grad_fn
    if node is None or not node.name().startswith("MulBackward"):
        return None
    values = [v for v in saved(node, "other", "self").values() if not isinstance(v, Tensor) or v.numel() == 1]
    numbers = [float(v) for v in values if not isinstance(v, Tensor) or not v.is_cuda]
    numbers = [v for v in numbers if math.isfinite(v)]
    return max(numbers, default=None)
