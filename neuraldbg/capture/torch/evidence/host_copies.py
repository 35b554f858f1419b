"""Small pieces of tensors as NumPy arrays on the host, without ever waiting for a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neuraldbg.capture.torch.stats import measurable
from neuraldbg.capture.torch.ungraded import ungraded

Array = NDArray[Any]
MOST_WAITING = 64


class HostCopies:
    """Host tensors are read on the spot; of device tensors a copy is on its way, and `poll` hands it over later."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Any, dict[str, Tensor], Callable[[dict[str, Array]], None]]] = deque()

    @ungraded
    def take(self, pieces: Mapping[str, Tensor | None], then: Callable[[dict[str, Array]], None]) -> None:
        """Calls `then` with those that have values to read. The pieces must be small: cut them first."""
        found = {name: piece.detach() for name, piece in pieces.items() if piece is not None and _readable(piece)}
        if not any(piece.is_cuda for piece in found.values()):
            then({name: _array(piece) for name, piece in found.items() if piece.device.type == "cpu"})
        elif len(self._waiting) < MOST_WAITING and not torch.cuda.is_current_stream_capturing():
            host = {name: _sent(piece) for name, piece in found.items()}
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
            self._waiting.append((done, host, then))

    def poll(self) -> None:
        while self._waiting and self._waiting[0][0].query():
            self._deliver()

    def finish_sync(self) -> None:
        while self._waiting:
            self._waiting[0][0].synchronize()
            self._deliver()

    def _deliver(self) -> None:
        _, host, then = self._waiting.popleft()
        then({name: _array(piece) for name, piece in host.items()})


def _readable(tensor: Tensor) -> bool:
    return measurable(tensor) and tensor.layout == torch.strided and tensor.numel() > 0 and not tensor.is_complex()


def _sent(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor.clone()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    return host


def _array(tensor: Tensor) -> Array:
    """A private copy: the user may write to the tensor later."""
    values = tensor.resolve_neg()
    if values.is_floating_point() and values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    return np.array(values.numpy(), copy=True)
