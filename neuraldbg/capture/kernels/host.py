"""torch tensors in host memory, handed to the C kernel by their address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from neuraldbg.capture.kernels import frameless
from neuraldbg.capture.kernels.elements import WIDTH, Element, Row

fused: Any = None
try:
    from neuraldbg.capture.kernels import _fused as fused
except ImportError:  # built without a compiler
    pass

CODES: Final[dict[torch.dtype, int]] = {
    dtype: int(element) for element in Element if (dtype := getattr(torch, element.name, None)) is not None
}
_PLAIN: Final = frozenset((Tensor, nn.Parameter))  # others may hold their values elsewhere
_wrapped: Final = torch._C._functorch.is_functorch_wrapped_tensor
_KINDS: Final = [getattr(torch, element.name, None) for element in Element]
_reader: Final[Any] = frameless.Reader and frameless.Reader(Tensor, nn.Parameter, torch.strided, _KINDS)
EVERY_SIZE: Final = 2**62

Span = tuple[int, int, int]  # address, element code, count


def span_of(tensor: Tensor, *, ordered: bool = False) -> Span | None:
    """Where the elements lie, when they fill a piece of host memory without a gap; in order if asked. None = measure it
    another way. The caller keeps the tensor until it is done with the address."""
    if type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.layout is not torch.strided:
        return None
    code = CODES.get(tensor.dtype)
    if code is None or tensor.is_nested or tensor.is_neg() or _wrapped(tensor):
        return None
    if not tensor.is_contiguous() and (ordered or not fills_its_memory(tensor)):
        return None
    count = tensor.numel()
    address = tensor.data_ptr() if count else 0
    return (address, code, count) if address or not count else None


def fills_its_memory(tensor: Tensor) -> bool:
    """Whether the strides are those of a contiguous tensor with its dimensions in some order (transposed, channels
    last)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def measured(tensor: Tensor) -> Row | None:
    """Statistics by the C kernel; None where it is not there or cannot read the tensor."""
    if fused is None:
        return None
    row: Row | None = _reader.measured(tensor) if _reader is not None else None
    if row is None and (span := span_of(tensor)) is not None:
        row = fused.measure(*span)
    return row


all_finite: Final[Any] = _reader and _reader.finite  # gradients of weakly held tensors; None where there is no kernel
row_hashes: Final[Any] = _reader and _reader.rows  # eight bytes of each row of a tensor, likewise
gradient_hashes: Final[Any] = _reader and _reader.gradients  # of some of many parameters, likewise
octaves: Final[Any] = getattr(_reader, "octaves", None)  # of some pieces of a tensor, likewise
silent: Final[Any] = getattr(_reader, "silent", None)  # units of an activation that put out nothing, likewise
quickly_hashed: Final[Any] = _reader and _reader.hashed  # with no frame; None where there is no kernel


def hashed(tensor: Tensor, most: int = EVERY_SIZE) -> int | None:
    """The hash of its elements in order, likewise; None also of what is above so many bytes."""
    found: int | None
    if fused is None:
        return None
    if _reader is not None:
        found = _reader.hashed(tensor, most)
        return found
    span = span_of(tensor, ordered=True)
    if span is None:
        return None
    address, code, count = span
    found = fused.hash(address, count * WIDTH[code]) if count * WIDTH[code] <= most else None
    return found


def measured_each(tensors: Sequence[Tensor]) -> list[Row | None]:
    """Statistics of several tensors in one call."""
    spans = [span_of(tensor) if fused is not None else None for tensor in tensors]
    rows = iter(fused.measure_many([span for span in spans if span is not None]) if any(spans) else ())
    return [None if span is None else next(rows) for span in spans]


def same_bits(tensors: Sequence[Tensor], copies: Sequence[Tensor]) -> bool:
    """Whether each holds what its copy does, to the last bit; False where that cannot be told."""
    if _reader is None or len(tensors) != len(copies):
        return False
    found: bool = _reader.same(list(tensors), list(copies))
    return found


def moved_each(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Row, Row] | None]:
    """Of each parameter, given with an earlier value of it, what it is now and how far it moved: one pass over both."""
    spans = [_span_of_pair(now, before) if fused is not None else None for now, before in pairs]
    rows = iter(fused.sweep([span for span in spans if span is not None]) if any(spans) else ())
    found: list[tuple[Row, Row] | None] = []
    for span in spans:
        row = None if span is None else next(rows)
        found.append(None if row is None else (row[0], row[2]))
    return found


def _span_of_pair(now: Tensor, before: Tensor) -> tuple[int, int, int, int, int, int] | None:
    one, other = span_of(now), span_of(before)
    if one is None or other is None or now.dtype != before.dtype:
        return None
    if now.shape != before.shape or (now.stride() != before.stride() and now.numel()):
        return None
    return (*one, 0, 0, other[0])
