"""The loss of one batch, out of the mean that Keras tells."""

from __future__ import annotations

FLOAT32 = 2.0**-23
UNSURE = 0.01  # of a loss that is worked out from two means


class RunningLoss:
    """Keras tells the mean since the epoch began; the loss of one batch is what it changed. None where too little of it
    is left in a float32 mean."""

    def __init__(self) -> None:
        self._total = self._count = 0.0

    def of_batch(self, mean: float, count: float) -> float | None:
        if count <= self._count:  # a new epoch
            self._total = self._count = 0.0
        before, self._total = self._total, mean * count
        samples, self._count = count - self._count, count
        if samples <= 0:
            return None
        value = (self._total - before) / samples
        unsure = FLOAT32 * max(abs(before), abs(self._total)) / samples
        return None if unsure > UNSURE * abs(value) else value
