"""From the tree to layers: macros opened, repeats unrolled, arguments named, every layer with its own name."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from neuraldbg.dsl import catalogue, syntax
from neuraldbg.dsl.model import Block, Branch, Called, Choice, Layer, Node, Reference
from neuraldbg.dsl.problems import Problem, Severity, Source
from neuraldbg.dsl.values import BadValue, Evaluator
from neuraldbg.errors import nearest

MOST_LAYERS = 20_000  # that macros and repeats may unfold to
DEEPEST_MACRO = 40
TAKEN = frozenset(  # names that a torch module needs for itself
    "forward train eval training parameters modules children buffers apply to cpu cuda type float double half "
    "bfloat16 compile state_dict load_state_dict zero_grad extra_repr share_memory penalty call_super_init "
    "dump_patches T_destination add_module register_module self x torch nn named_parameters named_modules".split()
)


class TooLarge(Exception):
    """Macros and repeats that unfold beyond reason."""

    def __init__(self, at: int, message: str) -> None:
        self.at = at
        super().__init__(message)


class Expander:
    """Unfolds the layers of one network."""

    def __init__(self, source: Source, macros: Mapping[str, syntax.Macro], evaluator: Evaluator) -> None:
        self.source, self.macros, self.evaluator = source, macros, evaluator
        self.problems: list[Problem] = []
        self._said: set[Problem] = set()
        self.made = 0
        self._count: Counter[str] = Counter()
        self._names: set[str] = set()
        self._next: dict[str, int] = {}  # the number a name that occurs again goes on with
        self._open: list[str] = []
        self._by_lower = {name.lower(): name for name in macros}

    def nodes(self, items: Sequence[syntax.Item], scope: Mapping[str, Any]) -> tuple[Node, ...]:
        found: list[Node] = []
        for item in items:
            try:
                found += self._item(item, scope)
            except BadValue as error:
                self.say(Severity.ERROR, error.at, error.message)
        return tuple(found)

    def say(self, severity: Severity, at: int, message: str) -> None:
        problem = self.source.problem(severity, at, message, kind="value")
        if problem not in self._said:  # a repeat meets the same mistake again
            self._said.add(problem)
            self.problems.append(problem)

    def _item(self, item: syntax.Item, scope: Mapping[str, Any]) -> list[Node]:
        if isinstance(item, syntax.BranchNode):
            self._grow(item.at)
            line, column = self.source.position(item.at)
            return [Branch(item.name, self.nodes(item.block, scope), line, column)]
        found: list[Node] = []
        for _ in range(self._times(item, scope)):
            self._grow(item.at)
            found += self._once(item, scope)
        return found

    def _grow(self, at: int) -> None:
        self.made += 1
        if self.made > MOST_LAYERS:
            raise TooLarge(at, f"macros and repeats unfold to more than {MOST_LAYERS:,} layers; this is refused")

    def _times(self, item: syntax.LayerNode, scope: Mapping[str, Any]) -> int:
        if item.repeat is None:
            return 1
        times = self.evaluator.value(item.repeat, scope, f"{item.type}.repeat")
        if isinstance(times, bool) or not isinstance(times, int) or times < 0:
            raise BadValue(item.repeat.at, f"a layer can be repeated a whole number of times, not {times!r}")
        if times > MOST_LAYERS:
            raise TooLarge(item.repeat.at, f"{times:,} repeats are refused; {MOST_LAYERS:,} is the most")
        return times

    def _once(self, item: syntax.LayerNode, scope: Mapping[str, Any]) -> list[Node]:
        if item.type.lower() == "hpo":
            return self._chosen(item, scope)
        macro = self.macros.get(item.type) or self.macros.get(self._by_lower.get(item.type.lower(), ""))
        if macro is not None and (macro.name == item.type or catalogue.canonical(item.type) is None):
            return self._macro(macro, item, scope)
        return [self._layer(item, scope)]

    def _chosen(self, item: syntax.LayerNode, scope: Mapping[str, Any]) -> list[Node]:
        """`HPO(choice(Dense(64), Dense(128)))` in the place of a layer."""
        inner = item.arguments[0].value if len(item.arguments) == 1 else None
        calls = [a.value for a in inner.arguments] if isinstance(inner, syntax.Call) else []
        named = [_as_layer(value) for value in calls]
        if not named or None in named:
            raise BadValue(item.at, "in the place of a layer, HPO takes choice(Layer(...), Layer(...))")
        labels = tuple(Reference(f"{layer.type}#{n}") for n, layer in enumerate(named) if layer is not None)
        line, column = self.source.position(item.at)
        choice = Choice(f"layer at line {line}", "categorical", labels, None, None, None, line, column)
        taken = self.evaluator.decide(choice)
        index = labels.index(taken) if taken in labels else 0
        chosen = named[index]
        assert chosen is not None
        return self._once(chosen, scope)

    # -- macros ----------------------------------------------------------------------------------------------------

    def _macro(self, macro: syntax.Macro, item: syntax.LayerNode, scope: Mapping[str, Any]) -> list[Node]:
        if macro.name in self._open:
            raise BadValue(item.at, f"macro {macro.name} uses itself: {' -> '.join([*self._open, macro.name])}")
        if len(self._open) >= DEEPEST_MACRO:
            raise TooLarge(item.at, f"macros are nested more than {DEEPEST_MACRO} deep; this is refused")
        inner = self._bind(macro, item, scope)
        self._open.append(macro.name)
        layers = self.nodes(macro.body, inner)
        self._open.pop()
        line, column = self.source.position(item.at)
        block: list[Node] = [Block(macro.name, layers, line, column)]
        return block + list(self.nodes(item.block, scope)) if item.block else block

    def _bind(self, macro: syntax.Macro, item: syntax.LayerNode, scope: Mapping[str, Any]) -> dict[str, Any]:
        names = [str(parameter.name) for parameter in macro.parameters]
        bound: dict[str, Any] = {}
        for position, argument in enumerate(item.arguments):
            if argument.name is None and position >= len(names):
                raise BadValue(argument.at, f"macro {macro.name} takes {len(names)} arguments, not {position + 1}")
            name = argument.name or names[position]
            if name not in names:
                near = nearest(name, names, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names) or 'none'}"
                raise BadValue(argument.at, f"macro {macro.name} has no parameter {name!r}; {hint}")
            bound[name] = self.evaluator.value(argument.value, scope, f"{macro.name}.{name}")
        for parameter in macro.parameters:
            name = str(parameter.name)
            if name not in bound and name in macro.defaults:
                bound[name] = self.evaluator.value(parameter.value, bound, f"{macro.name}.{name}")
            elif name not in bound:
                raise BadValue(item.at, f"macro {macro.name} needs a value for {name!r}")
        return bound

    # -- layers ----------------------------------------------------------------------------------------------------

    def _layer(self, item: syntax.LayerNode, scope: Mapping[str, Any]) -> Layer:
        kind = catalogue.canonical(item.type)
        if kind is None:
            if not catalogue.is_custom(item.type):
                near = catalogue.near_layers(item.type, list(self.macros))
                hint = f"did you mean {' or '.join(near)}?" if near else "a custom layer ends in 'Layer'"
                raise BadValue(item.at, f"there is no layer or macro {item.type!r}; {hint}")
            kind = catalogue.CUSTOM
        name = self._name_of(kind, item, scope)
        params, inner = self._params(kind, item, scope, name)
        line, column = self.source.position(item.at)
        sublayers = self.nodes(item.block, scope) if item.block else ()
        return Layer(kind, name, params, line, column, item.type, inner, sublayers, item.device)

    def _params(
        self, kind: str, item: syntax.LayerNode, scope: Mapping[str, Any], owner: str
    ) -> tuple[dict[str, Any], Layer | None]:
        order = _order(kind, item)
        params: dict[str, Any] = {}
        inner: Layer | None = None
        operands: list[Any] = []
        for position, argument in enumerate(item.arguments):
            layer = _as_layer(argument.value) if kind in _WRAPPERS and argument.name in (None, "layer") else None
            if layer is not None and catalogue.canonical(layer.type) is not None:
                inner = self._layer(layer, scope)
                continue
            value = self.evaluator.value(argument.value, scope, f"{owner}.{argument.name or _at(order, position)}")
            if argument.name is not None:
                self._known(kind, argument)
                params[argument.name] = value
            elif position < len(order):
                params[order[position]] = value
            elif kind == "Reshape":
                first = params["target_shape"]
                params["target_shape"] = (*(first if isinstance(first, tuple) else (first,)), value)
            elif kind in catalogue.MERGES or kind == catalogue.CUSTOM:
                operands += value if isinstance(value, list) else [value]
            else:
                raise BadValue(argument.at, f"{item.type} takes {len(order)} arguments without a name, not more")
        if kind == "Activation" and item.type.lower() in catalogue.ACTIVATION_LAYERS:
            params = {"alpha": params.pop("activation", None), **params}
            params["activation"] = catalogue.ACTIVATION_LAYERS[item.type.lower()]
        if operands:
            params["inputs"] = operands
        return params, inner

    def _known(self, kind: str, argument: syntax.Argument) -> None:
        name = str(argument.name)
        known = catalogue.known_arguments(kind)
        if kind == catalogue.CUSTOM or kind in ("DynamicLayer", "QuantumLayer") or name in known:
            return
        near = nearest(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else "it has no effect"
        self.say(Severity.WARNING, argument.at, f"{kind} has no argument {name!r}; {hint}")

    def _name_of(self, kind: str, item: syntax.LayerNode, scope: Mapping[str, Any]) -> str:
        base = item.type if kind in (catalogue.CUSTOM, "Activation") else kind
        self._count[base] += 1
        given = next((a for a in item.arguments if a.name == "name"), None)
        if given is None:
            return self._unique(f"{base}_{self._count[base]}")
        text = str(self.evaluator.value(given.value, scope, "name"))
        clean = re.sub(r"\W", "_", text, flags=re.ASCII).strip("_") or base
        if clean[0].isdigit():
            clean = f"{base}_{clean}"
        reserved = keyword.iskeyword(clean) or clean in TAKEN
        return self._unique(f"{clean}_layer" if reserved else clean)

    def _unique(self, name: str) -> str:
        found, number = name, self._next.get(name, 2)
        while found in self._names:
            found, number = f"{name}_{number}", number + 1
        self._next[name] = number
        self._names.add(found)
        return found


_WRAPPERS = ("Bidirectional", "TimeDistributed")


def _as_layer(value: syntax.Value) -> syntax.LayerNode | None:
    if isinstance(value, syntax.Call):
        return syntax.LayerNode(value.name, value.arguments, value.at, end=value.at)
    if isinstance(value, syntax.Word):
        return syntax.LayerNode(value.text, [], value.at, end=value.at, parentheses=False)
    return None


def _order(kind: str, item: syntax.LayerNode) -> tuple[str, ...]:
    """Positional arguments; DepthwiseConv2D is also written like the other convolutions."""
    order = catalogue.positional(kind)
    bare = [a for a in item.arguments if a.name is None]
    if kind == "DepthwiseConv2D" and len(bare) > 1 and not isinstance(bare[1].value, syntax.Word):
        second = bare[1].value
        if not (isinstance(second, syntax.Literal) and isinstance(second.value, str)):
            return ("filters", *order)
    return order


def _at(order: tuple[str, ...], position: int) -> str:
    return order[position] if position < len(order) else str(position)


def plain(value: Any) -> Any:
    """A value as the model dict holds it: bare names are strings, calls are dicts."""
    if isinstance(value, Reference):
        return value.text
    if isinstance(value, Called):
        return {"type": value.name, "args": [plain(v) for v in value.positional], **plain(value.named)}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(each) for each in value)
    return value
