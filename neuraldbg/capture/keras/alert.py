"""`--alert-on-nan`: a training with Keras ends before a NaN or Inf reaches its weights.

A compiled step makes its update before anybody sees a number. While this is asked for, every step is computed once more
before it runs (`rerun.py`), and what is not finite there never runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from neuraldbg.capture.keras.rerun import Seen
from neuraldbg.capture.keras.values import dense, measured
from neuraldbg.errors import StoppedOnNaN

UNSEEN = "{name} has a train_step of its own, and it is compiled: --alert-on-nan cannot look into it"


def stop_if_not_finite(seen: Seen, step: int, name_of: Callable[[Any], str | None]) -> None:
    """Of a step that was computed once more."""
    if not np.isfinite(np.asarray(seen.loss, dtype=np.float64)):
        raise StoppedOnNaN("the loss is not finite", step, _first(seen, name_of))
    if any(_broken(each) for each in seen.gradients):
        raise StoppedOnNaN("a gradient is not finite", step, _first(seen, name_of))


def stop_if_any_gradient(gradients: Iterable[Any], step: int) -> None:
    """Of a loop over tapes, before an optimizer is handed them."""
    if any(_broken(each) for each in gradients):
        raise StoppedOnNaN("a gradient is not finite", step, None)


def _first(seen: Seen, name_of: Callable[[Any], str | None]) -> str | None:
    """Where it was first seen: the first layer whose output is not finite."""
    broken = next((layer for layer, output in seen.layers if _broken(output)), None)
    name = None if broken is None else name_of(broken)
    return None if name is None else f"in {name}"


def _broken(value: Any) -> bool:
    row = None if value is None else measured(dense(value))
    return row is not None and bool(row[7] + row[8])
