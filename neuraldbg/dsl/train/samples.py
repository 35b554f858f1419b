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
    names: tuple[str, ...] = ()  # of the inputs, where the data has some

    def __len__(self) -> int:
        return len(self.targets)


def fitted(raw: Samples, graph: Graph, loss: Loss) -> Samples:
    """Brought to the shapes of the network: channels added, pictures scaled to 0..1, classes numbered."""
    if len(raw.inputs) != len(graph.inputs):
        raise UsageError(f"{raw.told}: the data has {len(raw.inputs)} inputs, the network {len(graph.inputs)}")
    if any(array.ndim == 0 for array in (*raw.inputs, raw.targets)):
        raise UsageError(f"{raw.told}: one number is no array of samples")
    by_name = dict(zip(raw.names, raw.inputs, strict=False))
    named = all(each.name in by_name for each in graph.inputs)
    given = [by_name[str(each.name)] for each in graph.inputs] if named else raw.inputs
    inputs = []
    for array, each in zip(given, graph.inputs, strict=True):
        inputs.append(_input(array, each.shape, each.vocabulary, raw.told))
    targets = _targets(raw.targets, inputs, graph, loss, raw.told)
    counts = [len(array) for array in (*inputs, targets)]
    if len(set(counts)) > 1 or not counts[-1]:
        told = ", ".join(map(str, counts[:-1]))
        raise UsageError(f"{raw.told}: {told} inputs and {counts[-1]} targets do not make samples")
    return Samples(tuple(inputs), targets, raw.told, raw.synthetic)


def _input(array: Array, shape: tuple[int, ...], vocabulary: int | None, told: str) -> Array:
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise UsageError(f"{told}: the inputs are not numbers")
    array = _shaped(array, shape, told)
    if vocabulary is not None:
        _need_whole(array, told, "token ids")
        if array.size and (int(array.min()) < 0 or int(array.max()) >= vocabulary):
            raise ShapeMismatch(f"{told}: token ids reach {int(array.max())} and the vocabulary has {vocabulary}")
        return array.astype(np.int64)
    if array.dtype == np.uint8:
        return array.astype(np.float32) / 255
    return array.astype(np.float32)


def _shaped(array: Array, shape: tuple[int, ...], told: str) -> Array:
    """Samples in the shape of an input: sizes of 1 come and go, a flat row becomes an image, channels go last."""
    have = array.shape[1:]
    if have == shape:
        return array
    if len(shape) == 3 and have == (shape[-1], *shape[:-1]):
        return np.moveaxis(array, 1, -1)
    alike = [size for size in have if size != 1] == [size for size in shape if size != 1]
    if int(np.prod(have)) == int(np.prod(shape)) and (alike or len(have) == 1 or len(shape) == 1):
        return array.reshape(-1, *shape)
    raise ShapeMismatch(f"{told}: its samples are {written(have)} and the input of the network is {written(shape)}")


def _need_whole(array: Array, told: str, what: str) -> None:
    if array.dtype.kind == "f" and not bool(np.all(array == np.floor(array))):  # NaN is none either
        raise UsageError(f"{told}: {what} are whole numbers, and these are not")


def _targets(array: Array, inputs: list[Array], graph: Graph, loss: Loss, told: str) -> Array:
    if array.size == 0 and loss.kind != "classes":
        array = inputs[0]  # nothing to aim at but the input itself: an autoencoder
    if array.size == 0:
        raise UsageError(f"{told}: there are no targets (y beside x), and this loss needs classes")
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
    if loss.kind == "binary" and (float(array.min()) < 0 or float(array.max()) > 1):
        raise ShapeMismatch(f"{told}: targets of a binary loss lie between 0 and 1, these reach {float(array.max()):g}")
    return array.astype(np.float32)


def _classes(array: Array, graph: Graph, told: str) -> Array:
    positions = graph.shape[:-1]
    if array.shape[1:] == graph.shape and graph.shape[-1] > 1:
        array = array.argmax(-1)
    if array.size % (int(np.prod(positions)) or 1):
        have = written(array.shape[1:])
        raise ShapeMismatch(f"{told}: its targets are {have} and the network makes {written(graph.shape)}")
    array = array.reshape(-1, *positions)
    _need_whole(array, told, "classes")
    numbers = array.astype(np.int64)
    if int(numbers.min()) < 0 or int(numbers.max()) >= graph.shape[-1]:
        reach = f"classes reach {int(numbers.max())}" if int(numbers.min()) >= 0 else "classes lie below 0"
        raise ShapeMismatch(f"{told}: {reach} and the network tells {graph.shape[-1]} apart, counted from 0")
    return numbers
