"""Tensors of recent steps, kept whole: input, output and gradient of each layer, in a ring bounded in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.tree import Layer

DEFAULT_BYTES = 64 * 2**20
LARGEST_SHARE = 4  # one tensor may take a quarter of the ring


@dataclass(eq=False)
class Event:
    """One execution of one layer: detached copies of what went in and came out, and of the gradient once it arrives."""

    step: int
    layer_name: str
    input: Tensor | None = None
    output: Tensor | None = None
    gradient: Tensor | None = None
    pass_id: int = -1
    bytes: int = 0
    key: tuple[int, int] | None = None  # under which its gradient is awaited

    def capture_gradient(self, gradient: Tensor) -> None:
        self.gradient = gradient.detach().clone()


class SnapshotRing:
    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self.too_large = 0  # tensors that were not kept because of their size
        self.evicted = 0  # executions that made room for newer ones
        self._events: deque[Event] = deque()
        self._open: dict[tuple[int, int], Event] = {}  # (pass, site) -> event whose gradient is still to come

    def saw_layer(self, layer: Layer, one: Pass, values: Any) -> None:
        if not layer.watched:
            return
        entered = self._copy(next(tensors((values[0], values[1])), None))
        left = self._copy(next(tensors(values[2]), None))
        event = Event(one.step, layer.path or layer.model.name, entered, left, pass_id=one.id)
        event.bytes = _size(entered) + _size(left)
        self._events.append(event)
        if one.grad:
            event.key = (one.id, layer.site)
            self._open[event.key] = event
        self.bytes += event.bytes
        self._evict()

    def saw_gradient(self, layer: Layer, slot: int, one: Pass, gradient: Tensor) -> None:
        event = self._open.pop((one.id, layer.site), None) if slot == 0 else None
        if event is None:
            return
        event.gradient = self._copy(gradient)
        event.bytes += _size(event.gradient)
        self.bytes += _size(event.gradient)
        self._evict()

    def step_done(self, _: int) -> None:
        """Gradients that have not come by now never will."""
        if len(self._open) > 4096:
            self._open.clear()

    def __iter__(self) -> Iterator[Event]:
        return iter(list(self._events))

    def clear(self) -> None:
        self._events.clear()
        self._open.clear()
        self.bytes = 0

    def _copy(self, tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor.is_meta or tensor.layout != torch.strided:
            return None
        if tensor.numel() * tensor.element_size() > self.limit_bytes // LARGEST_SHARE:
            self.too_large += 1
            return None
        with torch.no_grad():
            return tensor.detach().clone()

    def _evict(self) -> None:
        while self.bytes > self.limit_bytes and self._events:
            oldest = self._events.popleft()
            self.evicted += 1
            self.bytes -= oldest.bytes
            if oldest.key is not None and self._open.get(oldest.key) is oldest:
                del self._open[oldest.key]


def _size(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
