"""Hashes of weights and gradients, taken at the same updates in every rank: a reader compares them. No rank asks
another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.shards import is_sharded
from neuraldbg.capture.torch.stats import digest_of, measurable, thinned
from neuraldbg.records import Call

WINDOW = 16_384  # elements of a tensor that are hashed at a time; the next time, the next ones
FIRST = 4  # updates at the start, each of them
EVERY, EVERY_OF_MANY = 16, 64  # updates later on; with more than MANY tensors
MANY = 256
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EXACT = (1 << 52) - 1  # whole numbers that a float64 holds


def is_due(step: int, tensors: int) -> bool:
    """The same answer in every rank."""
    return step < FIRST or step % (EVERY if tensors <= MANY else EVERY_OF_MANY) == 0


class RankDigests:
    def __init__(self, core: Core) -> None:
        self.core = core
        self._weights: dict[torch.device, Tensor] = {}

    @torch.no_grad()
    def update_begun(self, parameters: list[tuple[int, Tensor]]) -> None:
        """Before an update: the weights it finds, and the gradients it is given."""
        step = self.core.recorder.step
        turn = step // EVERY
        for site, parameter in parameters:
            if is_sharded(parameter):
                continue
            for call, tensor in ((Call.DIGEST_WEIGHT, parameter), (Call.DIGEST_GRADIENT, parameter.grad)):
                if tensor is not None:
                    self._take(call, site, getattr(tensor, "_local_tensor", tensor), turn)

    def _take(self, call: Call, site: int, tensor: Tensor, turn: int) -> None:
        if not measurable(tensor) or tensor.layout != torch.strided or not tensor.numel():
            return
        part = window_of(tensor.detach(), turn)
        recorder, step = self.core.recorder, self.core.recorder.step
        if part.device.type == "cpu":
            recorder.call(call, site, digest=digest_of(part))
            return

        def deliver(value: float) -> None:
            recorder.call(call, site, digest=int(value) | 1, at_step=step)

        self._on_device(part, deliver)

    def _on_device(self, part: Tensor, deliver: Callable[[float], Any]) -> None:
        """Without waiting for the device: a weighted sum of the bits, which comes as any other number does."""
        view = _BITS.get(part.element_size())
        if view is None or part.is_complex():
            return
        weights = self._weights.get(part.device)
        if weights is None:
            weights = self._weights[part.device] = torch.arange(1, 2 * WINDOW, 2, device=part.device) * 0x9E3779B1 | 1
        bits = part.contiguous().view(view).reshape(-1).to(torch.int64)
        total = ((bits * weights[: len(bits)]).sum() >> 3) & _EXACT
        self.core.device.scalar(total.double(), deliver)


def window_of(tensor: Tensor, turn: int) -> Tensor:
    """A piece of the elements in order; another one each turn, until all have been looked at."""
    if not tensor.is_contiguous():
        return thinned(tensor)
    flat = tensor.reshape(-1)
    pieces = -(-flat.numel() // WINDOW)
    start = (turn % pieces) * WINDOW
    return flat[start : start + WINDOW]
