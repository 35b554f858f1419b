"""Made-up data a healthy network can learn: every class has a pattern, every target follows from its input."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.dsl.graph import Graph, InputValue, Step, size
from neuraldbg.dsl.losses import Loss
from neuraldbg.dsl.train.samples import Samples

MOST_SAMPLES, FEWEST_SAMPLES = 2048, 8
MOST_NUMBERS = 20_000_000  # in all arrays together
WORDS = 64  # of a vocabulary that are used
HIDDEN = 8
KINDS = 4  # of texts, where a number follows from one

Floats = NDArray[np.float32]
Random = np.random.Generator


def synthesize(graph: Graph, loss: Loss, *, count: int | None = None, seed: int = 0) -> Samples:
    """As many samples as fit, of the right shapes and vocabulary."""
    random = np.random.default_rng(seed)
    aim = graph.shape[:-1] if loss.kind == "classes" else graph.shape
    per_sample = sum(size(each.shape) for each in graph.inputs) + size(aim)
    number = count or int(np.clip(MOST_NUMBERS // per_sample, FEWEST_SAMPLES, MOST_SAMPLES))
    inputs, targets = _Maker(graph, loss, random, number).make()
    told = f"synthetic data: {number:,} made-up samples, learnable; a real dataset is given with --dataset PATH"
    return Samples(tuple(inputs), targets, told, synthetic=True)


def reads_ahead(graph: Graph) -> bool:
    """Whether what the network puts out at a position may depend on later ones."""
    return any(_looks_ahead(step) for step in graph.steps)


def _looks_ahead(step: Step) -> bool:
    options = step.options
    if step.op in ("encoder", "attention", "dot_attention"):
        return not options["causal"]
    if step.op == "rnn":
        return bool(options["both"] or not options["sequences"])
    if step.op in ("conv", "pool"):
        return any(after for _, after in options["pads"])
    return step.op in ("transformer", "decoder", "flatten", "global_pool", "graph_conv", "graph_attention")


class _Maker:
    def __init__(self, graph: Graph, loss: Loss, random: Random, count: int) -> None:
        self.graph, self.loss, self.random, self.count = graph, loss, random, count
        self.last = graph.steps[-1].activation if graph.steps else None
        if graph.fused_sigmoid is not None:
            self.last = "sigmoid"

    def make(self) -> tuple[list[Any], Any]:
        shape = self.graph.shape
        if self.loss.kind == "classes" and len(shape) == 1:
            return self._by_class(shape[0])
        if self.loss.kind == "classes":
            return self._by_position()
        if self.loss.kind == "binary" and size(shape) == 1:
            inputs, classes = self._by_class(2)
            return inputs, classes.reshape(-1, *shape).astype(np.float32)
        first = self.graph.inputs[0]
        if first.vocabulary is None and first.shape == shape:
            return self._itself()
        return self._by_function()

    # -- one class a sample ----------------------------------------------------------------------------------------

    def _by_class(self, classes: int) -> tuple[list[Any], Any]:
        labels = self.random.integers(classes, size=self.count)
        inputs = [self._class_input(each, labels, classes) for each in self.graph.inputs]
        return inputs, labels

    def _class_input(self, each: InputValue, labels: Any, classes: int) -> Any:
        if each.vocabulary is not None:
            return self._class_words(each, labels, classes)
        used = min(classes, self.count)
        patterns = self._patterns(used, each.shape)
        noise = self.random.standard_normal((self.count, *each.shape), dtype=np.float32)
        likeness = self._patterns(self.count, each.shape)  # noise as coarse as the patterns: else size makes it easy
        return (0.8 * (patterns[labels % used] + likeness) + 0.3 * noise).astype(np.float32)

    def _patterns(self, count: int, shape: tuple[int, ...]) -> Floats:
        """Smooth, so that windows and pools can see them."""
        coarse = [max(1, min(4, length)) for length in shape[:-1]]
        small = self.random.standard_normal((count, *coarse, shape[-1]), dtype=np.float32)
        for axis, length in enumerate(shape[:-1]):
            small = np.repeat(small, -(-length // coarse[axis]), axis=axis + 1)
        return small[(slice(None), *(slice(length) for length in shape))]

    def _class_words(self, each: InputValue, labels: Any, classes: int) -> Any:
        """Half of the words of a sample are those of its class."""
        vocabulary = int(each.vocabulary or 1)
        own = max(1, min(4, vocabulary // max(classes, 1)))
        words = (labels[:, None] * own + self.random.integers(own, size=(self.count, size(each.shape)))) % vocabulary
        others = self.random.integers(min(vocabulary, max(WORDS, classes * own)), size=words.shape)
        chosen = np.where(self.random.random(words.shape) < 0.5, words, others)
        return chosen.reshape(self.count, *each.shape)

    # -- one class a position --------------------------------------------------------------------------------------

    def _by_position(self) -> tuple[list[Any], Any]:
        positions, classes = self.graph.shape[:-1], self.graph.shape[-1]
        inputs = [self._free_input(each) for each in self.graph.inputs]
        first = self.graph.inputs[0]
        if first.vocabulary is not None and reads_ahead(self.graph):
            return self._by_template(positions, classes)
        if first.vocabulary is not None and size(first.shape) == size(positions):
            inputs[0], following = self._text(min(first.vocabulary, classes, WORDS), first.shape)
            return inputs, following.reshape(self.count, *positions)
        if first.vocabulary is None and size(first.shape[:-1]) == size(positions):
            weights = self.random.standard_normal(
                (first.shape[-1], min(classes, 4 * first.shape[-1])), dtype=np.float32
            )
            return inputs, (inputs[0] @ weights).argmax(-1).reshape(self.count, *positions)
        labels = self.random.integers(classes, size=self.count)
        inputs = [self._class_input(each, labels, classes) for each in self.graph.inputs]
        return inputs, np.broadcast_to(labels.reshape(-1, *(1,) * len(positions)), (self.count, *positions)).copy()

    def _by_template(self, positions: tuple[int, ...], classes: int) -> tuple[list[Any], Any]:
        """Every kind of text has its own answer: a network that reads all of its input may know the next word."""
        kinds = self.random.integers(KINDS, size=self.count)
        answers = self.random.integers(min(classes, WORDS), size=(KINDS, *positions))
        return [self._class_input(each, kinds, KINDS) for each in self.graph.inputs], answers[kinds]

    def _text(self, used: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """Every word has one that mostly follows it; the target is what did follow."""
        follows = self.random.permutation(used)
        words = [self.random.integers(used, size=self.count)]
        for _ in range(size(shape)):
            other = self.random.integers(used, size=self.count)
            words.append(np.where(self.random.random(self.count) < 0.1, other, follows[words[-1]]))
        text = np.stack(words, 1)
        return text[:, :-1].reshape(self.count, *shape), text[:, 1:]

    # -- numbers ---------------------------------------------------------------------------------------------------

    def _free_input(self, each: InputValue) -> Any:
        if each.vocabulary is not None:
            return self.random.integers(min(each.vocabulary, WORDS), size=(self.count, *each.shape))
        return self.random.standard_normal((self.count, *each.shape), dtype=np.float32)

    def _itself(self) -> tuple[list[Any], Any]:
        """An autoencoder: a few hidden causes make the input, and the input is the target."""
        causes = self.random.standard_normal((self.count, HIDDEN), dtype=np.float32)
        inputs = [self._free_input(each) for each in self.graph.inputs]
        inputs[0] = self._ranged(self._shown(causes, self.graph.shape))
        return inputs, inputs[0]

    def _shown(self, causes: Any, shape: tuple[int, ...]) -> Any:
        """An input in which the causes can be seen."""
        patterns = self._patterns(HIDDEN, shape).reshape(HIDDEN, -1)
        return (causes @ patterns / np.sqrt(HIDDEN)).reshape(self.count, *shape)

    def _by_function(self) -> tuple[list[Any], Any]:
        """Hidden causes make both the inputs and, by another way, the target."""
        kinds = self.random.integers(KINDS, size=self.count)
        causes = self.random.standard_normal((self.count, HIDDEN), dtype=np.float32)
        if any(each.vocabulary is not None for each in self.graph.inputs):
            causes = self.random.standard_normal((KINDS, HIDDEN), dtype=np.float32)[kinds]
        inputs = []
        for each in self.graph.inputs:
            if each.vocabulary is not None:
                inputs.append(self._class_words(each, kinds, KINDS))
            else:
                noise = self.random.standard_normal((self.count, *each.shape), dtype=np.float32)
                inputs.append((self._shown(causes, each.shape) + 0.2 * noise).astype(np.float32))
        weights = self.random.standard_normal((HIDDEN, size(self.graph.shape)), dtype=np.float32)
        values = (np.tanh(causes) @ weights / np.sqrt(HIDDEN)).reshape(self.count, *self.graph.shape)
        if self.loss.kind == "binary" and self.last != "softmax":
            return inputs, (values > 0).astype(np.float32)
        return inputs, self._ranged(values)

    def _ranged(self, values: Any) -> Any:
        """Within what the last activation can make."""
        if self.last == "sigmoid" or (self.loss.kind == "binary" and self.last != "softmax"):
            values = 1 / (1 + np.exp(-2 * values))
        elif self.last == "tanh":
            values = np.tanh(values)
        elif self.last in ("relu", "softplus", "relu6", "exponential"):
            values = np.abs(values)
        elif self.last == "softmax" or self.loss.name == "kl_divergence":
            values = np.exp(values) / np.exp(values).sum(-1, keepdims=True)
        return values.astype(np.float32)
