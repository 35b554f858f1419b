"""One dial, from 0 to 1, for how unusual a number must be: the higher, the fewer alarms.

    sigma(s) = 3 * q(s) / q(0.95),   q(s) = two-sided quantile of the normal distribution, that is cdf^-1((1 + s) / 2)

so 0.95 is the familiar z-score of 3, 0.90 gives 2.52 and 0.98 gives 3.56. The factor of the interquartile range (1.5 at
0.95) is scaled alike, and the isolation forest takes 1 - s of what it has seen for contaminated.

Both thresholds are for one metric with a long history, and are widened so that a whole sample keeps their false-alarm
rate (0.27 % and 0.70 % of normal noise at 0.95): for the number of metrics it holds (Sidak: 3.46 sigma for five), and
for a short history (Student's t in the approximation of Wallace: 3.6 sigma after 20 samples, 8.3 after 5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

NORMAL = NormalDist()
DEFAULT = 0.95
SIGMA, IQR_FACTOR = 3.0, 1.5  # at the default
QUARTILE = NORMAL.inv_cdf(0.75)  # of the normal distribution, in sigma
IQR_SAMPLES = 2.72  # an interquartile range needs so many times the samples of a standard deviation to be as sure
ALWAYS_RARE = 5
LEAST_SCALE = 1e-3  # at sensitivity 0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What one position of the dial means."""

    sensitivity: float = DEFAULT

    @property
    def contamination(self) -> float:
        return 1 - self.sensitivity

    def z(self, count: int, metrics: int = 1) -> float:
        """Standard deviations from the mean of `count` values, for a sample of so many metrics."""
        return _z(self.sensitivity, count, metrics)

    def iqr(self, count: int, metrics: int = 1) -> float:
        """Interquartile ranges beyond the nearer quartile."""
        return _iqr(self.sensitivity, count, metrics)

    def rare(self, count: int) -> float:
        """How many of `count` values may reach as far as one that is an anomaly: 1 % at the default."""
        return max(ALWAYS_RARE, count * self.contamination / 5)


def scale_of(sensitivity: float) -> float:
    """1 at the default; infinite where nothing but a value that is not finite may raise an alarm."""
    if sensitivity >= 1:
        return math.inf
    return max(NORMAL.inv_cdf((1 - sensitivity) / 2) / NORMAL.inv_cdf((1 - DEFAULT) / 2), LEAST_SCALE)


@lru_cache(maxsize=8192)
def _z(sensitivity: float, count: int, metrics: int) -> float:
    wanted = _student(_shared(SIGMA * scale_of(sensitivity), metrics), count - 1)
    return wanted * math.sqrt((count + 1) / (count - 1))  # the mean and the deviation are estimates too


@lru_cache(maxsize=8192)
def _iqr(sensitivity: float, count: int, metrics: int) -> float:
    fence = QUARTILE + 2 * QUARTILE * IQR_FACTOR * scale_of(sensitivity)  # in sigma
    wanted = _student(_shared(fence, metrics), count / IQR_SAMPLES)
    return sigma_to_iqr(wanted * math.sqrt((count + 1) / count))


def sigma_to_iqr(sigma: float) -> float:
    """So many interquartile ranges beyond a quartile, in a normal distribution."""
    return (sigma - QUARTILE) / (2 * QUARTILE)


def _shared(sigma: float, metrics: int) -> float:
    """The threshold at which the largest of so many numbers exceeds it as rarely as one number exceeds `sigma`."""
    both_tails = 2 * NORMAL.cdf(-sigma)
    if metrics <= 1 or not 0 < both_tails < 1:
        return sigma
    return -NORMAL.inv_cdf(-math.expm1(math.log1p(-both_tails) / metrics) / 2)


def _student(sigma: float, freedom: float) -> float:
    """The quantile of Student's t that is as far out as `sigma` is in the normal distribution (Wallace 1959)."""
    exponent = (sigma * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom
    return math.sqrt(freedom * math.expm1(exponent)) if exponent < 700 else math.inf
