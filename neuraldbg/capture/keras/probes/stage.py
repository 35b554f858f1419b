"""A model with weights of ours, trained for a few updates by an optimizer like its own. The model itself, its optimizer
and its random states stay as they are: it is called as a function of its state."""

from __future__ import annotations

from typing import Any, Protocol

import keras
import numpy as np

from neuraldbg.capture.keras.probes.specimen import Skip, Specimen


class Stage(Protocol):
    """`step` and `loss` answer with plain numbers."""

    def start(self, trainable: list[Any], fixed: list[Any]) -> None: ...

    def rate(self, value: float) -> None: ...

    def step(self, batch: Any) -> tuple[float, float]:
        """One update: the loss before it, and the norm of its gradient."""

    def loss(self, batch: Any) -> float:
        """As in training; nothing is learned."""

    def weights(self) -> list[Any]: ...


def stage_for(model: Any, specimen: Specimen) -> Stage:
    """On the backend that Keras runs on."""
    optimizer = like(model.optimizer, specimen.rate or 0.0)
    ours = [keras.Variable(value, name=f"copy_{number}") for number, value in enumerate(specimen.trainable)]
    optimizer.build(ours)
    return (JaxStage if keras.backend.backend() == "jax" else TensorFlowStage)(model, optimizer, ours)


def like(optimizer: Any, rate: float) -> Any:
    """A fresh optimizer with the settings of another, at a constant rate."""
    kind = type(optimizer)
    if not kind.__module__.startswith("keras.") or kind.__name__ == "LossScaleOptimizer":
        raise Skip(f"{kind.__name__} cannot be made again for an experiment")
    return kind.from_config({**optimizer.get_config(), "learning_rate": rate})


def loss_of(model: Any, trainable: list[Any], fixed: list[Any], batch: Any) -> tuple[Any, list[Any]]:
    """The loss with these weights, and what the pass makes of the others (moving averages, random states)."""
    x, y, weight = batch
    held = [*zip(model.trainable_variables, trainable, strict=True)]
    held += zip(model.non_trainable_variables, fixed, strict=True)
    with keras.StatelessScope(state_mapping=held) as scope:
        outputs = model(x, training=True) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight, training=True)
    after = [scope.get_current_value(each) for each in model.non_trainable_variables]
    return loss, [old if new is None else new for old, new in zip(fixed, after, strict=True)]


class TensorFlowStage:
    def __init__(self, model: Any, optimizer: Any, ours: list[Any]) -> None:
        import tensorflow as tf

        self.model, self.optimizer, self.ours = model, optimizer, ours
        self._fresh = [np.array(each.value) for each in optimizer.variables]
        self._fixed: list[Any] = []
        self._step = tf.function(self._update, reduce_retracing=True)
        self._loss = tf.function(lambda *given: loss_of(self.model, [v.value for v in self.ours], *given)[0])

    def _update(self, fixed: list[Any], batch: Any) -> tuple[Any, Any, list[Any]]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss, after = loss_of(self.model, [each.value for each in self.ours], fixed, batch)
        gradients = tape.gradient(loss, [each.value for each in self.ours])
        norm = tf.linalg.global_norm([each for each in gradients if each is not None])
        pairs = [(g, v) for g, v in zip(gradients, self.ours, strict=True) if g is not None]
        self.optimizer.apply([g for g, _ in pairs], [v for _, v in pairs])
        return loss, norm, after

    def start(self, trainable: list[Any], fixed: list[Any]) -> None:
        import tensorflow as tf

        for variable, value in zip(self.ours, trainable, strict=True):
            variable.assign(value)
        for variable, value in zip(self.optimizer.variables, self._fresh, strict=True):
            variable.assign(value)
        self._fixed = [tf.convert_to_tensor(each) for each in fixed]

    def rate(self, value: float) -> None:
        self.optimizer.learning_rate = value

    def step(self, batch: Any) -> tuple[float, float]:
        loss, norm, self._fixed = self._step(self._fixed, _tensors(batch))
        return float(loss), float(norm)

    def loss(self, batch: Any) -> float:
        return float(self._loss(self._fixed, _tensors(batch)))

    def weights(self) -> list[Any]:
        return [np.array(each.value) for each in self.ours]


def _tensors(batch: Any) -> Any:
    return keras.tree.map_structure(lambda each: None if each is None else keras.ops.convert_to_tensor(each), batch)


class JaxStage:
    def __init__(self, model: Any, optimizer: Any, ours: list[Any]) -> None:
        import jax

        self.model, self.optimizer = model, optimizer
        self._fresh = [each.value for each in optimizer.variables]
        self._rate = next(n for n, each in enumerate(optimizer.variables) if each is optimizer._learning_rate)
        self._trainable: list[Any] = [each.value for each in ours]
        self._fixed: list[Any] = []
        self._state: list[Any] = []
        self._step = jax.jit(self._update)
        self._loss = jax.jit(lambda *given: loss_of(self.model, *given)[0])

    def _update(self, trainable: list[Any], fixed: list[Any], state: list[Any], batch: Any) -> Any:
        import jax

        graded = jax.value_and_grad(lambda values: loss_of(self.model, values, fixed, batch), has_aux=True)
        (loss, after), gradients = graded(trainable)
        norm = sum((each**2).sum() for each in gradients) ** 0.5
        trainable, state = self.optimizer.stateless_apply(state, gradients, trainable)
        return loss, norm, list(trainable), list(after), list(state)

    def start(self, trainable: list[Any], fixed: list[Any]) -> None:
        import jax

        self._trainable = [jax.numpy.asarray(each) for each in trainable]
        self._fixed = [jax.numpy.asarray(each) for each in fixed]
        self._state = list(self._fresh)

    def rate(self, value: float) -> None:
        import jax

        self._state[self._rate] = jax.numpy.asarray(value, self._fresh[self._rate].dtype)

    def step(self, batch: Any) -> tuple[float, float]:
        done = self._step(self._trainable, self._fixed, self._state, batch)
        loss, norm, self._trainable, self._fixed, self._state = done
        return float(loss), float(norm)

    def loss(self, batch: Any) -> float:
        return float(self._loss(self._trainable, self._fixed, batch))

    def weights(self) -> list[Any]:
        return [np.array(each) for each in self._trainable]
