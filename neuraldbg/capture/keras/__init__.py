"""Watching Keras 3 on TensorFlow and JAX: what `Model.fit` trains."""
