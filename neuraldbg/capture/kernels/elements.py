"""Element types by the codes that the C kernel knows them by (`enum dtype` in _fused.h), and what a row holds."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# count, mean, std, min, max, l2, zero_count, nan_count, inf_count, hash
Row = tuple[int, float, float, float, float, float, int, int, int, int]


class Element(IntEnum):
    float64 = 0
    float32 = 1
    float16 = 2
    bfloat16 = 3
    float8_e4m3fn = 4
    float8_e5m2 = 5
    int8 = 6
    uint8 = 7
    bool = 8
    int16 = 9
    uint16 = 10
    int32 = 11
    uint32 = 12
    int64 = 13
    uint64 = 14


WIDTH: Final = (8, 4, 2, 2, 1, 1, 1, 1, 1, 2, 2, 4, 4, 8, 8)  # bytes, by code
CHUNK: Final = 4096  # elements: a histogram "of every k-th chunk" counts in these
BINS: Final = 64  # octaves of a histogram
LOWEST_BIN: Final = 40  # bin b counts 2^(b-40) <= |x| < 2^(b-39); the first and the last also what lies beyond
WITH_HASH: Final = 1
WITH_POWERS: Final = 2
MOST_BINS: Final = 63  # of a histogram of equal widths that the C kernel counts
Spread = tuple[
    float, float, float, float, float
]  # sums over the finite values: |x|, and z to z^4 of z = (x - mean) / std
