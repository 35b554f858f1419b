"""Autograd nodes turned back into the operations that made them, from what each node keeps for its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Operation = Callable[..., Tensor]
_REDUCTIONS = ("none", "mean", "sum")
_WRAP = 1 << 63


class Unknown(Exception):
    """A node that cannot be turned back into its operation."""


def signed(value: Any) -> Any:
    """Saved integers come out unsigned: a dim of -1 is 2 ** 64 - 1."""
    if isinstance(value, tuple):
        return tuple(signed(item) for item in value)
    return value - (1 << 64) if isinstance(value, int) and not isinstance(value, bool) and value >= _WRAP else value


def saved(node: Any, name: str) -> Any:
    """What the node keeps under a name; None where it keeps nothing. A graph that was freed is unknown."""
    try:
        value = getattr(node, f"_saved_{name}", None)
    except RuntimeError as error:
        raise Unknown(str(error)) from None
    return signed(value)


def shape_of(node: Any, output: int) -> tuple[int, ...]:
    return tuple(node._input_metadata[output].shape)


# -- element-wise and reshaping operations: (node, output) -> function of the node's tensor inputs -----------------


def _plain(operation: Operation) -> Callable[[Any, int], Operation]:
    return lambda _, __: operation


def _reshaped(node: Any, output: int) -> Operation:
    shape = shape_of(node, output)
    return lambda x: x.reshape(shape)


def _expanded(node: Any, output: int) -> Operation:
    shape = shape_of(node, output)
    return lambda x: x.expand(shape)


def _copied(node: Any, output: int) -> Operation:
    dtype = node._input_metadata[output].dtype
    return lambda x: x.to(dtype)


def _with(operation: Callable[..., Tensor], *names: str) -> Callable[[Any, int], Operation]:
    """An operation with arguments that the node saved, in order after its input."""

    def make(node: Any, _: int) -> Operation:
        values = [saved(node, name) for name in names]
        return lambda x: operation(x, *values)

    return make


def _indexed(node: Any, _: int) -> Operation:
    indices = saved(node, "indices")
    places = tuple(slice(None) if index is None else index.detach().clone() for index in indices)
    return lambda x: x[places]


def _gathered(node: Any, _: int) -> Operation:
    dim, index = saved(node, "dim"), saved(node, "index").detach().clone()
    return lambda x: x.gather(dim, index)


def _selected_indices(node: Any, _: int) -> Operation:
    dim, index = saved(node, "dim"), saved(node, "index").detach().clone()
    return lambda x: x.index_select(dim, index)


def _sliced(node: Any, output: int) -> Operation:
    dim, start, end, step = (saved(node, name) for name in ("dim", "start", "end", "step"))
    length = shape_of(node, output)[dim]
    start = 0 if start is None else start
    return lambda x: x.narrow(dim, start, length) if step == 1 else x[(slice(None),) * dim + (slice(start, end, step),)]


def _best(node: Any, _: int) -> Operation:
    """max and min along a dim: the winners are recomputed, not remembered."""
    largest = node.name().startswith("Max")
    dim, keepdim = saved(node, "dim"), saved(node, "keepdim")
    return lambda x: (x.max(dim, keepdim=keepdim) if largest else x.min(dim, keepdim=keepdim))[0]


def _clamped(node: Any, _: int) -> Operation:
    low, high = saved(node, "min"), saved(node, "max")
    return lambda x: x.clamp(min=low, max=high)


def _norm(node: Any, _: int) -> Operation:
    order = saved(node, "ord")
    order = saved(node, "p") if order is None else order
    dim, keepdim = saved(node, "dim"), bool(saved(node, "keepdim"))
    return lambda x: torch.linalg.vector_norm(x, 2.0 if order is None else order, dim, keepdim)


def _summed(mean: bool) -> Callable[[Any, int], Operation]:
    def make(node: Any, _: int) -> Operation:
        dim, keepdim = saved(node, "dim"), bool(saved(node, "keepdim"))
        reduce = torch.mean if mean else torch.sum
        return (lambda x: reduce(x, dim, keepdim)) if dim else (lambda x: reduce(x))

    return make


def _spread(node: Any, _: int) -> Operation:
    dim, keepdim, correction = saved(node, "dim"), bool(saved(node, "keepdim")), saved(node, "correction")
    of = torch.std if node.name().startswith("Std") else torch.var
    correction = 1 if correction is None else correction
    return lambda x: of(x, dim, correction=correction, keepdim=keepdim)


def _masked(node: Any, _: int) -> Operation:
    mask = saved(node, "mask").detach().clone()
    return lambda x: x.masked_fill(mask, 0.0)  # the value is not kept; the check of the whole loss tells


def _cut(node: Any, output: int) -> Operation:
    """One of the pieces of unbind, split or chunk."""
    dim = saved(node, "dim") or 0
    if node.name().startswith("Unbind"):
        return lambda x: x.select(dim, output)
    sizes = [shape_of(node, piece)[dim] for piece in range(len(node._input_metadata))]
    start = sum(sizes[:output])
    return lambda x: x.narrow(dim, start, sizes[output])


def _power(node: Any, _: int) -> Operation:
    exponent = saved(node, "exponent")
    return lambda x: x.pow(exponent)


UNARY: dict[str, Callable[[Any, int], Operation]] = {
    "Neg": _plain(torch.neg),
    "Abs": _plain(torch.abs),
    "Exp": _plain(torch.exp),
    "Expm1": _plain(torch.expm1),
    "Log": _plain(torch.log),
    "Log1P": _plain(torch.log1p),
    "Sqrt": _plain(torch.sqrt),
    "Rsqrt": _plain(torch.rsqrt),
    "Sigmoid": _plain(torch.sigmoid),
    "Tanh": _plain(torch.tanh),
    "Relu": _plain(torch.relu),
    "LogSigmoid": _plain(functional.logsigmoid),
    "Softplus": _with(functional.softplus, "beta", "threshold"),
    "LogSoftmax": _with(torch.log_softmax, "dim"),
    "Softmax": _with(torch.softmax, "dim"),
    "Logsumexp": _with(torch.logsumexp, "dim", "keepdim"),
    "Pow": _power,
    "View": _reshaped,
    "UnsafeView": _reshaped,
    "ReshapeAlias": _reshaped,
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
    "Expand": _expanded,
    "Clone": _plain(lambda x: x),
    "Alias": _plain(lambda x: x),
    "ToCopy": _copied,
    "T": _plain(torch.t),
    "Transpose": _with(torch.transpose, "dim0", "dim1"),
    "Permute": _with(torch.permute, "dims"),
    "Slice": _sliced,
    "Select": _with(torch.select, "dim", "index"),
    "Index": _indexed,
    "IndexSelect": _selected_indices,
    "Gather": _gathered,
    "Max": _best,
    "Min": _best,
    "Clamp": _clamped,
    "ClampMin": _clamped,
    "ClampMax": _clamped,
    "LinalgVectorNorm": _norm,
    "Norm": _norm,
    "Mean": _summed(True),
    "Sum": _summed(False),
    "Std": _spread,
    "Var": _spread,
    "MaskedFill": _masked,
    "Unbind": _cut,
    "Split": _cut,
    "SplitWithSizes": _cut,
    "Diagonal": _with(torch.diagonal, "offset", "dim1", "dim2"),
}
# What passes a sum of its input on, times a constant: a constant added below only shifts the loss.
LINEAR = {
    "Neg", "Mean", "Sum", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias", "T",
    "Transpose", "Permute", "Add", "Sub", "Rsub", "Mul", "Div",
}  # fmt: skip
RESHAPING = {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias"}


def bare_name(node: Any) -> str:
    """`LogSoftmaxBackward0` -> `LogSoftmax`."""
    name: str = node.name()
    return name.rstrip("0123456789").rsplit("::", 1)[-1].removesuffix("Backward")


# -- loss functions: name -> (function of input and target, names of further saved tensors) ------------------------


def loss_function(node: Any, name: str) -> tuple[Operation, Tensor] | None:
    """A loss as a function of (input, target), and the target that was used; None for another node."""
    make = _LOSSES.get(name)
    if make is None:
        return None
    target = saved(node, "target")
    if not isinstance(target, Tensor):
        raise Unknown(f"{name} without its target")
    return make(node, _REDUCTIONS[saved(node, "reduction")]), target.detach()


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _nll(node: Any, reduction: str) -> Operation:
    weight, ignored = _copy(saved(node, "weight")), saved(node, "ignore_index")
    return lambda x, y: functional.nll_loss(x, y, weight, ignore_index=ignored, reduction=reduction)


def _bce(node: Any, reduction: str) -> Operation:
    weight = _copy(saved(node, "weight"))
    return lambda x, y: functional.binary_cross_entropy(x, y, weight, reduction=reduction)


def _bce_logits(node: Any, reduction: str) -> Operation:
    weight, positive = _copy(saved(node, "weight")), _copy(saved(node, "pos_weight"))
    return lambda x, y: functional.binary_cross_entropy_with_logits(
        x, y, weight, reduction=reduction, pos_weight=positive
    )


def _huber(node: Any, reduction: str) -> Operation:
    delta = saved(node, "delta")
    return lambda x, y: functional.huber_loss(x, y, reduction=reduction, delta=delta)


def _smooth(node: Any, reduction: str) -> Operation:
    beta = saved(node, "beta")
    return lambda x, y: functional.smooth_l1_loss(x, y, reduction=reduction, beta=beta)


def _kl(node: Any, reduction: str) -> Operation:
    logarithmic = bool(saved(node, "log_target"))
    return lambda x, y: functional.kl_div(x, y, reduction=reduction, log_target=logarithmic)


_LOSSES: dict[str, Callable[[Any, str], Operation]] = {
    "NllLoss": _nll,
    "NllLoss2D": _nll,
    "MseLoss": lambda _, reduction: lambda x, y: functional.mse_loss(x, y, reduction=reduction),
    "SmoothL1Loss": _smooth,
    "HuberLoss": _huber,
    "BinaryCrossEntropy": _bce,
    "BinaryCrossEntropyWithLogits": _bce_logits,
    "KlDiv": _kl,
    "SoftMarginLoss": lambda _, reduction: lambda x, y: functional.soft_margin_loss(x, y, reduction=reduction),
}
BOUNDED_BELOW = frozenset(_LOSSES) | {"Pow", "Abs", "LinalgVectorNorm", "Norm"}
