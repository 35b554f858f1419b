"""What an experiment needs of a run: its first weights, and a few of its batches."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

MOST_BATCHES = 6
MOST_BYTES = 2**25  # of batches
MOST_WEIGHTS = 2**27  # bytes
FIRST_LOSSES, LAST_LOSSES = 3, 8


class Skip(Exception):
    """An experiment that has nothing to say here, and why."""


class Specimen:
    """Filled while a training runs, on steps that are looked at anyway."""

    def __init__(self) -> None:
        self.batches: list[Any] = []  # (x, y, sample weight) as arrays
        self.trainable: list[Any] = []  # the first weights
        self.fixed: list[Any] = []
        self.why_not: str | None = None
        self.rate: float | None = None  # the learning rate of the first update
        self._room = MOST_BYTES
        self._first: list[float] = []
        self._last: list[float] = []

    def see(self, model: Any, data: Any, state: Any, *, first: bool, rate: float) -> None:
        """Before a step that is looked at. `first`: no update has been made yet."""
        if self.why_not is not None or len(self.batches) >= MOST_BATCHES:
            return
        if not self.trainable and not self._keep_weights(model, state, first=first):
            return
        self.rate = rate if self.rate is None else self.rate
        batch = keras.tree.map_structure(_array, keras.utils.unpack_x_y_sample_weight(data))
        self._room -= sum(each.nbytes for each in keras.tree.flatten(batch) if each is not None)
        if self._room >= 0:
            self.batches.append(batch)

    def _keep_weights(self, model: Any, state: Any, *, first: bool) -> bool:
        variables = [*model.trainable_variables, *model.non_trainable_variables]
        if not first:
            self.why_not = "its first update was not looked at"
        elif sum(4 * int(np.prod(tuple(each.shape))) for each in variables) > MOST_WEIGHTS:
            self.why_not = "the model is too large for experiments beside it"
        else:
            trainable, fixed = (
                (model.trainable_variables, model.non_trainable_variables) if state is None else (state[0], state[1])
            )
            self.trainable = [np.array(getattr(each, "value", each)) for each in trainable]
            self.fixed = [np.array(getattr(each, "value", each)) for each in fixed]
        return self.why_not is None

    def told(self, loss: float) -> None:
        """The loss of a step."""
        if len(self._first) < FIRST_LOSSES:
            self._first.append(loss)
        self._last = [*self._last[1 - LAST_LOSSES :], loss]

    def learned(self) -> bool:
        """Whether the run came well below its first loss."""
        if not self._first:
            return False
        last = float(np.median(self._last))
        return bool(last < 0.7 * self._first[0])


def _array(value: Any) -> Any:
    return None if value is None else np.array(value)
