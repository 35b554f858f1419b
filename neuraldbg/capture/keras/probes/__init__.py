"""Experiments after a training with Keras that did not learn: on copies of its weights, with batches it was shown."""
