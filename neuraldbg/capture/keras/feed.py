"""A batch that was looked at, handed on to TensorFlow the way it would have come.

Keras traces its step for an iterator whose batches may have any length. Called with the batch itself it would trace
another one, for that very length, and round otherwise.
"""

from __future__ import annotations

from types import GeneratorType
from typing import Any


def can_feed(iterator: Any) -> bool:
    """Whether a batch of this iterator can be taken out and handed on: plain tensors, of which only the length of the
    batch may be open."""
    import tensorflow as tf

    if isinstance(iterator, GeneratorType):  # train_on_batch
        return True
    if not isinstance(iterator, tf.data.Iterator):
        return False
    parts = tf.nest.flatten(iterator.element_spec)
    return all(isinstance(part, tf.TensorSpec) and part.shape.rank for part in parts) and (
        _all_known(parts) or _only_length_open(parts)
    )


def feed(batch: Any, like: Any) -> Any:
    """An iterator of this one batch, of the same type as `like`."""
    import tensorflow as tf

    if isinstance(like, GeneratorType):
        return (each for each in (batch,))
    if _all_known(tf.nest.flatten(like.element_spec)):
        return iter(tf.data.Dataset.from_tensors(batch))
    length = tf.nest.flatten(batch)[0].shape[0]
    return iter(tf.data.Dataset.from_tensor_slices(batch).batch(length))


def _all_known(parts: list[Any]) -> bool:
    return all(part.shape.is_fully_defined() for part in parts)


def _only_length_open(parts: list[Any]) -> bool:
    return all(part.shape[0] is None and part.shape[1:].is_fully_defined() for part in parts)
