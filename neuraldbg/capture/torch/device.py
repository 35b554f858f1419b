"""Numbers that are still on their way from the device: read later, never waited for on the training path."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.stats import Measured, from_device_row, measure, measure_on_device

ROWS = 1024  # rows of a device buffer; a full one is copied at once
_WIDTH = 9

Deliver = Callable[[Any], None]


@dataclass
class _Buffer:
    rows: Tensor
    used: int = 0
    waiting: list[tuple[bool, Deliver]] = field(default_factory=list)  # (is a scalar, consumer)


@dataclass
class _Flight:
    host: Tensor
    done: Any
    waiting: list[tuple[bool, Deliver]]


class DeviceQueue:
    """Host tensors are read on the spot. Device tensors leave their numbers in a buffer on the device; the buffer is
    copied asynchronously, and its numbers are handed over by a later `poll`."""

    def __init__(self) -> None:
        self._buffers: dict[torch.device, _Buffer] = {}
        self._flights: deque[_Flight] = deque()
        self._timings: deque[tuple[Any, Any, Callable[[int], None]]] = deque()

    def scalar(self, tensor: Tensor, deliver: Callable[[float], None]) -> bool:
        """False where it can never be delivered."""
        if tensor.numel() != 1 or tensor.is_meta or tensor.is_complex():
            return False
        value = tensor.detach()
        if value.device.type == "cpu":
            deliver(float(value))
            return True
        buffer = self._room(value.device)
        if buffer is None:
            return False
        buffer.rows[buffer.used, 0].copy_(value.reshape(()))
        buffer.used += 1
        buffer.waiting.append((True, deliver))
        return True

    def stats(self, tensor: Tensor, deliver: Callable[[Measured], None]) -> None:
        if tensor.device.type == "cpu":
            measured = measure(tensor)
            if measured is not None:
                deliver(measured)
            return
        buffer = self._room(tensor.device)
        if buffer is not None and measure_on_device(tensor, buffer.rows[buffer.used]):
            buffer.used += 1
            buffer.waiting.append((False, deliver))

    def mark(self) -> Any:
        """A moment on the device's own clock; None without CUDA. Host time would be the time of launching, not of
        running."""
        if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def elapsed(self, start: Any, end: Any, deliver: Callable[[int], None]) -> None:
        """Nanoseconds between two marks, once the device has passed them."""
        self._timings.append((start, end, deliver))

    def send(self) -> None:
        """Start the copy of everything measured so far."""
        for buffer in self._buffers.values():
            if buffer.used:
                self._copy(buffer)

    def poll(self) -> None:
        """Hand over what has arrived."""
        while self._timings and self._timings[0][1].query():
            self._tell(*self._timings.popleft())
        while self._flights and self._flights[0].done.query():
            self._land(self._flights.popleft())

    def finish_sync(self) -> None:
        """At the end of the run: wait for what is still on its way."""
        self.send()
        while self._timings:
            self._timings[0][1].synchronize()
            self._tell(*self._timings.popleft())
        while self._flights:
            flight = self._flights.popleft()
            flight.done.synchronize()
            self._land(flight)
        self._buffers.clear()

    @staticmethod
    def _tell(start: Any, end: Any, deliver: Callable[[int], None]) -> None:
        deliver(int(start.elapsed_time(end) * 1e6))

    def _room(self, device: torch.device) -> _Buffer | None:
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None  # nothing may be allocated or copied while a CUDA graph is being captured
        buffer = self._buffers.get(device)
        if buffer is None:
            rows = torch.empty((ROWS, _WIDTH), dtype=torch.float64, device=device)
            buffer = self._buffers[device] = _Buffer(rows)
        elif buffer.used == ROWS:
            self._copy(buffer)
        return buffer

    def _copy(self, buffer: _Buffer) -> None:
        with torch.cuda.device(buffer.rows.device):
            host = torch.empty((buffer.used, _WIDTH), dtype=torch.float64, pin_memory=True)
            host.copy_(buffer.rows[: buffer.used], non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        self._flights.append(_Flight(host, done, buffer.waiting))
        buffer.used, buffer.waiting = 0, []

    def _land(self, flight: _Flight) -> None:
        for row, (is_scalar, deliver) in zip(flight.host.tolist(), flight.waiting, strict=True):
            deliver(row[0] if is_scalar else from_device_row(row))
