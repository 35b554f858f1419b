"""What `_fused` computes, in numpy: where there is no compiler, and to test it against.

Counts, smallest and largest value, histogram and hash are the same to the last bit. Mean and standard deviation differ
by less than 1e-6 of the largest magnitude and the norm by less than 1e-6 of itself: here everything is summed in
float64, there floats are summed as floats over 4,096 elements at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.capture.kernels.elements import BINS, CHUNK, LOWEST_BIN, Element, Row, Spread

PIECE: Final = 16 * CHUNK  # elements at a time: the copies stay in the cache
KEYS: Final = 512  # words of 8 bytes after which the keys of the hash repeat, with another offset
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_WORD: Final = (1 << 64) - 1
_FIRST_OFFSET: Final = np.uint64(1 << 32)
_AS_NUMPY: Final = {
    Element.float64: np.float64,
    Element.float32: np.float32,
    Element.float16: np.float16,
    Element.int8: np.int8,
    Element.uint8: np.uint8,
    Element.bool: np.uint8,
    Element.int16: np.int16,
    Element.uint16: np.uint16,
    Element.int32: np.int32,
    Element.uint32: np.uint32,
    Element.int64: np.int64,
    Element.uint64: np.uint64,
}


@np.errstate(invalid="ignore")  # a NaN that signals
def decoded(raw: NDArray[np.uint8], element: Element) -> NDArray[Any]:
    """Values, float32 or float64, of elements given as their bytes."""
    if element is Element.bfloat16:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if element is Element.float8_e5m2:
        return (raw.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    if element is Element.float8_e4m3fn:
        half = (raw.astype(np.uint16) & 0x80) << 8 | (raw.astype(np.uint16) & 0x7F) << 7
        values = half.view(np.float16).astype(np.float32) * np.float32(256)
        values[raw & 0x7F == 0x7F] = np.nan
        return values
    values = raw.view(_AS_NUMPY[element])
    return values if values.dtype in (np.float32, np.float64) else values.astype(_width_for(element))


def _width_for(element: Element) -> Any:
    return np.float32 if element is Element.float16 or Element.int8 <= element <= Element.bool else np.float64


def measure(raw: NDArray[np.uint8], element: Element, *, hashed: bool = False) -> Row:
    """The statistics of a tensor given as its bytes, in order."""
    return row_of(decoded(raw, element), hash_of(raw) if hashed else 0)


def row_of(values: NDArray[Any], hashed: int = 0) -> Row:
    with np.errstate(all="ignore"):
        nans, infs = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        zeros, finite = values.size - int(np.count_nonzero(values)), values.size - nans - infs
        if not finite:
            return (values.size, math.nan, math.nan, math.nan, math.nan, math.nan, zeros, nans, infs, hashed)
        low = min(part.min() for part in _pieces(values))
        high = max(part.max() for part in _pieces(values))
        scale = _scale_for(max(-low, high))
        mean = sum((part * scale).sum() for part in _pieces(values)) / finite
        spread = sum(((part * scale - mean) ** 2).sum() for part in _pieces(values))
        std, l2 = np.sqrt(spread / finite) / scale, np.sqrt(spread + finite * mean * mean) / scale
        ends = (float(low), float(high))
        return (values.size, float(mean / scale), float(std), *ends, float(l2), zeros, nans, infs, hashed)


def _pieces(values: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    """The finite values as float64, some at a time."""
    for start in range(0, values.size, PIECE):
        part = values[start : start + PIECE]
        good = np.isfinite(part)
        if good.any():
            yield (part if good.all() else part[good]).astype(np.float64)


def _scale_for(top: float) -> np.float64:
    """A power of two by which squares neither overflow nor vanish."""
    return np.float64(2.0**-540 if top > 1e140 else 2.0**600 if 0 < top < 1e-140 else 1.0)


def histogram(values: NDArray[Any], every: int = 1) -> NDArray[np.int64]:
    """Finite values other than zero by the octave of their magnitude, of every k-th chunk."""
    chunks = np.arange(values.size) // CHUNK
    chosen = np.abs(values[chunks % every == 0])
    chosen = chosen[np.isfinite(chosen) & (chosen != 0)]
    octave = np.frexp(chosen)[1] - 1
    return np.bincount(np.clip(octave + LOWEST_BIN, 0, BINS - 1), minlength=BINS).astype(np.int64)


def silent(values: NDArray[Any], axis: int, before: bytes | None = None) -> bytes:
    """A byte of each unit along an axis: 1 where it is zero for all samples and positions, and was so `before`, in a
    look at as many units. NaN is no zero."""
    others = tuple([dim for dim in range(values.ndim) if dim != axis])
    found: NDArray[np.bool_] = ~np.logical_or.reduce(values, axis=others)
    if before is not None and len(before) == found.size:
        found &= np.frombuffer(before, np.bool_)
    return found.tobytes()


def spread(values: NDArray[Any], of: tuple[float, float, float, float], counts: NDArray[np.int64]) -> Spread:
    """The second look at a tensor whose mean, std, smallest and largest value are known: sums, and a histogram of equal
    widths added to `counts`. Values that lie on an edge, up to rounding, may be counted on either side."""
    mean, std, low, high = of
    sums = np.zeros(5)
    half = 0.5 if not math.isfinite(high - low) else 1.0  # so that the range fits
    width = (high * half - low * half) / len(counts)
    with np.errstate(all="ignore"):
        for part in _pieces(values):
            z = (part - mean) / std if std > 0 else np.zeros_like(part)
            sums += (np.abs(part).sum(), *((z**power).sum() for power in (1, 2, 3, 4)))
            place = (part * half - low * half) / width if width > 0 else np.zeros_like(part)
            counts += np.bincount(np.clip(place, 0, len(counts) - 1).astype(np.int64), minlength=len(counts))
    l1, one, two, three, four = sums.tolist()
    return l1, one, two, three, four


# -- hash --------------------------------------------------------------------------------------------------------------


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: one-to-one."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keys_of(index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return mixed((index + np.uint64(1)) * _GOLDEN)


def hash_of(raw: NDArray[np.uint8]) -> int:
    """Position-sensitive 64-bit hash of bytes, taken as little-endian words of 8 with zeros after the last.

    Each word gets a key of its place; the 32-bit halves of word plus key are multiplied and the products summed (NH, as
    in UMAC and XXH3), and beside them the words as they are: one changed element always changes that second sum.
    """
    padded = np.zeros(-(-raw.size // 8) * 8, np.uint8) if raw.size % 8 else raw
    if raw.size % 8:
        padded[: raw.size] = raw
    words = np.ascontiguousarray(padded).view(np.uint64)
    products, plain = np.zeros((), np.uint64), np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for start in range(0, words.size, PIECE):
            part = words[start : start + PIECE]
            products += _products(part, start)
            plain += part.sum(dtype=np.uint64)
    return hash_from_sums(int(products), int(plain), raw.size)


def hash_from_sums(products: int, plain: int, size: int) -> int:
    """The hash of `size` bytes from its two sums, modulo 2^64, wherever those were made."""
    with np.errstate(over="ignore"):
        sums = np.array([products & _WORD, plain & _WORD], np.uint64)
        return int(mixed(sums[:1] + mixed(sums[1:] ^ (np.uint64(size) * _GOLDEN)))[0])


@lru_cache(maxsize=16)  # of 512 KB each
def _keys_from(first: int) -> NDArray[np.uint32]:
    """The halves of the keys of a piece of words; those of the first piece are the ones that are always needed."""
    index = np.arange(first, first + PIECE, dtype=np.uint64)
    with np.errstate(over="ignore"):
        table = keys_of(np.arange(KEYS, dtype=np.uint64))
        offset = keys_of(index // np.uint64(KEYS) + _FIRST_OFFSET)
        return table[index % KEYS].view(np.uint32) + offset.view(np.uint32)


def _products(words: NDArray[np.uint64], first: int) -> np.uint64:
    keys = _keys_from(first)[: 2 * words.size]
    halves = (words.view(np.uint32) + keys).astype(np.uint64)
    total: np.uint64 = (halves[0::2] * halves[1::2]).sum(dtype=np.uint64)
    return total
