"""What a Keras model and its optimizer say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np


def is_plain(model: Any) -> bool:
    """Whether a step is Keras' own; one of the user's could be anything."""
    step = getattr(type(model), "train_step", None)
    return step is not None and str(step.__module__).startswith("keras.")


def layers_of(layer: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Layers below a model, by their path."""
    for each in layer._layers:
        if type(each).__name__ == "InputLayer" or isinstance(each, keras.metrics.Metric):
            continue
        below = f"{path}.{each.name}" if path else str(each.name)
        yield below, each
        yield from layers_of(each, below)


def samples_seen(model: Any, state: Any) -> Any:
    """How many samples the mean loss stands for: a copy, since Keras gives the variable away."""
    tracker = model._loss_tracker.count
    if state is None:
        return tracker.value + 0
    place = next(n for n, each in enumerate(model.metrics_variables) if each is tracker)
    return state[3][place] + 0


def rate_of(optimizer: Any, state: Any = None) -> Any:
    """The learning rate, of JAX from the state that Keras hands from step to step; a copy that nobody waits for."""
    if state is None:
        return optimizer._get_current_learning_rate() + 0
    with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, state[2], strict=True))):
        return optimizer._get_current_learning_rate() + 0


def loss_name(model: Any) -> str:
    loss = getattr(model, "loss", None)
    if loss is None:
        return "custom"
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or type(loss).__name__
    return str(name)


def plain_type(variable: Any) -> str:
    text = str(variable.dtype)
    return "float32" if text in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else text


def size_of(variable: Any) -> int:
    return int(np.prod(tuple(variable.shape)))


def count_of(variables: Any) -> int:
    return sum(size_of(each) for each in variables)
