"""Whether two compiled forms of one graph give the same bits, tried on the inputs of a real call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import RngState

_PIECE = 2**22  # elements that are summed at a time


def gives_the_same_bits(bare: Callable[..., Any], other: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Outputs, gradients and changed buffers of one forward and backward of each. A program that does not even repeat
    itself (atomic additions on a device) has no bits to keep: True then."""
    before = RngState.take()
    try:
        first = _outcome(bare, args, before)
        if first == _outcome(other, args, before):
            return True
        return first != _outcome(bare, args, before)
    finally:
        before.restore()


def _outcome(run: Callable[..., Any], args: tuple[Any, ...], rng: RngState) -> tuple[int, ...]:
    rng.restore()
    given = [_stand_in(value) for value in args]
    outputs = list(tensors(run(*given)))
    ends = [value for value in outputs if value.requires_grad]
    wanted = [value for value in given if isinstance(value, Tensor) and value.requires_grad]
    gradients: tuple[Any, ...] = ()
    if ends and wanted:
        weights = [value.detach() for value in ends]  # the gradient of half the sum of squares
        gradients = torch.autograd.grad(ends, wanted, weights, allow_unused=True)
    written = [value for value in given if isinstance(value, Tensor) and not value.requires_grad]
    return tuple(0 if value is None else _bits(value) for value in (*outputs, *gradients, *written))


def _stand_in(value: Any) -> Any:
    """Weights are shared and only their gradients are ours; what the graph may write to is copied."""
    if not isinstance(value, Tensor):
        return value
    if isinstance(value, nn.Parameter) or value.requires_grad:
        return value.detach().requires_grad_(value.requires_grad)
    if 0 in value.stride() or value.layout != torch.strided:
        return value.detach()  # expanded: nothing can be written to it
    copied = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copied.copy_(value.detach())  # a compiled graph insists on the strides it was made for


@torch.no_grad()
def _bits(value: Tensor) -> int:
    """A number that another order or another value changes. Waits for the device: it is taken once for each graph."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    dense = value.detach()
    if dense.is_complex():
        dense = torch.view_as_real(dense)
    flat = dense.contiguous().view(whole[dense.element_size()]).reshape(-1)
    total = 0
    for start in range(0, flat.numel(), _PIECE):
        piece = flat[start : start + _PIECE].long()
        places = torch.arange(1, piece.numel() + 1, device=piece.device)
        mixed = int((piece * places).sum()) * 1099511628211 + int((piece * piece).sum())
        total = (total * 1000003 + mixed) & ((1 << 64) - 1)
    return total
