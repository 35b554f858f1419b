"""A training step computed once more, to see into it: Keras compiles its steps, and has no hooks for layers.

The same weights, the same batch and the same random state are taken just before the step, so that this gives what the
step gives, up to rounding; whatever it changes is put back, and the step itself runs as it would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter_ns
from typing import Any

from neuraldbg.capture.keras.values import dense

Sight = tuple[Any, Any]  # a layer and what it put out


@dataclass
class Collector:
    """Notes what layers put out while it is in place. `add` puts a zero on each, by which JAX is asked for its
    gradient."""

    add: list[Any] | None = None
    seen: list[Sight] = field(default_factory=list)

    def see(self, layer: Any, output: Any) -> Any:
        if not _is_tensor(output):
            return output
        if self.add is not None:
            output = output + self.add[len(self.seen)]
        self.seen.append((layer, output))
        return output


class LayerCalls:
    """Stands in for `keras.Layer.__call__`: does nothing but call it, unless somebody collects, a tape of the user's is
    open, or layers are places to stop at."""

    def __init__(self) -> None:
        self.collector: Collector | None = None
        self.stops: Any = None
        self.loops: Any = None
        self._depth = 0

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def __call__(layer: Any, *args: Any, **kwargs: Any) -> Any:
            loops = self.loops
            taping = loops is not None and loops.taping
            if self.collector is None and not taping and (self.stops is None or not self.stops.open):
                return original(layer, *args, **kwargs)
            if taping and self.collector is None and not self._depth:
                with loops.running(layer):
                    return self._watched(original, layer, args, kwargs)
            return self._watched(original, layer, args, kwargs)

        return __call__

    def _watched(self, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
        self._depth += 1
        began = perf_counter_ns()
        try:
            output = original(layer, *args, **kwargs)
        finally:
            self._depth -= 1
        if next(iter(layer._layers), None) is not None:
            return output
        if self.stops is not None and self.stops.at_layers:
            self.stops.layer_ran(layer, args, output, perf_counter_ns() - began)
        if self.collector is not None:
            return self.collector.see(layer, output)
        if self.loops is not None and self.loops.taping:
            self.loops.see(layer, output)
        return output

    @contextmanager
    def into(self, collector: Collector) -> Iterator[None]:
        before, self.collector = self.collector, collector
        try:
            yield
        finally:
            self.collector = before


@dataclass(frozen=True, slots=True)
class Seen:
    """One step from the inside. Gradients are None where the loss does not depend on a value."""

    loss: Any
    layers: list[Sight]
    layer_gradients: list[Any]
    gradients: list[Any]  # of the trainable variables, in their order


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, list | tuple | dict)


# -- TensorFlow --------------------------------------------------------------------------------------------------------


def rerun_tensorflow(model: Any, data: Any, calls: LayerCalls) -> Seen:
    import keras
    import tensorflow as tf

    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    collector = Collector()
    with _put_back(model, tf):
        with tf.GradientTape() as tape, calls.into(collector):
            outputs = model(x, training=True) if model._call_has_training_arg else model(x)
            loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight, training=True)
        wanted = [output for _, output in collector.seen]
        variables = [each.value for each in model.trainable_variables]
        found = tape.gradient(loss, [*wanted, *variables])
    cut = len(wanted)
    return Seen(loss, collector.seen, found[:cut], [dense(each) for each in found[cut:]])


@contextmanager
def _put_back(model: Any, tf: Any) -> Iterator[None]:
    """Moving averages, random states and metrics as they were."""
    variables = [*model.non_trainable_variables, *model.metrics_variables, *_global_seed()]
    kept = [(each, tf.identity(each.value)) for each in variables]
    random = tf.compat.v1.get_default_graph() and _eager_random()
    state = None if random is None else random.getstate()
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)
        if random is not None:
            random.setstate(state)


def _eager_random() -> Any:
    """What TensorFlow draws the seeds of its own random operations from, where the user has set one."""
    from tensorflow.python.eager import context

    return getattr(context.context(), "_rng", None)


def _global_seed() -> list[Any]:
    from keras.src.backend.common import global_state

    generator = global_state.get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state]


# -- JAX ---------------------------------------------------------------------------------------------------------------


class RerunJax:
    """Nothing is changed here: the model is called as a function of its state. Compiled once for each shape."""

    def __init__(self, model: Any, calls: LayerCalls) -> None:
        self._calls = calls
        self._layers: list[Any] = []
        self._compiled: dict[Any, tuple[Any, list[Any]]] = {}
        self._model = model

    def __call__(self, state: Any, data: Any, *, eagerly: bool = False) -> Seen:
        """`eagerly`: layer by layer, so that somebody can stop there."""
        import jax
        import keras

        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        batch = (x, y, weight)
        key = str(jax.tree_util.tree_map(lambda each: (each.shape, str(each.dtype)), batch))
        if key not in self._compiled:
            self._compiled[key] = self._compile(state, batch)
        function, zeros = self._compiled[key]
        if eagerly:
            function = jax.value_and_grad(self._run, argnums=(0, 1), has_aux=True)
        (loss, outputs), (gradients, by_layer) = function(state[0], zeros, state, batch)
        return Seen(loss, list(zip(self._layers, outputs, strict=True)), list(by_layer), list(gradients))

    def _compile(self, state: Any, batch: Any) -> tuple[Any, list[Any]]:
        import jax

        _, shapes = jax.eval_shape(lambda s, b: self._run(s[0], None, s, b), state, batch)
        zeros = [jax.numpy.zeros(each.shape, each.dtype) for each in shapes]
        return jax.jit(jax.value_and_grad(self._run, argnums=(0, 1), has_aux=True)), zeros

    def _run(self, trainable: Any, zeros: list[Any] | None, state: Any, batch: Any) -> tuple[Any, list[Any]]:
        collector = Collector(add=zeros)
        _, fixed, optimizer, metrics = state
        x, y, weight = batch
        with self._calls.into(collector):
            loss, _ = self._model.compute_loss_and_updates(
                trainable, fixed, metrics, x, y, weight, training=True, optimizer_variables=optimizer
            )
        self._layers = [layer for layer, _ in collector.seen]
        return loss, [output for _, output in collector.seen]
