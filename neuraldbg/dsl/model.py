"""A network as it is meant: macros expanded, arguments named, values plain. Knows no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reference:
    """A bare name where a value stands and that is no parameter: an activation, another layer, or a mistake."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Called:
    """A call as a value: a schedule, a regularizer."""

    name: str
    positional: tuple[Any, ...]
    named: dict[str, Any]
    at: int

    def argument(self, position: int, *names: str, default: Any = None) -> Any:
        for name in names:
            if name in self.named:
                return self.named[name]
        return self.positional[position] if position < len(self.positional) else default


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. `name` is unique in its network: `Dense_1`, or what the file calls it."""

    type: str
    name: str
    params: dict[str, Any]
    line: int
    column: int
    written: str  # the type as it stands in the file
    inner: Layer | None = None  # of Bidirectional and TimeDistributed
    sublayers: tuple[Node, ...] = ()
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    name: str
    layers: tuple[Node, ...]
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Block:
    """One use of a macro: `Add()` inside it reaches back to where it begins."""

    macro: str
    layers: tuple[Node, ...]
    line: int
    column: int


Node = Layer | Branch | Block


@dataclass(frozen=True, slots=True)
class Input:
    name: str | None
    shape: tuple[int | None, ...]  # channels last, without the batch; None = any
    line: int
    column: int
    channels_first: bool = False
    open_first: bool = False  # written (None, ...): the batch, or the length of a sequence


@dataclass(frozen=True, slots=True)
class Choice:
    """A value the file leaves to a search, and what was taken."""

    path: str  # "Dense_1.units", "optimizer.learning_rate", "train.batch_size"
    kind: str  # categorical, range, log_range
    options: tuple[Any, ...]
    start: Any  # int or float, as written; a whole range is searched in whole numbers
    end: Any
    step: Any
    line: int
    column: int
    taken: Any = None

    def as_dict(self) -> dict[str, Any]:
        if self.kind == "categorical":
            return {"hpo": {"type": "categorical", "values": list(self.options)}}
        told: dict[str, Any] = {"type": self.kind, "start": self.start, "end": self.end}
        if self.kind == "range":
            told["step"] = self.step
        return {"hpo": told}

    @property
    def first(self) -> Any:
        return self.options[0] if self.kind == "categorical" else self.start


Chooser = Callable[[Choice], Any]  # decides a Choice


@dataclass(frozen=True, slots=True)
class Setting:
    """The loss, the optimizer or a schedule: what it is called and its arguments."""

    name: str
    params: dict[str, Any]
    line: int
    column: int
    positional: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    name: str
    inputs: tuple[Input, ...]
    layers: tuple[Node, ...]
    loss: Setting | None
    optimizer: Setting | None
    schedule: Setting | None
    metrics: tuple[str, ...]
    training: dict[str, Any]
    execution: dict[str, Any]
    choices: tuple[Choice, ...]
    line: int
    lines: dict[str, int] = field(default_factory=dict)  # section -> line; "train.epochs" -> line
    columns: dict[str, int] = field(default_factory=dict)

    def each_layer(self) -> Iterator[Layer]:
        yield from _walk(self.layers)

    @property
    def device(self) -> str | None:
        return self.execution.get("device") or self.training.get("device")


def _walk(nodes: tuple[Node, ...]) -> Iterator[Layer]:
    for node in nodes:
        if isinstance(node, Layer):
            yield node
            yield from _walk(node.sublayers)
        else:
            yield from _walk(node.layers)
