"""Tensors on a CUDA device, measured where they are: launches only, nothing waits.

A `DevicePass` belongs to one device. `measure` launches the pass over a tensor at once (its values may change the
moment the hook returns); `plan_for` and `measure_all` over several in one launch. `finish_into` makes rows of all of
them, in one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import TensorBase

from neuraldbg.capture.kernels.elements import WIDTH, Element
from neuraldbg.capture.kernels.host import CODES, fills_its_memory

PARTIALS: Final = 2**17  # pieces that may wait for their rows: 8 MB
BLOCK: Final = 512  # words of 8 bytes that a program reads at a time
PIECE: Final = 64 * 1024  # words of a program in all
LEAST: Final = 4 * 1024  # the same where there is little to read
AT_ONCE: Final = 4  # programs of a multiprocessor: what they can read together is cut into as many, all of one size
MULTIPROCESSORS: Final = 132  # where nobody says how many there are
MOST_AT_ONCE: Final = 1024  # tensors of one launch
KINDS: Final = frozenset({e for e in Element if not e.name.startswith("uint")} | {Element.uint8})
PLANS: Final = 16  # groups of tensors whose tables stay on the device
LONG_ROW: Final = 1024  # bytes of a row from which on it is worth a program of its own
MOST_COPIED: Final = 4 << 20  # bytes of a tensor that is copied to be read
MOST_ROWS: Final = PARTIALS // 2
IN_ROWS: Final = -1  # stands for the tensors of a table: rows of one tensor
MANY_PIECES: Final = 4096  # of one tensor: more of them are added up at a time
_LOOKS: Final = (
    type, TensorBase.data_ptr, attrgetter("dtype"), attrgetter("shape"), TensorBase.stride, TensorBase.is_neg,
)  # fmt: skip
_WIDE: Final = 2**31  # Triton compiles whole numbers from here on as 64 bits


@dataclass(frozen=True, slots=True)
class _Launch:
    """Several tensors of one type: how they are cut, and where the kernel finds them."""

    dtype: torch.dtype
    moved: bool  # each less its counterpart
    piece: int  # words
    pieces: int  # in all
    table: Tensor
    room: int  # tensors that the table has place for
    jobs: tuple[tuple[int, int, int, int], ...]  # place among the tensors, first piece, pieces, count of each


@dataclass(frozen=True, slots=True)
class Plan:
    """Tensors that are measured together."""

    launches: tuple[_Launch, ...]
    pieces: int


def readable(tensor: Tensor) -> bool:
    """Whether the pass can read it: a plain dense tensor of a type it knows, at an address that 16 divides."""
    return _of_known_type(tensor) and (tensor.is_contiguous() or fills_its_memory(tensor))


def readable_in_rows(tensor: Tensor) -> bool:
    """Whether `measure` can read it although it is not dense: compilers leave gaps between the rows of a tensor, so
    that each begins at an even address."""
    return _of_known_type(tensor) and _rows_of(tensor) is not None


def packed(tensor: Tensor) -> Tensor | None:
    """A dense copy that the pass can read, of a small tensor that it cannot: operations of torch that a training does
    not use itself would load a quarter of a gigabyte of kernels into the host's memory."""
    if tensor.numel() * tensor.element_size() > MOST_COPIED or not _of_known_kind(tensor):
        return None
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy if readable(copy) else None


def _rows_of(tensor: Tensor) -> tuple[int, int, int] | None:
    """How many, elements of each, bytes from one to the next."""
    shape, strides, width = tensor.shape, tensor.stride(), tensor.element_size()
    if tensor.dim() < 2 or strides[-1] != 1:
        return None
    pitch, rows = strides[-2], shape[-2]
    for size, stride in zip(reversed(shape[:-2]), reversed(strides[:-2]), strict=True):
        if size != 1 and stride != pitch * rows:
            return None
        rows *= size
    fits = pitch * width % 16 == 0 and pitch >= shape[-1] and shape[-1] * width >= LONG_ROW and rows <= MOST_ROWS
    return (rows, shape[-1], pitch * width) if fits else None


def _of_known_type(tensor: Tensor) -> bool:
    return _of_known_kind(tensor) and tensor.data_ptr() % 16 == 0 and tensor.data_ptr() != 0


def _of_known_kind(tensor: Tensor) -> bool:
    code = CODES.get(tensor.dtype)
    if code not in KINDS or type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    if tensor.is_nested or tensor.is_neg() or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return tensor.numel() > 0


class DevicePass:
    def __init__(self, device: torch.device, *, block: int = BLOCK, piece: int = PIECE, warps: int = 4) -> None:
        from neuraldbg.capture.kernels import triton_pass

        self._kernels = triton_pass
        self.device = device
        self._block = block
        self._index = device.index if device.index is not None else 0
        self._on_cuda = self._direct = device.type == "cuda"
        self._large, self._least = piece, max(min(LEAST, piece) // block, 1) * block
        self._programs = AT_ONCE * _multiprocessors(device)
        self._options: dict[str, Any] = {"num_warps": warps} if device.type == "cuda" else {}
        self._partials = torch.empty((PARTIALS, triton_pass.FIELDS), dtype=torch.float64, device=device)
        self._hashes = torch.empty((1, 2), dtype=torch.int64, device=device)
        self._none = torch.empty(1, dtype=torch.int64, device=device)
        self._used = 0
        self._jobs: list[int] = []  # row, first partial, pieces, count; the same of the next
        self._sent_jobs: tuple[int, list[int], Tensor] = (-1, [], self._none)  # stream, numbers, the same there
        self._plans: dict[Any, Plan | None] = {}
        self._tables: dict[Any, Tensor] = {}  # of tensors that are read row by row
        self._ready: dict[Any, Any] = {}  # compiled kernels by what they were compiled for

    def room_for(self, plan: Plan) -> bool:
        return self._used + plan.pieces <= PARTIALS

    def measure(self, tensor: Tensor, row: int) -> bool:
        """Launch the pass over one tensor, whose statistics will be row `row`. False where there is no room for it."""
        count = tensor.numel()
        rows = None if tensor.is_contiguous() or fills_its_memory(tensor) else _rows_of(tensor)
        each = count if rows is None else rows[1]
        piece = self._piece_for(-(-count * tensor.element_size() // 8))
        pieces_of_row = -(-each * tensor.element_size() // (8 * piece))
        pieces = pieces_of_row * (count // each)
        if self._used + pieces > PARTIALS:
            return False
        table = (self._none, 0) if rows is None else (self._table_of_rows(rows[2], pieces_of_row), IN_ROWS)
        self._launch(tensor.dtype, (piece, pieces), (tensor.data_ptr(), each, *table))
        self._jobs += (row, self._used, pieces, count)
        self._used += pieces
        return True

    def _table_of_rows(self, pitch: int, pieces: int) -> Tensor:
        key = (self._stream(), pitch, pieces)
        table = self._tables.get(key)
        if table is None:
            if len(self._tables) >= PLANS:
                del self._tables[next(iter(self._tables))]
            table = self._tables[key] = self._sent([pitch, pieces])
        return table

    def plan_for(self, tensors: Sequence[Tensor], less: Sequence[Tensor] = ()) -> Plan | None:
        """How they are measured together, or each less its counterpart in `less`; None where the pass cannot do that.
        Parameters lie where they lay, and gradients mostly do: their tables are on the device already, and nothing is
        asked of each but where and what it is."""
        try:
            key = (self._stream(), _looks(tensors), _looks(less))
            if key not in self._plans:
                plan = self._planned(tensors, less)
                if len(self._plans) >= PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[key] = plan
        except RuntimeError:  # some have no address, or there is no room for a table
            return None
        return self._plans.get(key)  # another thread's may have taken its place

    def _planned(self, tensors: Sequence[Tensor], less: Sequence[Tensor]) -> Plan | None:
        everything = (*tensors, *less)
        if {tensor.device for tensor in everything} != {tensors[0].device} or not all(map(readable, everything)):
            return None
        if less and not all(map(_alike, tensors, less)):
            return None
        launches = tuple(self._plan(tensors, less))
        return Plan(launches, sum(one.pieces for one in launches))

    def measure_all(self, plan: Plan, first_row: int) -> None:
        """The same for several tensors, one launch for each type among them."""
        before = (len(self._jobs), self._used)
        try:
            for one in plan.launches:
                self._launch(one.dtype, (one.piece, one.pieces), (0, 0, one.table, one.room), moved=one.moved)
                for place, first, pieces, count in one.jobs:
                    self._jobs += (first_row + place, self._used + first, pieces, count)
                self._used += one.pieces
        except BaseException:
            del self._jobs[before[0] :]  # the rows of those that were launched will be somebody else's
            self._used = before[1]
            raise

    def _plan(self, tensors: Sequence[Tensor], less: Sequence[Tensor]) -> list[_Launch]:
        made = []
        for piece, places, pieces in self._cut(tensors):
            for start in range(0, len(places), MOST_AT_ONCE):
                end = start + MOST_AT_ONCE
                made.append(self._laid_out(tensors, less, (piece, places[start:end], pieces[start:end])))
        return made

    def _laid_out(
        self, tensors: Sequence[Tensor], less: Sequence[Tensor], cut: tuple[int, list[int], list[int]]
    ) -> _Launch:
        piece, places, pieces = cut
        group = [tensors[place] for place in places]
        room = max(1 << (len(group) - 1).bit_length(), 16)
        firsts = [0, *accumulate(pieces)]
        empty = [0] * (room - len(group))
        addresses = [tensor.data_ptr() for tensor in group]
        counts = [tensor.numel() for tensor in group]
        table = [*addresses, *empty, *counts, *empty, *firsts[:-1], *([_WIDE - 1] * len(empty))]
        table += [*(less[place].data_ptr() for place in places), *empty] if less else []
        jobs = tuple(zip(places, firsts, pieces, counts, strict=False))
        return _Launch(group[0].dtype, bool(less), piece, firsts[-1], self._sent(table), room, jobs)

    def finish_into(self, rows: Tensor) -> None:
        """Make the rows of everything measured since the last time. `rows` is float64 of width 9 on the device."""
        if not self._jobs:
            return
        stream = self._stream()
        if self._sent_jobs[:2] != (stream, self._jobs):  # mostly a step is like the one before
            self._sent_jobs = (stream, self._jobs, self._sent(self._jobs))
        block = 1024 if max(self._jobs[2::4]) > MANY_PIECES else 128
        self._kernels.finish[(len(self._jobs) // 4,)](self._sent_jobs[2], self._partials, rows, BLOCK=block)
        self._jobs, self._used = [], 0

    def hash_sums(self, tensor: Tensor) -> Tensor:
        """Statistics and, as two sums on the device, what `twin.hash_of` mixes its hash from. For checking."""
        piece = self._piece_of((tensor,))
        pieces = _pieces(tensor, piece)
        self._hashes = torch.zeros((pieces, 2), dtype=torch.int64, device=self.device)
        self._used, self._jobs = 0, []
        what = (tensor.data_ptr(), tensor.numel(), self._none, 0)
        self._launch(tensor.dtype, (piece, pieces), what, hashed=True)
        self._jobs += (0, 0, pieces, tensor.numel())
        return self._hashes.sum(0)

    def _cut(self, tensors: Sequence[Tensor]) -> list[tuple[int, list[int], list[int]]]:
        """Of the tensors of each type: words of a piece, their places, pieces of each."""
        groups: dict[torch.dtype, list[int]] = {}
        for place, tensor in enumerate(tensors):
            groups.setdefault(tensor.dtype, []).append(place)
        found = []
        for places in groups.values():
            piece = self._piece_of([tensors[place] for place in places])
            found.append((piece, places, [_pieces(tensors[place], piece) for place in places]))
        return found

    def _piece_of(self, tensors: Sequence[Tensor]) -> int:
        """Words of a piece: all tensors of one type in one call are cut alike."""
        return self._piece_for(sum(tensor.numel() * tensor.element_size() // 8 for tensor in tensors))

    def _piece_for(self, words: int) -> int:
        """What fits into a device at once is read by programs that end together; a few left over would read alone."""
        each = -(-words // (self._programs * self._block)) * self._block
        return max(self._least, min(each, self._large))

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
        numbers = (address, count, table, self._used, self._partials, self._hashes, cut[0])
        constants = (int(code), WIDTH[code], self._block, tensors, moved, hashed)
        key = (constants, address < _WIDE, count < _WIDE)
        if self._at_once(key, cut[1], (*numbers, *constants)):
            return
        named = dict(zip(("KIND", "WIDTH", "BLOCK", "TENSORS", "MOVED", "HASH"), constants, strict=True))
        made = self._kernels.measure_pass[(cut[1],)](*numbers, **named, **self._options)
        if self._direct:
            self._ready[key] = made

    def _at_once(self, key: Any, pieces: int, arguments: tuple[Any, ...]) -> bool:
        """The compiled kernel itself, where there is one: finding it costs Triton twice what launching it does."""
        ready = self._ready.get(key)
        if ready is None:
            return False
        try:
            ready[(pieces, 1, 1)](*arguments, stream=self._stream())
        except TypeError:  # a Triton whose compiled kernels want other arguments
            self._direct = False
            self._ready.clear()
            return False
        return True

    def _stream(self) -> int:
        stream: int = torch._C._cuda_getCurrentRawStream(self._index) if self._on_cuda else 0
        return stream

    def _sent(self, numbers: list[int]) -> Tensor:
        """Numbers for a kernel, copied from pinned memory so that nothing waits for the copy."""
        kept = torch.tensor(numbers, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        return kept.to(self.device, non_blocking=True)


def _pieces(tensor: Tensor, piece: int) -> int:
    return -(-tensor.numel() * tensor.element_size() // (8 * piece))


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _looks(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Whatever says how they are read, of all of them in C."""
    return (*(tuple(map(of, tensors)) for of in _LOOKS),)


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
