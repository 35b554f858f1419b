"""Copies of many tensors in one piece of memory: pieces of their own would each be asked of the system, page by page,
and leave gaps behind that an allocator does not give back."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

ALIGNED = 64
LARGE_PAGE = 2 * 2**20
_LARGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux


def plain(value: Tensor) -> bool:
    """Whether a piece of memory can hold it."""
    return type(value) is Tensor and value.is_cpu and not value.is_quantized and value.layout == torch.strided


def room_for(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def memory_of(size: int) -> Tensor:
    """So many bytes, in large pages where the system has them: of small ones each is asked for when it is first written
    to, which takes three times as long as the copy (2 to 4 us for 4 kB on the virtual machine where it was timed)."""
    if _LARGE_PAGES is None or size < LARGE_PAGE:
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    mapped = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(mapped, dtype=torch.uint8)
    start = -memory.data_ptr() % LARGE_PAGE
    with suppress(OSError):  # a system without them. Its end, which fills none, is left in small ones
        mapped.madvise(_LARGE_PAGES, start, size // LARGE_PAGE * LARGE_PAGE)
    return memory.narrow(0, start, size)


class Memory:
    """So many bytes, given out from the beginning."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._memory: Tensor | None = None
        self.at = 0

    def like(self, value: Tensor) -> Tensor:
        """Room for a copy, laid out as `torch.empty_like` does."""
        if self._memory is None:
            self._memory = memory_of(self._size)
        dense = torch.empty_like(value, device="meta")  # its strides
        piece = self._memory.narrow(0, self.at, value.nbytes)
        self.at += room_for(value.nbytes)
        return piece.view(value.dtype).as_strided(dense.shape, dense.stride())


def rooms_for(values: Sequence[Tensor]) -> list[Tensor]:
    """One for each, in one piece where they fit into one."""
    memory = Memory(sum(room_for(value.nbytes) for value in values if plain(value)))
    return [memory.like(value) if plain(value) else torch.empty_like(value) for value in values]


@torch.no_grad()
def copied(values: Sequence[Tensor]) -> list[Tensor]:
    """Others than plain ones know best how they are copied."""
    theirs = [value for value in values if plain(value)]
    ours = rooms_for(theirs)
    if ours:
        torch._foreach_copy_(ours, theirs)
    rooms = iter(ours)
    return [next(rooms) if plain(value) else value.detach().clone() for value in values]
