"""Numbers that are still on their way from the device: read later, never waited for on the training path."""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neuraldbg.capture.guard import attempt_or_why
from neuraldbg.capture.kernels.device import DevicePass, Plan, packed, readable, readable_in_rows
from neuraldbg.capture.torch.stats import from_device_row, measure, measure_on_device

log = logging.getLogger("neuraldbg")
ROWS = 1024  # rows of a device buffer; a full one is copied at once
SLOW_LAUNCH_NS = 20_000_000  # a launch that takes longer has compiled its kernel, which happens once
STREAMS = 64  # that are remembered
SPARE_EVENTS = 4096  # marks that are kept for being used again
_WIDTH = 9
_FAILED = object()  # what a launch that raised returns
item = torch._C.TensorBase.item  # not the method, whose calls by the user are counted

Head = tuple[int, int, int, int, int, int]  # step, site, pass, kind, phase, slot: of a row that is written as it came
Taker = Head | Callable[[Any], None]
Wanted = tuple[Tensor, Taker | None]
Together = Callable[[NDArray[np.float64]], None]
_Waiting = list[tuple[int, bool, Any]]  # row, whether it is a scalar, who takes it


@dataclass
class _Slot:
    """Rows on the device and their copy on the host: used again once they have been read."""

    rows: Tensor
    host: Tensor


@dataclass
class _Buffer:
    slot: _Slot
    side: Any  # the stream of the copies
    fused: DevicePass | None  # None = torch operations
    failed: bool = False  # and from now on too
    used: int = 0
    waiting: _Waiting = field(default_factory=list)
    free: list[_Slot] = field(default_factory=list)
    last: tuple[Any, int] = (None, -1)  # weak reference to the tensor measured last, and its version


@dataclass(frozen=True, slots=True)
class _Group:
    """Takes so many rows at a time."""

    count: int
    take: Together


@dataclass
class _Flight:
    buffer: _Buffer
    slot: _Slot
    done: Any
    used: int
    waiting: _Waiting


class DeviceQueue:
    """Host tensors are read on the spot. Device tensors leave their numbers in a buffer on the device; the buffer is
    copied asynchronously, and its numbers are handed over by a later `poll`."""

    def __init__(self) -> None:
        self._buffers: dict[torch.device, _Buffer] = {}
        self._flights: deque[_Flight] = deque()
        self._timings: deque[tuple[Any, Any, Callable[[int], None]]] = deque()
        self.set_aside: Callable[[int], None] | None = None  # is told what compiling took
        self._spare: list[Any] = []  # marks whose time is known
        self._streams: dict[Any, Any] = {}
        self.write: Callable[[list[Head], NDArray[np.float64]], None] | None = None  # rows as they came
        self.used = False  # something was asked of a device

    def scalar(self, tensor: Tensor, deliver: Callable[[float], None]) -> bool:
        """False where it can never be delivered."""
        if tensor.numel() != 1 or tensor.is_meta or tensor.is_complex():
            return False
        value = tensor.detach()
        if value.device.type == "cpu":
            deliver(float(item(value)))
            return True
        buffer = self._room(value.device)
        if buffer is None:
            return False
        buffer.slot.rows[buffer.used, 0].copy_(value.reshape(()))
        buffer.waiting.append((buffer.used, True, deliver))
        buffer.used += 1
        return True

    def stats(self, tensor: Tensor, taker: Taker) -> None:
        """`taker` is called with the statistics; or is a head, which only a tensor on a device may have."""
        if tensor.is_cpu:
            measured = measure(tensor)
            if measured is not None:
                taker(measured)  # type: ignore[operator]
            return
        buffer = self._room(tensor.device)
        if buffer is None or _shared(buffer, tensor, taker):
            return
        fused = buffer.fused
        launched = False
        if fused is not None and not buffer.failed:
            read = tensor if readable(tensor) or readable_in_rows(tensor) else packed(tensor)
            launched = read is not None and self._one(buffer, fused, read)
        if launched or measure_on_device(tensor, buffer.slot.rows[buffer.used]):
            buffer.waiting.append((buffer.used, False, taker))
            buffer.used += 1
            buffer.last = (weakref.ref(tensor), tensor._version) if not tensor.is_inference() else (None, -1)

    def stats_of_all(
        self, wanted: Sequence[Wanted], less: Sequence[Tensor] = (), *, together: Together | None = None
    ) -> bool:
        """Several tensors of one device in one launch, or each less its counterpart in `less`. False = not done: they
        are measured one by one then. `together` gets the rows of all of them; who is None gets no row of its own."""
        tensors = [tensor for tensor, _ in wanted]
        if not tensors or not tensors[0].is_cuda:
            return False
        buffer = self._room(tensors[0].device, len(tensors))
        fused = None if buffer is None else buffer.fused
        if buffer is None or fused is None or buffer.failed:
            return False
        plan = fused.plan_for(tensors, less)
        if plan is None or not self._fits(buffer, fused, plan):
            return False
        if self._launched(buffer, fused.measure_all, plan, buffer.used) is _FAILED:
            return False
        buffer.waiting += [
            (row, False, taker) for row, (_, taker) in enumerate(wanted, buffer.used) if taker is not None
        ]
        if together is not None:
            buffer.waiting.append((buffer.used, False, _Group(len(tensors), together)))
        buffer.used += len(tensors)
        buffer.last = (None, -1)
        return True

    def _one(self, buffer: _Buffer, fused: DevicePass, tensor: Tensor) -> bool:
        made = self._launched(buffer, fused.measure, tensor, buffer.used)
        if made is False and buffer.used:
            self._copy(buffer)
            made = self._launched(buffer, fused.measure, tensor, buffer.used)
        return made is True

    def _fits(self, buffer: _Buffer, fused: DevicePass, plan: Plan) -> bool:
        if fused.room_for(plan):
            return True
        if buffer.used:
            self._copy(buffer)
        return fused.room_for(plan)

    def _launched(self, buffer: _Buffer, launch: Callable[..., Any], *args: Any) -> Any:
        """What the launch returns. Where Triton fails (no compiler for the host, an old device), torch operations do
        its work from then on."""
        start, device = time.perf_counter_ns(), buffer.slot.rows.device
        if device.index == torch._C._cuda_getDevice():
            made, why = attempt_or_why(lambda: launch(*args))
        else:
            with torch.cuda.device(device):
                made, why = attempt_or_why(lambda: launch(*args))
        if why is not None:
            buffer.failed, made = True, _FAILED
            log.warning("the Triton kernel cannot be used, torch operations are: %s", why)
        took = time.perf_counter_ns() - start
        if took > SLOW_LAUNCH_NS and self.set_aside is not None:
            self.set_aside(took)
        return made

    @property
    def ticks(self) -> bool:
        """Whether there is a device's clock to read now."""
        return torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]

    def mark(self) -> Any:
        """A moment on the device's own clock; None without CUDA. Host time would be the time of launching, not of
        running."""
        if not self.ticks:
            return None
        event = self._free() or torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._current_stream())
        return event

    def _current_stream(self) -> Any:
        """What `torch.cuda.current_stream` gives, in a tenth of its time."""
        number, device, kind = key = torch._C._cuda_getCurrentStream(torch._C._cuda_getDevice())
        stream = self._streams.get(key)
        if stream is None:
            stream = torch.cuda.Stream(stream_id=number, device_index=device, device_type=kind)  # type: ignore[no-untyped-call]
            if len(self._streams) >= STREAMS:
                self._streams.clear()
            self._streams[key] = stream
        return stream

    def _free(self) -> Any:
        """A mark that can be used again: nobody holds it. The end of one stretch is the beginning of the next, and that
        one may not be over."""
        while self._spare:
            event = self._spare.pop()
            if sys.getrefcount(event) <= _ALONE:
                return event
        return None

    def elapsed(self, start: Any, end: Any, deliver: Callable[[int], None]) -> None:
        """Nanoseconds between two marks, once the device has passed them."""
        self._timings.append((start, end, deliver))
        self.used = True

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

    def _tell(self, start: Any, end: Any, deliver: Callable[[int], None]) -> None:
        deliver(int(start.elapsed_time(end) * 1e6))
        if len(self._spare) < SPARE_EVENTS:
            self._spare += (start, end)

    def _room(self, device: torch.device, rows: int = 1) -> _Buffer | None:
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None  # nothing may be allocated or copied while a CUDA graph is being captured
        buffer = self._buffers.get(device)
        if buffer is None:
            self.used = True
            side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            buffer = self._buffers[device] = _Buffer(_new_slot(device), side, _fused_for(device))
        if buffer.used + rows > ROWS and buffer.used:
            self._copy(buffer)
        return buffer if rows <= ROWS else None

    def _copy(self, buffer: _Buffer) -> None:
        """On a stream of its own, after what the training stream has written; that one never waits for it, since the
        rows are used again only once they have been read."""
        slot, device = buffer.slot, buffer.slot.rows.device
        fused = buffer.fused
        if fused is not None and self._launched(buffer, fused.finish_into, slot.rows) is _FAILED:
            buffer.waiting = [one for one in buffer.waiting if one[1]]  # the other rows were never made
            buffer.fused = None
        with torch.cuda.device(device):
            written = torch.cuda.Event()  # type: ignore[no-untyped-call]
            written.record()
            with torch.cuda.stream(buffer.side):
                buffer.side.wait_event(written)
                slot.host[: buffer.used].copy_(slot.rows[: buffer.used], non_blocking=True)
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record()
        self._flights.append(_Flight(buffer, slot, done, buffer.used, buffer.waiting))
        buffer.used, buffer.waiting, buffer.last = 0, [], (None, -1)
        buffer.slot = buffer.free.pop() if buffer.free else _new_slot(device)

    def _land(self, flight: _Flight) -> None:
        rows = flight.slot.host[: flight.used].numpy().copy()
        flight.buffer.free.append(flight.slot)
        plain = [(row, taker) for row, _, taker in flight.waiting if type(taker) is tuple]
        if plain and self.write is not None:
            self.write([head for _, head in plain], rows[[row for row, _ in plain]])
        for row, is_scalar, taker in flight.waiting:
            if type(taker) is _Group:
                taker.take(rows[row : row + taker.count])
            elif type(taker) is not tuple:
                taker(float(rows[row, 0]) if is_scalar else from_device_row(rows[row].tolist()))


def _count_of_one() -> int:
    """What `getrefcount` says, asked in the way of `_free`, of something that nobody else holds."""
    spare = [object()]
    event = spare.pop()
    return sys.getrefcount(event)


_ALONE = _count_of_one()


def _shared(buffer: _Buffer, tensor: Tensor, taker: Taker) -> bool:
    """The output of a model is that of its last layer: one row serves both."""
    ref, version = buffer.last
    if ref is None or ref() is not tensor or tensor._version != version or not buffer.waiting:
        return False
    row, is_scalar, _ = buffer.waiting[-1]
    if is_scalar:
        return False
    buffer.waiting.append((row, False, taker))
    return True


def _new_slot(device: torch.device) -> _Slot:
    rows = torch.empty((ROWS, _WIDTH), dtype=torch.float64, device=device)
    return _Slot(rows, torch.empty((ROWS, _WIDTH), dtype=torch.float64, pin_memory=True))


def _fused_for(device: torch.device) -> DevicePass | None:
    """None without Triton, and on ROCm, where nobody has tried it."""
    if torch.version.hip is not None:
        return None
    made, why = attempt_or_why(lambda: DevicePass(device))
    if why is not None:
        log.info("no Triton kernel: %s", why)
    fused: DevicePass | None = made
    return fused
