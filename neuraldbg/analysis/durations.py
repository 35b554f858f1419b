"""Durations summed up in constant time and memory each: moments, extremes, percentiles within one percent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

STEP: Final = 1.02  # of one bin over the one below: a percentile is off by 1 % at most
_LOG: Final = math.log(STEP)
PERCENTILES: Final = (50, 95, 99)


class Durations:
    """`add` one value or `add_many`, in any order. Zeros have a bin; what is below zero, or infinite, is refused."""

    __slots__ = ("_bins", "_mean", "_spread", "count", "max", "min", "total")

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.count = 0
        self.total = 0.0
        self.min, self.max = math.inf, -math.inf
        self._mean = self._spread = 0.0
        self._bins: dict[int, int] = {}  # at most some 2,000: the logarithm of a duration has few values
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        if not 0 <= value < math.inf:
            raise ValueError(f"a duration is a number from 0 on, not {value!r}")
        self.count += 1
        self.total += value
        off = value - self._mean
        self._mean += off / self.count
        self._spread += off * (value - self._mean)
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        at = _bin(value)
        self._bins[at] = self._bins.get(at, 0) + 1

    def add_many(self, values: NDArray[Any]) -> None:
        values = np.asarray(values, dtype=np.float64)
        if not len(values):
            return
        if not ((values >= 0) & (values < math.inf)).all():
            raise ValueError("durations are numbers from 0 on")
        count, mean, spread = len(values), float(values.mean()), float(((values - values.mean()) ** 2).sum())
        off, both = mean - self._mean, self.count + count
        self._spread += spread + off * off * self.count * count / both
        self._mean += off * count / both
        self.count, self.total = both, self.total + float(values.sum())
        self.min, self.max = min(self.min, float(values.min())), max(self.max, float(values.max()))
        with np.errstate(divide="ignore"):
            bins = np.where(values > 0, np.floor(np.log(values) / _LOG), _ZERO).astype(np.int64)
        for at, many in zip(*(each.tolist() for each in np.unique(bins, return_counts=True)), strict=True):
            self._bins[at] = self._bins.get(at, 0) + many

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def std(self) -> float | None:
        return math.sqrt(max(self._spread, 0.0) / self.count) if self.count else None

    def percentile(self, percent: float) -> float | None:
        if not self.count:
            return None
        wanted, seen = max(math.ceil(self.count * percent / 100), 1), 0
        for at in sorted(self._bins):
            seen += self._bins[at]
            if seen >= wanted:
                middle = 0.0 if at == _ZERO else STEP ** (at + 0.5)
                return min(max(middle, self.min), self.max)
        return self.max

    def told(self, factor: float = 1.0) -> dict[str, float | None]:
        """mean, std, min, max, total and percentiles in another unit; None where nothing was added."""
        known = {"mean": self.mean, "std": self.std, "total": self.total if self.count else None}
        known |= {"min": self.min, "max": self.max} if self.count else {"min": None, "max": None}
        known |= {f"p{percent}": self.percentile(percent) for percent in PERCENTILES}
        return {name: None if value is None else value * factor for name, value in known.items()}


_ZERO: Final = -(10**6)


def _bin(value: float) -> int:
    return math.floor(math.log(value) / _LOG) if value > 0 else _ZERO
