"""Arrays of JAX and TensorFlow are drawn as NumPy's are, also in types that NumPy has not."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from neuraldbg.debug import TerminalVisualizer

VALUES = np.linspace(-1, 1, 65, dtype=np.float32)


def test_jax_and_tensorflow_arrays_are_drawn_as_numpys() -> None:
    terminal = TerminalVisualizer(60, 12, ascii_only=True)
    expected = terminal.histogram(VALUES)
    assert terminal.histogram(jnp.asarray(VALUES)) == expected
    assert terminal.histogram(tf.constant(VALUES)) == expected
    halves = [jnp.asarray(VALUES).astype(jnp.bfloat16), tf.cast(tf.constant(VALUES), tf.bfloat16)]
    assert {terminal.histogram(each) for each in halves} == {terminal.histogram(np.asarray(halves[0], np.float32))}
