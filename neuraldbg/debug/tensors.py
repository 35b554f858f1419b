"""What one tensor looks like: statistics and distribution over its finite values, NaN and infinities counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.results import Result
from neuraldbg.capture.arrays import Numbers, numbers_of
from neuraldbg.capture.kernels import memory
from neuraldbg.capture.kernels.elements import Element, Row
from neuraldbg.errors import UsageError

BINS: Final = 50
PERCENTILES: Final = (1, 5, 10, 25, 50, 75, 90, 95, 99)
FENCE: Final = 1.5  # times the range between the quartiles: beyond it lies an outlier
OUTLIERS_SHOWN: Final = 100
SORTED_BYTES: Final = 2**30  # of values that are put in order; of more, evenly spread ones are
NAN: Final = math.nan
_NOTHING: Final = np.empty(0)


@dataclass(frozen=True, eq=False)
class TensorStats(Result):
    """Over the finite values; None where there is none, or where it was not asked for. `std` is that of the population.
    Of complex numbers: of their magnitudes."""

    shape: tuple[int, ...]
    dtype: str
    total_elements: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    median: float | None
    l1_norm: float | None
    l2_norm: float | None
    infinity_norm: float | None
    nan_count: int
    inf_count: int
    zero_count: int
    memory_usage_bytes: int
    sparsity: float | None  # share of zeros


@dataclass(frozen=True, eq=False)
class TensorDistribution(Result):
    """`histogram` has (lower edge, count) of bins of equal width from the smallest to the largest value. Skewness and
    kurtosis (0 for a normal distribution) are None where all values are equal."""

    histogram: tuple[tuple[float, int], ...] = ()
    percentiles: dict[str, float] = field(default_factory=dict)
    outliers: tuple[float, ...] = ()  # the farthest, at most 100
    outlier_count: int | None = None
    skewness: float | None = None
    kurtosis: float | None = None
    exact: bool | None = None  # False: percentiles and outliers are of evenly spread values; None: not asked for


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that was measured of one tensor. `row` is as the trace keeps it."""

    stats: TensorStats
    distribution: TensorDistribution
    row: Row


def look_at(value: Any, *, distribution: bool = True, bins: int = BINS) -> Look:
    """Two passes over the values; with `distribution` they are also put in order, for median, percentiles and
    outliers."""
    if bins < 1:
        raise UsageError(f"a histogram has at least one bin, not {bins}")
    numbers = value if isinstance(value, Numbers) else numbers_of(value)
    flat = numbers.flat()
    row = whole_row(memory.measured(flat, numbers.element), numbers)
    counts = np.zeros(bins, np.int64)
    finite = row[0] - row[7] - row[8]
    if not finite:
        return Look(_stats(numbers, row, None, None), TensorDistribution(exact=True if distribution else None), row)
    _, mean, std, low, high, *_ = row
    sums = memory.spread(flat, numbers.element, (mean, std, low, high), counts, powers=distribution)
    histogram = _histogram(counts, numbers, low, high, finite)
    if not distribution:
        return Look(_stats(numbers, row, sums[0], None), TensorDistribution(histogram), row)
    order = Ordered.of(flat, numbers, all_finite=not (row[7] or row[8]))
    percentiles = {f"p{percent}": order.percentile(percent) for percent in PERCENTILES}
    far, farthest = order.outliers(percentiles["p25"], percentiles["p75"])
    shape = _skewness_and_kurtosis(sums, numbers, row)
    found = TensorDistribution(histogram, percentiles, farthest, far, *shape, order.exact)
    return Look(_stats(numbers, row, sums[0], percentiles["p50"]), found, row)


def look_of(raw: Any) -> Look:
    """What was measured where the tensor lay (`capture.torch.quick_look`), told as any other look."""
    numbers = Numbers(_NOTHING, Element[raw.dtype], raw.shape, raw.dtype, raw.memory_bytes)
    row = (*raw.row[:9], 0)
    if raw.l1 is None:
        return Look(_stats(numbers, row, None, None), TensorDistribution(), row)
    histogram = _histogram(raw.counts, numbers, row[3], row[4], row[0] - row[7] - row[8])
    return Look(_stats(numbers, row, raw.l1, None), TensorDistribution(histogram), row)


def whole_row(row: Row, numbers: Numbers) -> Row:
    """The statistics of the array, given those of the values it stores: once, and without the zeros left out."""
    count, mean, std, low, high, l2, zeros, nans, infs, _ = row
    again, zero = numbers.repeats, numbers.left_out
    if again == 1 and not zero:
        return (*row[:9], 0)
    finite = (count - nans - infs) * again
    counts = (zeros * again + zero, nans * again, infs * again, 0)
    if not finite + zero:
        return (numbers.count, NAN, NAN, NAN, NAN, NAN, *counts)
    if not finite:
        return (numbers.count, 0.0, 0.0, 0.0, 0.0, 0.0, *counts)
    share = finite / (finite + zero)
    spread = math.sqrt(share * std**2 + share * (1 - share) * mean**2) if zero else std
    ends = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    return (numbers.count, mean * share, spread, *ends, l2 * math.sqrt(again), *counts)


def _stats(numbers: Numbers, row: Row, l1: float | None, median: float | None) -> TensorStats:
    count, mean, std, low, high, l2, zeros, nans, infs, _ = row
    known = not math.isnan(mean)
    return TensorStats(
        shape=numbers.shape,
        dtype=numbers.dtype,
        total_elements=count,
        mean=mean if known else None,
        std=std if known else None,
        min=low if known else None,
        max=high if known else None,
        median=median,
        l1_norm=None if l1 is None else l1 * numbers.repeats,
        l2_norm=l2 if known else None,
        infinity_norm=max(abs(low), abs(high)) if known else None,
        nan_count=nans,
        inf_count=infs,
        zero_count=zeros,
        memory_usage_bytes=numbers.memory_bytes,
        sparsity=zeros / count if count else None,
    )


def _histogram(
    counts: NDArray[np.int64], numbers: Numbers, low: float, high: float, finite: int
) -> tuple[tuple[float, int], ...]:
    if low == high:
        return ((low, finite),)
    shares, repeats = _shares(len(counts)), numbers.repeats
    edges = (low * (1 - shares) + high * shares).tolist()
    again = counts.tolist() if repeats == 1 else [count * repeats for count in counts.tolist()]
    if numbers.left_out:
        again[min(int(np.searchsorted(edges, 0.0, side="right")) - 1, len(again) - 1)] += numbers.left_out
    return tuple(zip(edges, again, strict=True))


@lru_cache(maxsize=16)
def _shares(bins: int) -> NDArray[np.float64]:
    return np.arange(bins) / bins


def _skewness_and_kurtosis(
    sums: tuple[float, float, float, float, float], numbers: Numbers, row: Row
) -> tuple[float | None, float | None]:
    _, mean, std, low, high, *_ = row
    if not std > 0 or low == high:
        return None, None
    count = row[0] - row[7] - row[8]
    at_zero = -mean / std
    powers = [total * numbers.repeats for total in sums[1:]]
    one, two, three, four = (
        (total + numbers.left_out * at_zero**power) / count for power, total in enumerate(powers, start=1)
    )
    variance = two - one * one  # z was taken with a mean and a std that are rounded
    if not variance > 0:
        return None, None
    third = three - 3 * one * two + 2 * one**3
    fourth = four - 4 * one * three + 6 * one * one * two - 3 * one**4
    return third / variance**1.5, fourth / variance**2 - 3


class Ordered:
    """Finite values in order, each standing for several, with a number of zeros that are nowhere stored among them."""

    def __init__(self, values: NDArray[Any], repeats: int, zeros: int, *, exact: bool) -> None:
        self.values, self.repeats, self.zeros, self.exact = values, repeats, zeros, exact
        self.count = len(values) * repeats + zeros
        self._before_zeros = count_below(values, 0.0) * repeats if zeros else 0

    @classmethod
    def of(cls, flat: NDArray[Any], numbers: Numbers, *, all_finite: bool = False) -> Ordered:
        step = max(-(-flat.nbytes // SORTED_BYTES), 1)
        part = np.ascontiguousarray(flat[::step])
        values = Numbers(part, numbers.element, part.shape, numbers.dtype, 0).values()
        ordered = values.copy() if all_finite else values[np.isfinite(values)]
        ordered.sort()
        return cls(ordered, numbers.repeats * step, numbers.left_out, exact=step == 1)

    def at(self, rank: int) -> float:
        if self._before_zeros <= rank < self._before_zeros + self.zeros:
            return 0.0
        place = rank if rank < self._before_zeros else rank - self.zeros
        return float(self.values[place // self.repeats])

    def percentile(self, percent: float) -> float:
        """Between two values in proportion, as numpy does it."""
        place = (self.count - 1) * (percent / 100)
        below = min(int(place), self.count - 1)
        low, high = self.at(below), self.at(min(below + 1, self.count - 1))
        share = place - below
        return low * (1 - share) + high * share if low != high else low

    def outliers(self, lower_quartile: float, upper_quartile: float) -> tuple[int, tuple[float, ...]]:
        """How many there are, and those that lie farthest out."""
        reach = FENCE * upper_quartile - FENCE * lower_quartile
        low, high = lower_quartile - reach, upper_quartile + reach
        below = count_below(self.values, low)
        above = len(self.values) - count_below(self.values, high, or_equal=True)
        count = (below + above) * self.repeats + (0 if low <= 0 <= high else self.zeros)
        farthest = [*self.values[: min(below, OUTLIERS_SHOWN)].tolist()]
        farthest += self.values[len(self.values) - min(above, OUTLIERS_SHOWN) :].tolist()
        middle = lower_quartile / 2 + upper_quartile / 2
        farthest.sort(key=lambda value: -abs(value - middle))
        return count, tuple(farthest[:OUTLIERS_SHOWN])


def count_below(ordered: NDArray[Any], bound: float, *, or_equal: bool = False) -> int:
    """How many values lie below. The bound is rounded to their type: searchsorted would else widen all of them."""
    with np.errstate(over="ignore"):
        near = ordered.dtype.type(bound)
    rounded = 0.0 if float(near) == bound else float(near) - bound  # infinite where their type ends before it
    up_to = rounded < 0 or (or_equal and rounded == 0)
    return int(np.searchsorted(ordered, near, side="right" if up_to else "left"))
