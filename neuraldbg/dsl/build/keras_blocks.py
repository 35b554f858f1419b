"""Layers that Keras does not have ready. `neural compile` writes the ones it needs into the file it makes, so each
stands by itself: nothing but keras, layers and ops, and no other class of this file."""

from __future__ import annotations

import math

import keras
from keras import layers, ops


class TransformerEncoder(layers.Layer):
    """Attention and two dense layers, each with a way around it and a normalisation."""

    def __init__(
        self,
        width,
        heads,
        hidden,
        dropout=0.1,
        activation="relu",
        norm_first=False,
        causal=False,
        drops_weights=True,
        **options,
    ):
        super().__init__(**options)
        self.norm_first, self.causal = norm_first, causal
        of_weights = dropout if drops_weights else 0.0
        self.attention = layers.MultiHeadAttention(heads, width // heads, dropout=of_weights)
        self.widen = layers.Dense(hidden, activation=activation)
        self.narrow = layers.Dense(width)
        self.norms = [layers.LayerNormalization(epsilon=1e-5) for _ in range(2)]
        self.drop = layers.Dropout(dropout)

    def build(self, shape):
        self.attention.build(shape, shape)
        self.widen.build(shape)
        self.narrow.build((*shape[:-1], self.widen.units))
        for norm in self.norms:
            norm.build(shape)

    def call(self, x, training=None):
        first, second = self.norms
        if self.norm_first:
            x = x + self.attend(first(x), training)
            return x + self.forward(second(x), training)
        x = first(x + self.attend(x, training))
        return second(x + self.forward(x, training))

    def attend(self, x, training):
        return self.drop(self.attention(x, x, use_causal_mask=self.causal, training=training), training=training)

    def forward(self, x, training):
        return self.drop(self.narrow(self.drop(self.widen(x), training=training)), training=training)


class TransformerDecoder(layers.Layer):
    """As the encoder, with a look at what an encoder made between the two."""

    def __init__(
        self,
        width,
        heads,
        hidden,
        dropout=0.1,
        activation="relu",
        norm_first=False,
        causal=True,
        drops_weights=True,
        **options,
    ):
        super().__init__(**options)
        self.norm_first, self.causal = norm_first, causal
        of_weights = dropout if drops_weights else 0.0
        self.attention = layers.MultiHeadAttention(heads, width // heads, dropout=of_weights)
        self.cross = layers.MultiHeadAttention(heads, width // heads, dropout=of_weights)
        self.widen = layers.Dense(hidden, activation=activation)
        self.narrow = layers.Dense(width)
        self.norms = [layers.LayerNormalization(epsilon=1e-5) for _ in range(3)]
        self.drop = layers.Dropout(dropout)

    def build(self, x_shape, memory_shape):
        self.attention.build(x_shape, x_shape)
        self.cross.build(x_shape, memory_shape)
        self.widen.build(x_shape)
        self.narrow.build((*x_shape[:-1], self.widen.units))
        for norm in self.norms:
            norm.build(x_shape)

    def call(self, x, memory, training=None):
        first, second, third = self.norms
        if self.norm_first:
            x = x + self.attend(first(x), training)
            x = x + self.look(second(x), memory, training)
            return x + self.forward(third(x), training)
        x = first(x + self.attend(x, training))
        x = second(x + self.look(x, memory, training))
        return third(x + self.forward(x, training))

    def attend(self, x, training):
        return self.drop(self.attention(x, x, use_causal_mask=self.causal, training=training), training=training)

    def look(self, x, memory, training):
        return self.drop(self.cross(x, memory, training=training), training=training)

    def forward(self, x, training):
        return self.drop(self.narrow(self.drop(self.widen(x), training=training)), training=training)


class DotAttention(layers.Layer):
    """Every position of x looks at every position of memory, by the last `width` features of both."""

    def __init__(self, width, causal=False, **options):
        super().__init__(**options)
        self.width, self.causal = width, causal

    def call(self, x, memory):
        query, key = x[..., -self.width :], memory[..., -self.width :]
        scores = ops.matmul(query, ops.swapaxes(key, 1, 2)) / math.sqrt(self.width)
        if self.causal:
            later = ops.triu(ops.ones((x.shape[1], memory.shape[1])), 1)
            scores = scores - 1e9 * later
        return ops.matmul(ops.softmax(scores), memory)


class PositionalEncoding(layers.Layer):
    """Adds sines and cosines of the position."""

    def __init__(self, length, width, dropout=0.0, **options):
        super().__init__(**options)
        self.length, self.width = length, width
        self.drop = layers.Dropout(dropout)

    def build(self, shape):
        self.drop.build(shape)

    def call(self, x, training=None):
        position = ops.reshape(ops.arange(self.length, dtype="float32"), (-1, 1))
        even = ops.arange(0, self.width, 2, dtype="float32")
        angle = position * ops.exp(even * (-math.log(10000.0) / self.width))
        table = ops.reshape(ops.stack((ops.sin(angle), ops.cos(angle)), -1), (self.length, -1))
        return self.drop(x + table[:, : self.width], training=training)


class LearnedPositions(layers.Layer):
    """Adds a vector of its own to every position."""

    def __init__(self, length, width, **options):
        super().__init__(**options)
        start = keras.initializers.RandomNormal(stddev=0.02)
        self.table = self.add_weight(shape=(length, width), initializer=start, name="table")

    def call(self, x):
        return x + self.table


class SqueezeExcitation(layers.Layer):
    """Weighs channels by what the whole input holds of them."""

    def __init__(self, channels, hidden, **options):
        super().__init__(**options)
        self.squeeze = layers.Dense(hidden, activation="relu")
        self.excite = layers.Dense(channels, activation="sigmoid")

    def build(self, shape):
        self.squeeze.build((shape[0], shape[-1]))
        self.excite.build((shape[0], self.squeeze.units))

    def call(self, x):
        axes = tuple(range(1, len(x.shape) - 1))
        weight = self.excite(self.squeeze(ops.mean(x, axis=axes)))
        return x * ops.expand_dims(weight, axes)


class Inception(layers.Layer):
    """Windows of 1, 3 and 5 and a pool, side by side."""

    def __init__(self, filters, **options):
        super().__init__(**options)
        self.towers = [layers.Conv2D(filters, size, padding="same") for size in (1, 3, 5)]
        self.pooled = layers.Conv2D(filters, 1)
        self.pool = layers.MaxPooling2D(3, strides=1, padding="same")

    def build(self, shape):
        for tower in (*self.towers, self.pooled):
            tower.build(shape)

    def call(self, x):
        parts = [tower(x) for tower in self.towers]
        return ops.relu(ops.concatenate([*parts, self.pooled(self.pool(x))], -1))


class Capsules(layers.Layer):
    """Vectors whose lengths lie below 1."""

    def __init__(self, features, number, width, **options):
        super().__init__(**options)
        self.features, self.number, self.width = features, number, width
        self.project = layers.Dense(number * width)

    def build(self, shape):
        self.project.build((shape[0], self.features))

    def call(self, x):
        flat = ops.reshape(x, (-1, self.features))
        vectors = ops.reshape(self.project(flat), (-1, self.number, self.width))
        squared = ops.sum(ops.square(vectors), -1, keepdims=True)
        return vectors * squared / (1 + squared) / ops.sqrt(squared + 1e-8)


class GraphConv(layers.Layer):
    """Mixes nodes by weights of their own, then features."""

    def __init__(self, nodes, units, **options):
        super().__init__(**options)
        self.joined = self.add_weight(shape=(nodes, nodes), initializer="zeros", name="joined")
        self.project = layers.Dense(units)

    def build(self, shape):
        self.project.build(shape)

    def call(self, x):
        return ops.matmul(ops.softmax(self.joined), self.project(x))


class GraphAttention(layers.Layer):
    """Every node attends to all nodes."""

    def __init__(self, units, heads, **options):
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(heads, units, output_shape=units)

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x, training=None):
        return self.attention(x, x, training=training)


class ConvRecurrent(layers.Layer):
    """LSTM or GRU over images: (batch, time, height, width, channels), the state keeps the size of the image."""

    def __init__(self, kind, filters, kernel, sequences, **options):
        super().__init__(**options)
        self.kind, self.filters, self.sequences = kind, filters, sequences
        self.gates = layers.Conv2D((4 if kind == "LSTM" else 3) * filters, kernel, padding="same")

    def build(self, shape):
        self.gates.build((shape[0], *shape[2:-1], shape[-1] + self.filters))

    def call(self, x):
        state = memory = ops.zeros_like(ops.repeat(x[:, 0, :, :, :1], self.filters, -1))
        outputs = []
        for frame in ops.unstack(x, axis=1):
            made = self.gates(ops.concatenate((frame, state), -1))
            a, b, c, *d = ops.split(made, 4 if self.kind == "LSTM" else 3, -1)
            if self.kind == "LSTM":
                memory = ops.sigmoid(a) * memory + ops.sigmoid(b) * ops.tanh(c)
                state = ops.sigmoid(d[0]) * ops.tanh(memory)
            else:
                keep = ops.sigmoid(a)
                state = keep * state + (1 - keep) * ops.tanh(c * ops.sigmoid(b))
            outputs.append(state)
        return ops.stack(outputs, 1) if self.sequences else state


class WarmupCosine(keras.optimizers.schedules.LearningRateSchedule):
    """Rises for `warmup` updates, and falls along half a cosine."""

    def __init__(self, first, steps, warmup):
        self.first, self.steps, self.warmup = first, steps, warmup

    def __call__(self, step):
        step = ops.cast(step, "float32")
        cosine = (1 + ops.cos(math.pi * ops.minimum(step / self.steps, 1.0))) / 2
        return self.first * ops.minimum((step + 1) / self.warmup, 1.0) * cosine
