"""Arrays of TensorFlow and JAX, as they are, in the tensor inspector."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from neuraldbg.debug import compare, describe

KERAS = os.environ.get("KERAS_BACKEND", "tensorflow")
VALUES = [[1.0, -2.0, 0.0], [4.0, 0.5, float("nan")]]


def arrays() -> dict[str, Any]:
    if KERAS == "jax":
        import jax.numpy as jnp

        return {name: jnp.asarray(VALUES, getattr(jnp, name)) for name in ("float32", "float16", "bfloat16")}
    import tensorflow as tf

    return {name: tf.constant(VALUES, getattr(tf, name)) for name in ("float32", "float16", "bfloat16")}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_arrays_of_the_backend_are_read(dtype: str) -> None:
    array = arrays()[dtype]
    stats, distribution = describe(array)
    assert (stats.shape, stats.dtype, stats.nan_count, stats.zero_count) == ((2, 3), dtype, 1, 1)
    assert (stats.mean, stats.max, stats.min) == (pytest.approx(0.7), 4.0, -2.0)
    assert distribution.percentiles["p50"] == 0.5
    assert compare(array, np.array(VALUES)).mse == 0.0


def test_a_keras_model_tells_its_architecture() -> None:
    import keras

    from neuraldbg.debug.architecture import architecture_of

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
    found = architecture_of(model)
    assert (found.total_parameters, found.trainable_parameters) == (58, 58)
    assert (found.layer_count, found.layer_types, found.width) == (2, {"Dense": 2}, 8)
    assert found.activation_functions == {"relu": 1}


@pytest.mark.skipif(KERAS != "tensorflow", reason="of TensorFlow")
def test_the_gradient_of_an_embedding_is_read_without_its_zeros() -> None:
    import tensorflow as tf

    table = tf.Variable(tf.ones((1000, 4)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [3, 3, 8]))
    stats, _ = describe(tape.gradient(loss, table))
    assert (stats.shape, stats.max, stats.l1_norm) == ((1000, 4), 2.0, 12.0)
    assert stats.zero_count == 1000 * 4 - 8
