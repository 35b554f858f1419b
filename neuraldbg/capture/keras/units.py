"""Units of a Keras model one by one: which put out zero for every sample, and which lie in the flat part of their
range. The facts `activation`, as for PyTorch (`capture/torch/evidence/network.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.capture.keras.rerun import Sight
from neuraldbg.capture.keras.values import concrete
from neuraldbg.capture.places import FIRST_LOOKS, FLAT, LATER, MOST_ELEMENTS, RECTIFIED, Place
from neuraldbg.capture.torch.recorder import Recorder

OPS = {"relu": "Relu", "relu6": "Relu6", "sigmoid": "Sigmoid", "tanh": "Tanh"}
ENDS = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}


class Units:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._places: dict[int, Place] = {}
        self._looks = 0
        self._next = 0.0

    def look(self, layers: list[Sight], sites: dict[int, int]) -> None:
        """At what the layers of one step put out, in their order."""
        step = self.recorder.step
        if self._looks >= FIRST_LOOKS and step < self._next:
            return
        self._looks += 1
        self._next = max(step, 1) * LATER
        order = 0
        for layer, output in reversed(layers):
            op, site = op_of(layer), sites.get(id(layer))
            if op is not None and site is not None:
                order += 1
                self._see(self._places.setdefault(site, Place(op, site, None, order)), output)

    def _see(self, place: Place, output: Any) -> None:
        value = concrete(output)
        array = None if value is None else np.asarray(value)
        if array is None or array.ndim < 2 or array.dtype.kind != "f" or not 0 < array.size <= MOST_ELEMENTS:
            return
        rows = array.reshape(-1, array.shape[-1])
        if len(rows) < 2 or place.units not in (0, rows.shape[1]):
            return
        place.looks, place.units = place.looks + 1, rows.shape[1]
        if place.op in RECTIFIED:
            place.dead = _both(place.dead, np.all(rows == 0, axis=0))
        if place.op in ENDS:
            low, high = ENDS[place.op]
            near = FLAT * (high - low)
            flat: NDArray[np.bool_] = np.logical_or(rows < low + near, rows > high - near)
            place.flat_share = float(flat.mean())
            place.stuck = _both(place.stuck, np.all(flat, axis=0))
        if place.looks == 1 or place.looks >= FIRST_LOOKS:
            self._write(place)

    def finish(self) -> None:
        for place in self._places.values():
            if place.looks > 1:
                self._write(place)

    def _write(self, place: Place) -> None:
        self.recorder.fact("activation", **place.told(lambda flags: np.flatnonzero(flags).tolist()))


def op_of(layer: Any) -> str | None:
    """The activation that a layer ends with, where its units can be told apart by their last axis."""
    if hasattr(layer, "cell") or getattr(layer, "data_format", None) == "channels_first":
        return None
    if type(layer).__name__ == "ReLU":
        return "Relu" if not getattr(layer, "negative_slope", 0) else None
    return OPS.get(getattr(getattr(layer, "activation", None), "__name__", ""))


def _both(before: NDArray[np.bool_] | None, now: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return now if before is None else before & now
