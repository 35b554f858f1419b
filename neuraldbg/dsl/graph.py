"""A network as computation: values with shapes, and the steps between them. What every builder reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from neuraldbg.dsl.model import Layer, Network
from neuraldbg.dsl.problems import Problem

Shape = tuple[int, ...]  # channels last, without the batch


def size(shape: Shape) -> int:
    return math.prod(shape)


def written(shape: Shape) -> str:
    """`28x28x1`, as a person says it."""
    return "x".join(map(str, shape)) if shape else "scalar"


@dataclass(frozen=True, slots=True)
class Value:
    """What a step makes, or an input."""

    id: int
    shape: Shape
    tokens: bool = False  # whole numbers that an Embedding looks up
    maker: str = ""  # the layer, or the input
    input: str | None = None  # name of the input it is
    folded: bool = False  # inside TimeDistributed: time is part of the batch
    grid: Shape | None = None  # height and width of the image whose positions it lists, where it is one


@dataclass(frozen=True, slots=True)
class Step:
    """One operation. `name` is what a builder calls it; `op` what it is."""

    name: str
    op: str
    options: dict[str, Any]
    inputs: tuple[int, ...]
    output: int
    shapes_in: tuple[Shape, ...]
    shape: Shape
    parameters: int
    flops: int
    layer: Layer
    activation: str | None = None
    implied: bool = False  # not in the file: put in by one of the language's meanings

    @property
    def line(self) -> int:
        return self.layer.line


@dataclass(frozen=True, slots=True)
class InputValue:
    value: int
    name: str | None
    shape: Shape
    vocabulary: int | None  # token ids below this, where an Embedding reads them


@dataclass(frozen=True)
class Graph:
    """A checked network. `problems` holds its notes and warnings."""

    network: Network
    inputs: tuple[InputValue, ...]
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    output: int
    problems: tuple[Problem, ...]
    dropped_softmax: Layer | None = None  # taken out before a cross-entropy
    fused_sigmoid: Layer | None = None  # computed inside the loss
    penalties: tuple[tuple[str, float, float], ...] = ()  # step name, l1, l2
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        return sum(step.parameters for step in self.steps)

    @property
    def flops(self) -> int:
        """Of one forward pass over one sample; a multiplication and an addition are two."""
        return sum(step.flops for step in self.steps)

    @property
    def shape(self) -> Shape:
        return self.values[self.output].shape
