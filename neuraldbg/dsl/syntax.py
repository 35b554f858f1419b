"""The tree of a `.neural` file as it is written: nothing resolved, every node with its offset."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Literal:
    value: int | float | str | bool | None
    at: int


@dataclass(slots=True)
class Word:
    """A bare name as a value: `relu`, a macro's parameter, a loss."""

    text: str
    at: int


@dataclass(slots=True)
class Variable:
    name: str  # without $
    at: int


@dataclass(slots=True)
class Sequence:
    items: list[Value]
    brackets: str  # "()", "[]", or "" for one value in parentheses
    at: int


@dataclass(slots=True)
class Mapping:
    items: list[Argument]  # all with a name
    at: int


@dataclass(slots=True)
class Call:
    """HPO(...), a schedule, a wrapped layer, a loss with arguments."""

    name: str
    arguments: list[Argument]
    at: int


@dataclass(slots=True)
class Binary:
    operator: str
    left: Value
    right: Value
    at: int


@dataclass(slots=True)
class Negative:
    operand: Value
    at: int


Value = Literal | Word | Variable | Sequence | Mapping | Call | Binary | Negative


@dataclass(slots=True)
class Argument:
    name: str | None
    value: Value
    at: int


@dataclass(slots=True)
class LayerNode:
    type: str
    arguments: list[Argument]
    at: int
    device: str | None = None
    block: list[Item] | None = None
    repeat: Value | None = None
    end: int = 0  # offset of its last token
    parentheses: bool = True


@dataclass(slots=True)
class BranchNode:
    name: str
    block: list[Item]
    at: int
    end: int = 0


Item = LayerNode | BranchNode


@dataclass(slots=True)
class Macro:
    name: str
    parameters: list[Argument]  # name, and a default in `value` (a Literal None without one)
    defaults: set[str]
    body: list[Item]
    at: int
    end: int = 0


@dataclass(slots=True)
class Section:
    key: str
    at: int
    values: list[Value] = field(default_factory=list)  # of input, loss, optimizer, metrics, lr_schedule
    entries: list[Argument] = field(default_factory=list)  # of train, execute, hpo, optimizer_param
    layers: list[Item] = field(default_factory=list)
    device: str | None = None  # train { ... @ "cuda:0" }
    end: int = 0


@dataclass(slots=True)
class NetworkNode:
    name: str
    sections: list[Section]
    at: int
    end: int = 0


@dataclass(slots=True)
class Research:
    name: str | None
    metrics: list[Argument]
    references: list[Argument]
    at: int
    end: int = 0
    references_at: int = 0


@dataclass(slots=True)
class File:
    items: list[Macro | NetworkNode | Research]
