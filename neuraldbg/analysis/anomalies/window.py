"""The recent past of one metric: sorted values, running moments, and what is usual by them; O(1) amortised."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LARGEST, SMALLEST = 1e140, 1e-140  # beyond: not finite, or zero. Their squares and sums stay in double precision
CONSTANT_SPREAD = 0.01  # of the median, where the middle half of the values are one number
LEAST_SPREAD = 1e-6  # of the median, elsewhere: rounding is no news
ZERO_SPREAD = 1e-7  # where that number is 0
CANCELLED = 1e-6  # what is left of a sum of squares below this share is mostly rounding
CHANCE = 2.0  # what the skew of n values may be off by, in units of 1 / sqrt(n)
FAULTS_LEFT_ASIDE = 5
NORMAL = NormalDist()


class Moments:
    """Mean and variance of a set that values join and leave (Welford), counted afresh before rounding shows."""

    __slots__ = ("count", "leavings", "mean", "squares")

    def __init__(self, count: int = 0, mean: float = 0.0, squares: float = 0.0, leavings: int = 0) -> None:
        self.count, self.mean, self.squares, self.leavings = count, mean, squares, leavings

    def join(self, value: float) -> None:
        self.count += 1
        before = value - self.mean
        self.mean += before / self.count
        self.squares += before * (value - self.mean)

    def leave(self, value: float) -> bool:
        """False where the sums are no longer to be trusted and `recount` is due."""
        self.count -= 1
        self.leavings += 1
        if not self.count:
            self.mean = self.squares = 0.0
            return True
        before, squares = value - self.mean, self.squares
        self.mean -= before / self.count
        self.squares -= before * (value - self.mean)
        return self.leavings <= self.count and (self.squares > CANCELLED * squares or not squares)

    def recount(self, values: array[float], *, logs: bool = False) -> None:
        exact = np.log(values) if logs else np.array(values)
        self.count, self.leavings = len(exact), 0
        self.mean = float(exact.mean()) if len(exact) else 0.0
        self.squares = float(np.square(exact - self.mean).sum())

    @property
    def std(self) -> float:
        return math.sqrt(max(self.squares, 0.0) / self.count) if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Usual:
    """What is usual for a metric on one scale: as it is, or its logarithm. Neither of the two spreads is ever zero."""

    logarithmic: bool
    mean: float
    std: float
    low: float  # first quartile
    high: float  # third quartile
    spread: float  # from one to the other

    def on_scale(self, value: float) -> float:
        return math.log(max(value, SMALLEST)) if self.logarithmic else value

    def z(self, value: float) -> float:
        return (self.on_scale(value) - self.mean) / self.std

    def iqr(self, value: float) -> float:
        """Interquartile ranges beyond the nearer quartile; 0 between them."""
        placed = self.on_scale(value)
        return max(placed - self.high, self.low - placed, 0.0) / self.spread


class Window:
    """The values of one metric that are remembered."""

    def __init__(self, values: array[float] | None = None) -> None:
        self.sorted: array[float] = values if values is not None else array("d")
        self.moments, self.log_moments = Moments(), Moments()

    def __len__(self) -> int:
        return len(self.sorted)

    def add(self, value: float) -> None:
        insort(self.sorted, value)
        self.moments.join(value)
        if value > 0:
            self.log_moments.join(math.log(value))

    def remove(self, value: float) -> None:
        del self.sorted[bisect_left(self.sorted, value)]
        if not self.moments.leave(value):
            self.moments.recount(self.sorted)
        if value > 0 and not self.log_moments.leave(math.log(value)):
            self.log_moments.recount(self.sorted[bisect_right(self.sorted, 0.0) :], logs=True)

    def quantile(self, share: float) -> float:
        place = share * (len(self.sorted) - 1)
        below = int(place)
        value = self.sorted[below]
        return value if place == below else value + (place - below) * (self.sorted[below + 1] - value)

    def as_far(self, value: float) -> int:
        """How many remembered values are as far out as this one, on its side of the median."""
        if value > self.quantile(0.5):
            return len(self.sorted) - bisect_left(self.sorted, value)
        return bisect_right(self.sorted, value)

    def far_out(self, *, above: bool) -> tuple[float, float]:
        """A value that one in a hundred reaches, past faults left aside, and its z in a normal distribution."""
        share = max(0.01, (FAULTS_LEFT_ASIDE + 1) / len(self.sorted))
        return self.quantile(1 - share if above else share), -NORMAL.inv_cdf(share)

    def usual(self) -> list[Usual]:
        """Of a window with at least one value: on the scale where it spreads evenly, on both where none does better.

        Durations, norms and sizes vary by factors: as logarithms they have no long tail, and a zero is far out.
        """
        tail, low, middle, high, other = (self.quantile(share) for share in (0.1, 0.25, 0.5, 0.75, 0.9))
        if high == low:  # half of the values are one number: without a least spread any change were infinitely far
            std = max(self.moments.std, CONSTANT_SPREAD * abs(middle) or ZERO_SPREAD)
            return [Usual(False, self.moments.mean, std, low, high, 1.35 * std)]
        least = LEAST_SPREAD * abs(middle)
        std = max(self.moments.std, (high - low) / 3, least)  # no set has less than 0.35 of that range
        plain = Usual(False, self.moments.mean, std, low, high, max(high - low, 1.35 * least))
        if self.sorted[0] <= 0:
            return [plain]
        low, high = math.log(low), math.log(high)
        std, spread = max(self.log_moments.std, LEAST_SPREAD), max(high - low, 1.35 * LEAST_SPREAD)
        logarithmic = Usual(True, self.log_moments.mean, std, low, high, spread)
        gain = _skew(tail, middle, other) - _skew(math.log(tail), math.log(middle), math.log(other))
        if abs(gain) < CHANCE / math.sqrt(len(self.sorted)):
            return [plain, logarithmic]
        return [logarithmic] if gain > 0 else [plain]


def _skew(tail: float, middle: float, other: float) -> float:
    """0 where the middle one lies halfway, 1 where it lies at an end."""
    return abs(tail + other - 2 * middle) / (other - tail) if other > tail else 0.0
