"""Tensors of a recording on their way from a device to the host: on a stream of their own, through a small pinned
buffer, by the thread that writes. The training's stream is waited for, and never waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from neuraldbg.capture.torch.recording.tensorfile import layout_of

STAGE_BYTES: Final = 16 * 2**20
HEADROOM: Final = 2  # times the bytes of a state have to be free on the device


class Ferry:
    """Used by one thread only."""

    def __init__(self) -> None:
        self._stage: Tensor | None = None
        self._sides: dict[torch.device, Any] = {}

    def waits_for(self, streams: Iterable[Any]) -> None:
        """Everything that was put on these streams until now is done before anything more is copied."""
        for stream in streams:
            self._side(stream.device).wait_stream(stream)

    def _side(self, device: torch.device) -> Any:
        side = self._sides.get(device)
        if side is None:
            side = self._sides[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.default_stream(device))
        return side

    def host(self, tensor: Tensor) -> Tensor:
        """A copy in host memory with the same layout; the tensor itself, where it lies there."""
        if tensor.device.type == "cpu":
            return tensor.detach()
        if tensor.device.type != "cuda":
            return tensor.detach().cpu()
        side = self._side(tensor.device)
        with torch.no_grad(), torch.cuda.stream(side):
            return self._copied(tensor.detach(), side)

    def _copied(self, values: Tensor, side: Any) -> Tensor:
        strides = layout_of(values)
        flat = torch.as_strided(values, (values.numel(),), (1,)) if strides else values.contiguous().reshape(-1)
        found = torch.empty(flat.shape, dtype=flat.dtype)
        source, target = flat.view(torch.uint8), found.view(torch.uint8)
        stage = self._staging()
        for start in range(0, source.numel(), STAGE_BYTES):
            part = source[start : start + STAGE_BYTES]
            stage[: part.numel()].copy_(part, non_blocking=True)
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(side)
            done.synchronize()  # only this thread waits, and without spinning
            target[start : start + part.numel()].copy_(stage[: part.numel()])
        return torch.as_strided(found, values.shape, strides) if strides else found.reshape(values.shape)

    def _staging(self) -> Tensor:
        if self._stage is None:
            self._stage = torch.empty(STAGE_BYTES, dtype=torch.uint8, pin_memory=True)
        return self._stage


def room_for(size: int, devices: Iterable[torch.device]) -> bool:
    """Whether a copy of so many bytes fits beside the training; asks the driver, waits for nothing."""
    for device in devices:
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            if free + idle < HEADROOM * size:
                return False
    return True
