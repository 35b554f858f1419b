"""A loss that is one known function of one output: its target is kept, and the gradient it sends back made again.

The gradient of a language model's output is the largest tensor of its step; its target has a two-thousandth of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from neuraldbg.capture.torch.loss import bare, packed
from neuraldbg.capture.torch.recording.hashing import Digest, Hasher, settled

RESHAPING = ("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward", "UnsqueezeBackward")
_REDUCTION = {0: "none", 1: "mean", 2: "sum"}
_KINDS = {
    "NllLossBackward": "nll",
    "NllLoss2DBackward": "nll",
    "MseLossBackward": "mse",
    "BinaryCrossEntropyWithLogitsBackward": "bce_with_logits",
}


@dataclass(eq=False)
class Loss:
    """How a loss came of the output of a pass."""

    kind: str  # cross_entropy, mse, bce_with_logits
    of_pass: int
    shape: tuple[int, ...]  # that the function saw
    dtype: torch.dtype
    target: Tensor
    reduction: str
    dim: int = -1
    ignore_index: int = -100
    weight: Tensor | None = None
    factors: tuple[tuple[str, Tensor], ...] = ()  # mul, div: outermost first

    @property
    def signature(self) -> tuple[Any, ...]:
        names = tuple(name for name, _ in self.factors)
        return self.kind, len(self.shape), self.dtype, self.reduction, self.dim, self.weight is None, names

    def value(self, output: Tensor) -> Tensor:
        seen = output.to(self.dtype).reshape(self.shape)
        if self.kind == "cross_entropy":
            logs = F.log_softmax(seen, self.dim)
            found = F.nll_loss(logs, self.target, self.weight, None, self.ignore_index, None, self.reduction)
        elif self.kind == "mse":
            found = F.mse_loss(seen, self.target, reduction=self.reduction)
        else:
            found = F.binary_cross_entropy_with_logits(seen, self.target, self.weight, reduction=self.reduction)
        for name, amount in reversed(self.factors):
            found = found * amount if name == "mul" else found / amount
        return found

    def gradient(self, output: Tensor) -> Tensor:
        """What arrives at the output."""
        leaf = output.detach().requires_grad_()
        with torch.enable_grad(), torch.autocast(output.device.type, enabled=False):
            return torch.autograd.grad(self.value(leaf), leaf)[0]


@dataclass(eq=False)
class Remade:
    """In the place of a gradient that arrived: where it came from, and its hash."""

    loss: Loss
    digest: Digest  # 0: not taken

    @property
    def tensors(self) -> list[Tensor]:
        return [self.loss.target]

    def gradient(self, output: Tensor, hasher: Hasher) -> tuple[Tensor, bool | None]:
        """The gradient, and whether it is the one that arrived; None where its hash was not taken."""
        made, digest = self.loss.gradient(output), settled(self.digest)
        return made, hasher.now_sync(made) == digest if digest else None


def loss_of(loss: Tensor) -> Loss | None:
    """None where it is anything else."""
    factors: list[tuple[str, Tensor]] = []
    node: Any = loss.grad_fn
    while node is not None and bare(node) in ("MulBackward", "DivBackward"):
        inside = [child for child, _ in node.next_functions if child is not None]
        amount = getattr(node, "_saved_other", None)
        if len(inside) != 1 or not isinstance(amount, Tensor) or amount.numel() != 1 or len(factors) > 3:
            return None
        factors.append((bare(node)[:3].lower(), amount.detach().clone()))
        node = inside[0]
    kind = None if node is None else _KINDS.get(bare(node))
    if node is None or kind is None or packed(node):
        return None
    return _known(node, kind, tuple(factors))


def _known(node: Any, kind: str, factors: tuple[tuple[str, Tensor], ...]) -> Loss | None:
    target, weight = node._saved_target, getattr(node, "_saved_weight", None)
    if target.requires_grad or getattr(node, "_saved_pos_weight", None) is not None:
        return None
    fields: dict[str, Any] = {"reduction": _REDUCTION[node._saved_reduction], "factors": factors}
    below = node.next_functions[0][0]
    if kind == "nll":
        if below is None or bare(below) != "LogSoftmaxBackward":
            return None
        seen = below._saved_result
        fields |= {"dim": _signed(below._saved_dim), "ignore_index": _signed(node._saved_ignore_index)}
        kind, below = "cross_entropy", below.next_functions[0][0]
    else:
        seen = node._saved_self
    while below is not None and "neuraldbg_pass" not in below.metadata:
        if bare(below) not in (*RESHAPING, "ToCopyBackward"):
            return None
        below = below.next_functions[0][0]
    if below is None:
        return None
    kept = None if weight is None else weight.detach().clone()
    number = below.metadata["neuraldbg_pass"]
    return Loss(kind, number, tuple(seen.shape), seen.dtype, target.detach().clone(), weight=kept, **fields)


def _signed(number: int) -> int:
    """torch hands some of them over as unsigned."""
    return number - 2**64 if number >= 2**63 else number


def told_loss(loss: Loss) -> dict[str, Any]:
    """As values that can be written."""
    return dict(vars(loss))


def loss_from(told: Mapping[str, Any] | None) -> Loss | None:
    return None if told is None else Loss(**told)
