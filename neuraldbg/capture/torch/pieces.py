"""Copies of tensors that outlive the call they are made in, in memory of our own.

On the training's heap they would take places that its gradients had: those then lie at the end of it, which is given
back and asked for again at every step (570 page faults a step where `zero_grad` frees 5 MB). Many go into one piece:
pieces of their own would leave gaps behind that an allocator does not give back.
"""

from __future__ import annotations

import math
import mmap
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

ALIGNED = 64
APART = 2**15  # bytes from which on a copy has memory that is asked of the system, in one call
READY_BYTES = 24 * 2**20  # of parameters: for copies of so many, memory is fetched before their first update
KEPT_BYTES = 2 * 2**20  # of batches: likewise, and eight of them have to fit
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_POPULATE = 23 if sys.platform == "linux" else None  # MADV_POPULATE_WRITE, since 5.14: Python has no name for it


def plain(value: Tensor) -> bool:
    """Whether a piece of memory can hold it: not what vmap and functionalization put in the place of tensors."""
    if type(value) is not Tensor or not value.is_cpu or value.is_quantized or value.layout != torch.strided:
        return False
    return not (_is_wrapped(value) or torch._is_functional_tensor(value))


def room_for(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def memory_of(size: int) -> Tensor:
    """So many bytes. Pages that are asked for one by one, when they are first written to, take several times as long as
    the copy does. Large pages take less where memory has been used before, and five times as much on a virtual machine
    that has just begun (measured: 14 to 23 ms for 5 MB, small ones 2 to 6)."""
    if _POPULATE is None or size < APART:
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    mapped = _mapped(size)
    if mapped is None:
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(mapped, dtype=torch.uint8)


def _mapped(size: int) -> mmap.mmap | None:
    """With all of its pages. None where a process may have no more of them."""
    if _POPULATE is None:
        return None
    try:
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
    with suppress(OSError):  # an older system, or one that is short of memory: page by page
        mapped.madvise(_POPULATE)
    return mapped


def array_apart(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """For what grows row by row: pages are had when they are first written to."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        return np.frombuffer(mmap.mmap(-1, max(size, 1)), dtype, math.prod(shape)).reshape(shape)
    except OSError:
        return np.empty(shape, dtype)


class Memory:
    """So many bytes, given out from the beginning."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory: dict[torch.dtype, Tensor] = {}  # all of it, seen as numbers of each kind
        self.at = 0

    def like(self, value: Tensor) -> Tensor:
        """Room for a copy, laid out as `torch.empty_like` does."""
        laid_out = value if value.is_contiguous() else torch.empty_like(value, device="meta")
        start = self.at // value.element_size()
        self.at += room_for(value.nbytes)
        return self._seen_as(value.dtype).as_strided(laid_out.shape, laid_out.stride(), start)

    def _seen_as(self, dtype: torch.dtype) -> Tensor:
        found = self._memory.get(dtype)
        if found is None:
            whole = self._memory.get(torch.uint8)
            if whole is None:
                whole = self._memory[torch.uint8] = memory_of(self.size)
            found = self._memory[dtype] = whole.view(dtype)
        return found


class Ready:
    """Memory for copies of modest batches, fetched at once and before the steps they are made in: to ask for it takes
    ten times as long as to copy. Each has a storage of its own; the memory goes when the last of them does."""

    def __init__(self, size: int = KEPT_BYTES) -> None:
        self._size = size
        self._memory: mmap.mmap | None = None
        self._at = size  # where the next one goes
        self._lock = threading.Lock()  # several threads may train

    def fetch(self) -> None:
        """Once."""
        if self._memory is None and self._size:
            self._memory, self._at = _mapped(self._size), 0

    def close(self) -> None:
        self._memory, self._size = None, 0

    def copy_of(self, value: Tensor) -> Tensor:
        """The same as the function does, which makes it where there is no such memory left."""
        memory = self._memory
        start = None if memory is None or not plain(value) else self._room_for(value.nbytes)
        if memory is None or start is None:
            return copy_of(value)
        value = value.detach()
        room = torch.frombuffer(memory, dtype=value.dtype, count=value.numel(), offset=start)
        laid_out = value if value.is_contiguous() else torch.empty_like(value, device="meta")
        return room.as_strided(laid_out.shape, laid_out.stride()).copy_(value)

    def _room_for(self, size: int) -> int | None:
        if not APART <= size <= self._size // 8:
            return None
        with self._lock:
            start = self._at
            if start + size > self._size:
                return None
            self._at = start + room_for(size)
        return start


def foreseen(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Their values, where memory for copies is to be had before anything is copied: modest and plain ones."""
    values = [each.detach() for each in parameters if type(each) in (Tensor, nn.Parameter)]
    fit = len(values) == len(parameters) and all(map(plain, values)) and _size_of(values) <= READY_BYTES
    return values if fit else []


def memory_for(parameters: Sequence[Tensor]) -> Memory | None:
    """Asked of the system now, and not when they are copied; None where that is not foreseen."""
    values = foreseen(parameters)
    if not values:
        return None
    memory = Memory(_size_of(values))
    memory.like(values[0])
    memory.at = 0
    return memory


def _size_of(values: Sequence[Tensor]) -> int:
    return sum([room_for(value.nbytes) for value in values if plain(value)])


def rooms_for(values: Sequence[Tensor], ready: Memory | None = None) -> list[Tensor]:
    """One for each, in one piece where they fit into one: in `ready`, if that is large enough."""
    size = _size_of(values)
    memory = ready if ready is not None and ready.at + size <= ready.size else Memory(size)
    return [memory.like(value) if plain(value) else torch.empty_like(value) for value in values]


def copy_of(value: Tensor) -> Tensor:
    """As `clone` makes it, of one tensor that is kept."""
    value = value.detach()
    if not plain(value) or value.nbytes < APART:
        return value.clone()
    return Memory(value.nbytes).like(value).copy_(value)


@torch.no_grad()
def copied(values: Sequence[Tensor], ready: Memory | None = None) -> list[Tensor]:
    """Others than plain ones know best how they are copied. `ready`: memory for them, if there is some."""
    theirs = [value for value in values if plain(value)]
    ours = rooms_for(theirs, ready)
    if ours:
        torch._foreach_copy_(ours, theirs)
    rooms = iter(ours)
    return [next(rooms) if plain(value) else copy_of(value) for value in values]
