"""What a network is trained on: arrays, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraldbg.dsl.graph import Graph, written
from neuraldbg.dsl.losses import Loss
from neuraldbg.errors import ShapeMismatch, UsageError

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Samples:
    inputs: tuple[Array, ...]  # samples first, channels last
    targets: Array
    told: str  # where they come from, for the person who reads it
    synthetic: bool = False

    def __len__(self) -> int:
        return len(self.targets)


def fitted(raw: Samples, graph: Graph, loss: Loss) -> Samples:
    """Brought to the shapes of the network: channels added, pictures scaled to 0..1, classes numbered."""
    if len(raw.inputs) != len(graph.inputs):
        raise UsageError(f"{raw.told}: the data has {len(raw.inputs)} inputs, the network {len(graph.inputs)}")
    inputs = []
    for array, each in zip(raw.inputs, graph.inputs, strict=True):
        inputs.append(_input(array, each.shape, each.vocabulary, raw.told))
    return Samples(tuple(inputs), _targets(raw.targets, inputs, graph, loss, raw.told), raw.told, raw.synthetic)


def _input(array: Array, shape: tuple[int, ...], vocabulary: int | None, told: str) -> Array:
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise UsageError(f"{told}: the inputs are not numbers")
    have = array.shape[1:]
    if have != shape:
        if int(np.prod(have)) == int(np.prod(shape)) and (set(have) - {1} == set(shape) - {1} or len(shape) == 1):
            array = array.reshape(-1, *shape)
        else:
            raise ShapeMismatch(
                f"{told}: its samples are {written(have)} and the input of the network is {written(shape)}"
            )
    if vocabulary is not None:
        if array.size and (int(array.min()) < 0 or int(array.max()) >= vocabulary):
            raise ShapeMismatch(f"{told}: token ids reach {int(array.max())} and the vocabulary has {vocabulary}")
        return array.astype(np.int64)
    if array.dtype == np.uint8:
        return array.astype(np.float32) / 255
    return array.astype(np.float32)


def _targets(array: Array, inputs: list[Array], graph: Graph, loss: Loss, told: str) -> Array:
    if array.size == 0 and loss.kind != "classes":
        array = inputs[0]  # nothing to aim at but the input itself: an autoencoder
    if array.dtype.kind not in "biuf":
        _, array = np.unique(array, return_inverse=True)
    if loss.kind == "classes":
        return _classes(array, graph, told)
    shape = graph.shape
    if array.shape[1:] != shape:
        if int(np.prod(array.shape[1:])) != int(np.prod(shape)):
            have = written(array.shape[1:])
            raise ShapeMismatch(f"{told}: its targets are {have} and the network makes {written(shape)}")
        array = array.reshape(-1, *shape)
    return array.astype(np.float32)


def _classes(array: Array, graph: Graph, told: str) -> Array:
    positions = graph.shape[:-1]
    if array.shape[1:] == graph.shape and graph.shape[-1] > 1:
        array = array.argmax(-1)
    array = array.reshape(-1, *positions) if array.size else array
    numbers = array.astype(np.int64)
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= graph.shape[-1]):
        most = int(numbers.max())
        raise ShapeMismatch(f"{told}: classes reach {most} and the network tells {graph.shape[-1]} apart")
    return numbers
