"""One use of a layer: its arguments, checked and plain, and the shapes it gets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from neuraldbg.dsl.graph import Shape
from neuraldbg.dsl.model import Called, Layer, Reference
from neuraldbg.dsl.values import shown
from neuraldbg.errors import nearest

LARGEST_SIZE: Final = 10**9
ACTIVATIONS: Final = frozenset(
    "relu sigmoid tanh softmax log_softmax gelu elu selu leaky_relu prelu swish softplus softsign hard_sigmoid "
    "exponential mish relu6 hard_swish".split()
)
_SAME: Final = {
    "silu": "swish",
    "leakyrelu": "leaky_relu",
    "lrelu": "leaky_relu",
    "logsoftmax": "log_softmax",
    "hardsigmoid": "hard_sigmoid",
    "hardswish": "hard_swish",
    "gelu_new": "gelu",
    "exp": "exponential",
}


class WrongArgument(Exception):
    """An argument that no shape could make right."""


class DoesNotFit(Exception):
    """Right in itself, and not for this shape."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a rule answers: one operation, its shape and its cost."""

    op: str
    shape: Shape
    options: dict[str, Any] = field(default_factory=dict)
    parameters: int = 0
    flops: int = 0
    activation: str | None = None


Rule = Callable[["Use"], Made]
RULES: dict[str, Rule] = {}


def rule(*layers: str) -> Callable[[Rule], Rule]:
    def keep(function: Rule) -> Rule:
        for layer in layers:
            if layer in RULES:
                raise ValueError(f"two rules for {layer}")
            RULES[layer] = function
        return function

    return keep


class Use:
    """Arguments of one layer, read by the rules. `notes` are warnings on the way."""

    def __init__(self, layer: Layer, shapes: tuple[Shape, ...]) -> None:
        self.layer, self.shapes = layer, shapes
        self.params = layer.params
        self.notes: list[str] = []

    @property
    def shape(self) -> Shape:
        return self.shapes[0]

    def warn(self, message: str) -> None:
        self.notes.append(message)

    def _find(self, names: tuple[str, ...]) -> Any:
        for name in names:
            if self.params.get(name) is not None:
                return self.params[name]
        return None

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`; the first of `names` that is given."""
        return self._integer(self._find(names), names[0], default, least)

    def _integer(self, value: Any, name: str, default: int | None, least: int) -> int:
        if value is None:
            if default is None:
                raise WrongArgument(f"{self.layer.type} needs {name}")
            return default
        if isinstance(value, Reference):
            raise WrongArgument(f"{value.text!r} is not defined: {name} of {self.layer.type} must be a number")
        if isinstance(value, float) and math.isfinite(value):
            if value != int(value):
                raise WrongArgument(f"{name} must be a whole number, not {value}")
            self.warn(f"{name}={value} is taken as {int(value)}")
            value = int(value)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongArgument(f"{name} must be a whole number, not {shown(value)}")
        if value < least:
            raise WrongArgument(f"{name} must be {'above 0' if least == 1 else f'{least} or more'}, not {value}")
        if value > LARGEST_SIZE:
            raise WrongArgument(f"{name}={value} is larger than {LARGEST_SIZE:,}")
        return value

    def number(self, *names: str, default: float) -> float:
        value = self._find(names)
        if value is None:
            return default
        if isinstance(value, Reference):
            raise WrongArgument(f"{value.text!r} is not defined: {names[0]} of {self.layer.type} must be a number")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WrongArgument(f"{names[0]} must be a number, not {shown(value)}")
        return float(value)

    def rate(self, *names: str, default: float | None = None) -> float:
        if default is None and self._find(names) is None:
            raise WrongArgument(f"{self.layer.type} needs {names[0]}")
        value = self.number(*names, default=default or 0.0)
        if not 0 <= value <= 1:
            raise WrongArgument(f"{names[0]} must lie between 0 and 1, not {value:g}")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        value = self._find(names)
        if isinstance(value, str | Reference):
            return str(value).lower() in ("true", "yes", "on")
        return default if value is None else bool(value)

    def word(self, *names: str, default: str = "") -> str:
        value = self._find(names)
        if value is None:
            return default
        if isinstance(value, Called):
            return value.name.lower()
        if not isinstance(value, str | Reference):
            raise WrongArgument(f"{names[0]} must be a name, not {shown(value)}")
        return str(value).lower()

    def sizes(self, count: int, *names: str, default: int | tuple[int, ...] | None = None, least: int = 1) -> Shape:
        """One number for every dimension, or one each."""
        value = self._find(names)
        if value is None and isinstance(default, tuple):
            return default
        if isinstance(value, list | tuple):
            items = [self._integer(each, names[0], default=None, least=least) for each in value]
            if len(items) == 1:
                items *= count
            if len(items) != count:
                raise WrongArgument(f"{names[0]} of {self.layer.type} needs {count} numbers, not {len(items)}")
            return tuple(items)
        return (self._integer(value, names[0], default if isinstance(default, int) else None, least),) * count

    def activation(self, name: str = "activation") -> str | None:
        """None for a linear one."""
        given = self.word(name)
        found = _SAME.get(given, given)
        if found in ("", "linear", "none", "identity"):
            return None
        if found not in ACTIVATIONS:
            near = nearest(found, ACTIVATIONS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(sorted(ACTIVATIONS))}"
            raise WrongArgument(f"there is no activation {given!r}; {hint}")
        return found

    def one_of(self, name: str, known: tuple[str, ...], default: str) -> str:
        value = self.word(name, default=default)
        if value not in known:
            near = nearest(value, known, 1)
            raise WrongArgument(f"{name} is {' or '.join(known)}, not {value!r}" + (f" ({near[0]}?)" if near else ""))
        return value
