"""Tensors on a CUDA device, measured where they are: launches only, nothing waits.

A `DevicePass` belongs to one device. `measure` launches the pass over a tensor at once (its values may change the
moment the hook returns); `measure_all` several in one launch. `finish_into` makes rows of all of them, in one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor

from neuraldbg.capture.kernels.elements import WIDTH, Element
from neuraldbg.capture.kernels.host import CODES, fills_its_memory

PARTIALS: Final = 2**17  # pieces that may wait for their rows: 8 MB
BLOCK: Final = 1024  # words of 8 bytes that a program reads at a time
PIECE: Final = 32 * 1024  # words of a program in all
SMALL: Final = 4  # times smaller are the pieces of what would else leave most of the device idle
MANY: Final = 1024  # pieces that keep a device busy
MOST_AT_ONCE: Final = 1024  # tensors of one launch
KINDS: Final = frozenset({e for e in Element if not e.name.startswith("uint")} | {Element.uint8})
Job = tuple[int, int, int, int]  # row, first partial, pieces, count


def readable(tensor: Tensor) -> bool:
    """Whether the pass can read it: a plain dense tensor of a type it knows, at an address that 16 divides."""
    code = CODES.get(tensor.dtype)
    if code not in KINDS or type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    if tensor.is_nested or tensor.is_neg() or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    if not tensor.is_contiguous() and not fills_its_memory(tensor):
        return False
    return tensor.numel() > 0 and tensor.data_ptr() % 16 == 0 and tensor.data_ptr() != 0


class DevicePass:
    def __init__(self, device: torch.device, *, block: int = BLOCK, piece: int = PIECE, warps: int = 4) -> None:
        from neuraldbg.capture.kernels import triton_pass

        self._kernels = triton_pass
        self.device = device
        self._shape = {"BLOCK": block}
        self._large, self._small = piece, max(piece // SMALL // block, 1) * block
        self._options: dict[str, Any] = {"num_warps": warps} if device.type == "cuda" else {}
        self._partials = torch.empty((PARTIALS, triton_pass.FIELDS), dtype=torch.float64, device=device)
        self._hashes = torch.empty((1, 2), dtype=torch.int64, device=device)
        self._none = torch.empty(1, dtype=torch.int64, device=device)
        self._used = 0
        self._jobs: list[Job] = []

    def room_for(self, tensors: Sequence[Tensor]) -> bool:
        groups: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            groups.setdefault(tensor.dtype, []).append(tensor)
        cut = [(one, self._piece_of(group)) for group in groups.values() for one in group]
        return self._used + sum(_pieces(one, piece) for one, piece in cut) <= PARTIALS

    def measure(self, tensor: Tensor, row: int) -> None:
        """Launch the pass over one tensor, whose statistics will be row `row`."""
        piece = self._piece_of((tensor,))
        pieces = _pieces(tensor, piece)
        self._launch(tensor.dtype, (piece, pieces), (tensor.data_ptr(), tensor.numel(), self._none, 0))
        self._jobs.append((row, self._used, pieces, tensor.numel()))
        self._used += pieces

    def measure_all(self, tensors: Sequence[Tensor], rows: Sequence[int], *, less: Sequence[Tensor] = ()) -> None:
        """The same for several tensors, one launch for each type among them. `less`: of each tensor less its
        counterpart there, which has the same type and layout."""
        groups: dict[torch.dtype, list[tuple[Tensor, int, Tensor]]] = {}
        for tensor, row, old in zip(tensors, rows, less or tensors, strict=True):
            groups.setdefault(tensor.dtype, []).append((tensor, row, old))
        before = (list(self._jobs), self._used)
        try:
            for group in groups.values():
                piece = self._piece_of([tensor for tensor, _, _ in group])
                for start in range(0, len(group), MOST_AT_ONCE):
                    self._measure_group(group[start : start + MOST_AT_ONCE], piece, moved=bool(less))
        except BaseException:
            self._jobs, self._used = before  # the rows of those that were launched will be somebody else's
            raise

    def _measure_group(self, group: list[tuple[Tensor, int, Tensor]], piece: int, *, moved: bool) -> None:
        room = max(1 << (len(group) - 1).bit_length(), 16)
        pieces = [_pieces(tensor, piece) for tensor, _, _ in group]
        firsts = [0, *accumulate(pieces)]
        empty = [0] * (room - len(group))
        addresses = [tensor.data_ptr() for tensor, _, _ in group]
        counts = [tensor.numel() for tensor, _, _ in group]
        table = [*addresses, *empty, *counts, *empty, *firsts[:-1], *([2**31 - 1] * len(empty))]
        table += [*(old.data_ptr() for _, _, old in group), *empty]
        self._launch(group[0][0].dtype, (piece, firsts[-1]), (0, 0, self._sent(table), room), moved=moved)
        for (tensor, row, _), first, number in zip(group, firsts, pieces, strict=False):
            self._jobs.append((row, self._used + first, number, tensor.numel()))
        self._used += firsts[-1]

    def finish_into(self, rows: Tensor) -> None:
        """Make the rows of everything measured since the last time. `rows` is float64 of width 9 on the device."""
        if not self._jobs:
            return
        jobs = self._sent([number for job in self._jobs for number in job])
        self._kernels.finish[(len(self._jobs),)](jobs, self._partials, rows, BLOCK=128)
        self._jobs, self._used = [], 0

    def hash_sums(self, tensor: Tensor) -> Tensor:
        """Statistics and, as two sums on the device, what `twin.hash_of` mixes its hash from. For checking."""
        piece = self._piece_of((tensor,))
        pieces = _pieces(tensor, piece)
        self._hashes = torch.zeros((pieces, 2), dtype=torch.int64, device=self.device)
        self._used, self._jobs = 0, []
        what = (tensor.data_ptr(), tensor.numel(), self._none, 0)
        self._launch(tensor.dtype, (piece, pieces), what, hashed=True)
        self._jobs.append((0, 0, pieces, tensor.numel()))
        return self._hashes.sum(0)

    def _piece_of(self, tensors: Sequence[Tensor]) -> int:
        """Words of a piece: all tensors of one type in one call are cut alike."""
        words = sum(tensor.numel() * tensor.element_size() // 8 for tensor in tensors)
        return self._large if words >= MANY * self._large else self._small

    def _launch(
        self,
        dtype: torch.dtype,
        cut: tuple[int, int],
        what: tuple[int, int, Tensor, int],
        *,
        moved: bool = False,
        hashed: bool = False,
    ) -> None:
        """`cut` = words of a piece, pieces; `what` = address, count, table, tensors in it."""
        address, count, table, tensors = what
        code = CODES[dtype]
        self._kernels.measure_pass[(cut[1],)](
            address, count, table, self._used, self._partials, self._hashes, cut[0],
            KIND=code, WIDTH=WIDTH[code], TENSORS=tensors, MOVED=moved, HASH=hashed, **self._shape, **self._options,
        )  # fmt: skip

    def _sent(self, numbers: list[int]) -> Tensor:
        """Numbers for a kernel, copied from pinned memory so that nothing waits for the copy."""
        kept = torch.tensor(numbers, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        return kept.to(self.device, non_blocking=True)


def _pieces(tensor: Tensor, piece: int) -> int:
    return -(-tensor.numel() * tensor.element_size() // (8 * piece))
