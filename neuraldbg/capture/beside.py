"""What a full step really costs: held against the quiet steps beside it, whatever our own clock says of it."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Final

FEWEST: Final = 5  # steps between two of the other sort, before anything is said
_MOST: Final = 64
_CERTAIN: Final = 1.96 * 1.2533 * 1.4826  # 95 %; of a median; from the median of the deviations


@dataclass(frozen=True, slots=True)
class Extra:
    """Nanoseconds that a full step takes longer than a quiet one, with the interval of 95 %."""

    ns: float
    low_ns: float
    high_ns: float
    pairs: int


class Beside:
    """Each step is compared with the mean of those before and after it where they are of the other sort, so that a
    machine that becomes slower or faster does no harm; of the differences the median is taken, so that neither does a
    hiccup."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, bool]] = deque(maxlen=3)  # wall time, in full
        self._differences: deque[float] = deque(maxlen=_MOST)
        self._quiet: deque[int] = deque(maxlen=_MOST)
        self.extra: Extra | None = None  # until there are enough

    def step(self, wall_ns: int, *, full: bool) -> None:
        self._last.append((wall_ns, full))
        if not full:
            self._quiet.append(wall_ns)
        if len(self._last) == 3:
            (before, full_before), (took, full_between), (after, full_after) = self._last
            if full_before == full_after != full_between:
                longer = took - (before + after) / 2
                self._differences.append(longer if full_between else -longer)
                self.extra = self._extra()

    def quiet_steps(self, walls_ns: list[int]) -> None:
        """One after another: from the third on they lie between their like."""
        for wall_ns in walls_ns[:2]:
            self.step(wall_ns, full=False)
        self._quiet.extend(walls_ns[2:])
        self._last.extend([(wall_ns, False) for wall_ns in walls_ns[2:]])

    @property
    def quiet_ns(self) -> float | None:
        """A quiet step, as they have been lately."""
        return statistics.median(self._quiet) if self._quiet else None

    def _extra(self) -> Extra | None:
        if len(self._differences) < FEWEST:
            return None
        middle = statistics.median(self._differences)
        spread = statistics.median(abs(one - middle) for one in self._differences)
        around = _CERTAIN * spread / math.sqrt(len(self._differences))
        return Extra(middle, middle - around, middle + around, len(self._differences))
