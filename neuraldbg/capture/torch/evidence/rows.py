"""Samples recognised by their bits: a 64-bit key for every row of a batch or a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.ma  # np.unique asks for it: not in the midst of somebody's first update
import torch
from numpy.typing import NDArray
from torch import Tensor

from neuraldbg.capture.kernels.host import fused, row_hashes
from neuraldbg.capture.torch.stats import measurable

Keys = NDArray[np.uint64]
Array = NDArray[Any]
LONGEST_ROW = 256  # elements of a row that are read; of longer ones so many, evenly spread
AT_A_TIME = 1024  # rows: bounds the memory it takes
_USUAL = frozenset((torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8))
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_MIX = np.uint64(0xD6E8FEB86659FD93)
_WEIGHTS = np.random.Generator(np.random.PCG64(20)).integers(1, 2**24, (4 * LONGEST_ROW, 2)).astype(np.float64)


def as_array(value: Any) -> Array | None:
    """A dense host tensor or a NumPy array of numbers, without a copy where possible."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "fiub" and value.ndim > 0 else None
    if type(value) is Tensor and _is_usual(value):
        usual: Array = value.detach().numpy()
        return usual
    if not isinstance(value, Tensor) or value.device.type != "cpu" or value.layout != torch.strided or value.dim() == 0:
        return None
    if not measurable(value) or value.is_complex():
        return None
    plain = value.detach().resolve_neg()
    if plain.dtype is torch.bfloat16:
        plain = plain.view(torch.int16)
    array: Array = plain.numpy()
    return array


def _is_usual(value: Tensor) -> bool:
    if not value.is_cpu or value.dtype not in _USUAL or value.layout is not torch.strided or not value.dim():
        return False
    return not (value.is_nested or value.is_neg() or _wrapped(value))


def keys_of_rows(tensor: Tensor, most: int) -> Keys | None:
    """The same as `keys_of` its array, of a tensor of up to so many bytes that are read; by one call of C mostly."""
    quickly = None if row_hashes is None else row_hashes(tensor, most, LONGEST_ROW)
    if quickly is not None:
        return np.frombuffer(quickly, np.uint64)
    array = as_array(tensor)
    return None if array is None or bytes_of(array) > most else keys_of(array)


def keys_of(array: Array) -> Keys | None:
    """One number per row, equal only for rows of equal bits (up to chance); None for rows without elements."""
    if array.size == 0 or array.dtype.itemsize > 8:
        return None
    rows = array.reshape(len(array), -1)
    if rows.shape[1] > LONGEST_ROW:
        rows = rows[:, :: -(-rows.shape[1] // LONGEST_ROW)]
    rows = np.ascontiguousarray(rows)
    return _sums_of(rows) if fused is None else _hashes_of(rows)


def _hashes_of(rows: Array) -> Keys:
    """By the C kernel: a tenth of the time, as long as a batch has some hundred rows."""
    return np.frombuffer(fused.hash_rows(rows.ctypes.data, len(rows), rows.shape[1] * rows.itemsize), np.uint64)


def _sums_of(rows: Array) -> Keys:
    """Sums of 16-bit pieces times random whole numbers below 2^24: exact in float64, and BLAS adds them up five times
    faster than NumPy multiplies 64-bit integers."""
    pieces = rows.view(np.uint8 if rows.dtype.itemsize == 1 else np.uint16)
    found = np.empty((len(pieces), 2), np.uint64)
    for start in range(0, len(pieces), AT_A_TIME):
        part = slice(start, start + AT_A_TIME)
        found[part] = pieces[part].astype(np.float64) @ _WEIGHTS[: pieces.shape[1]]
    with np.errstate(over="ignore"):
        keys: Keys = found[:, 0] * _MIX ^ found[:, 1]
    return keys


def joined(several: Sequence[Keys]) -> Keys:
    """Keys of samples that consist of several arrays: input and target."""
    total = np.zeros(len(several[0]), np.uint64)
    with np.errstate(over="ignore"):
        for keys in several:
            total = (total ^ (keys >> np.uint64(29))) * _MIX + keys
    return total


def bytes_of(array: Array) -> int:
    """How much `keys_of` reads."""
    longest = max(1, min(array.size // max(len(array), 1), LONGEST_ROW))
    return int(len(array) * longest * array.itemsize)
