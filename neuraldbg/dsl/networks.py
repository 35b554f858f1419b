"""From a file's tree to its networks: inputs, loss, optimizer, metrics, training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuraldbg.dsl import syntax
from neuraldbg.dsl.cursor import Cursor, TooDeep, Unexpected
from neuraldbg.dsl.expand import Expander, TooLarge, plain
from neuraldbg.dsl.lexer import tokenize
from neuraldbg.dsl.model import Called, Choice, Chooser, Input, Network, Reference, Setting
from neuraldbg.dsl.parse_values import value as read_value
from neuraldbg.dsl.problems import Problem, Severity, Source
from neuraldbg.dsl.values import BadValue, Evaluator, shown

_SCOPE: dict[str, Any] = {}
_SEARCHED = ("batch_size", "epochs")  # a list of these is a choice


def macros_of(file: syntax.File, source: Source) -> tuple[dict[str, syntax.Macro], list[Problem]]:
    macros: dict[str, syntax.Macro] = {}
    problems = []
    for item in file.items:
        if isinstance(item, syntax.Macro):
            if item.name in macros:
                first = source.position(macros[item.name].at)[0]
                why = f"macro {item.name} is already defined on line {first}; this one counts"
                problems.append(source.problem(Severity.WARNING, item.at, why, kind="value"))
            macros[item.name] = item
    return macros, problems


class NetworkReader:
    """Reads one network; mistakes are collected in `problems`."""

    def __init__(
        self, source: Source, macros: dict[str, syntax.Macro], node: syntax.NetworkNode, choose: Chooser
    ) -> None:
        self.source, self.node = source, node
        self.evaluator = Evaluator(source, choose)
        self.expander = Expander(source, macros, self.evaluator)
        self.problems: list[Problem] = []
        self._lines: dict[str, int] = {}
        self._columns: dict[str, int] = {}

    def read(self) -> Network:
        sections = self._sections()
        inputs = self._inputs(sections.get("input"))
        layers = self._layers(sections.get("layers"))
        optimizer = self._setting(sections.get("optimizer"), "optimizer")
        optimizer = self._with_params(optimizer, sections.get("optimizer_param"))
        training = self._entries(sections.get("train"), "train")
        train = sections.get("train")
        if train is not None and train.device is not None:
            training.setdefault("device", train.device)
        execution = {}
        for key in ("execute", "execution"):
            execution.update(self._entries(sections.get(key), key))
        loss = self._setting(sections.get("loss"), "loss")
        schedule = self._setting(sections.get("lr_schedule"), "lr_schedule")
        self.problems += self.expander.problems
        return Network(
            name=self.node.name,
            inputs=inputs,
            layers=layers,
            loss=loss,
            optimizer=optimizer,
            schedule=schedule,
            metrics=self._metrics(sections.get("metrics")),
            training=training,
            execution=execution,
            choices=tuple(self.evaluator.choices),
            line=self._line(self.node.at),
            lines=self._lines,
            columns=self._columns,
        )

    # -- sections --------------------------------------------------------------------------------------------------

    def _place(self, key: str, at: int) -> None:
        self._lines[key], self._columns[key] = self.source.position(at)

    def _line(self, at: int) -> int:
        return self.source.position(at)[0]

    def _say(self, severity: Severity, at: int, message: str) -> None:
        self.problems.append(self.source.problem(severity, at, message, kind="value"))

    def _sections(self) -> dict[str, syntax.Section]:
        found: dict[str, syntax.Section] = {}
        for section in self.node.sections:
            if section.key in found:
                line = self._line(found[section.key].at)
                self._say(Severity.ERROR, section.at, f"{section.key} is already given on line {line}")
            else:
                found[section.key] = section
                self._place(section.key, section.at)
        if "input" not in found:
            self._say(Severity.ERROR, self.node.at, f"network {self.node.name} has no input: section")
        if "layers" not in found:
            self._say(Severity.ERROR, self.node.at, f"network {self.node.name} has no layers: section")
        return found

    def _layers(self, section: syntax.Section | None) -> tuple[Any, ...]:
        if section is None:
            return ()
        if not section.layers:
            self._say(Severity.ERROR, section.at, f"network {self.node.name} has no layers")
        try:
            return self.expander.nodes(section.layers, _SCOPE)
        except TooLarge as error:
            self._say(Severity.CRITICAL, error.at, str(error))
            return ()

    def _value(self, node: syntax.Value, path: str) -> Any:
        try:
            return self.evaluator.value(node, _SCOPE, path)
        except BadValue as error:
            self._say(Severity.ERROR, error.at, error.message)
            return None

    def _entries(self, section: syntax.Section | None, path: str) -> dict[str, Any]:
        if section is None:
            return {}
        found = {}
        for entry in section.entries:
            name = str(entry.name)
            found[name] = self._value(entry.value, f"{path}.{name}")
            if path == "train" and isinstance(found[name], list) and found[name] and name in _SEARCHED:
                line, column = self.source.position(entry.at)
                options = tuple(found[name])
                choice = Choice(f"train.{name}", "categorical", options, None, None, None, line, column)
                found[name] = self.evaluator.decide(choice)
            self._place(f"{path}.{name}", entry.at)
        return found

    def _metrics(self, section: syntax.Section | None) -> tuple[str, ...]:
        if section is None:
            return ()
        found: list[str] = []
        for node in section.values:
            value = self._value(node, "metrics")
            for each in value if isinstance(value, list | tuple) else [value]:
                name = each.name if isinstance(each, Called) else plain(each)
                if isinstance(name, str):
                    found.append(name)
        return tuple(found)

    # -- inputs ----------------------------------------------------------------------------------------------------

    def _inputs(self, section: syntax.Section | None) -> tuple[Input, ...]:
        if section is None:
            return ()
        found: list[Input] = []
        for node in section.values:
            if isinstance(node, syntax.Mapping):
                found += filter(None, [self._input(item.value, item.name) for item in node.items])
            elif isinstance(node, syntax.Sequence) and any(_is_shape(item) for item in node.items):
                found += filter(None, [self._input(item, None) for item in node.items])
            else:
                found += filter(None, [self._input(node, None)])
        if not found and not self.problems:
            self._say(Severity.ERROR, section.at, "input: names no shape, as in (28, 28, 1)")
        return tuple(found)

    def _input(self, node: syntax.Value, name: str | None) -> Input | None:
        line, column = self.source.position(node.at)
        value = self._value(node, "input")
        first = isinstance(value, Called) and value.name.lower() == "shape"
        dims: Sequence[Any] = value.positional if isinstance(value, Called) else value
        if isinstance(dims, int) or dims is None:
            dims = (dims,)
        if not isinstance(dims, tuple | list) or (isinstance(value, Called) and not first):
            self._say(Severity.ERROR, node.at, f"a shape was expected, as in (28, 28, 1), not {shown(value)}")
            return None
        shape = [None if isinstance(d, Reference) and d.text.lower() in ("batch", "any") else d for d in dims]
        for dim in shape:
            if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int) or dim <= 0):
                why = f"{dim.text!r} is not defined" if isinstance(dim, Reference) else f"{shown(dim)} cannot be a size"
                self._say(Severity.ERROR, node.at, f"{why}: the sizes of a shape are whole numbers above 0, or None")
                return None
        open_first = len(shape) > 1 and shape[0] is None
        if open_first:
            shape = shape[1:]  # the batch
        if first and len(shape) >= 3:
            shape = [*shape[1:], shape[0]]
        return Input(name, tuple(shape), line, column, channels_first=first, open_first=open_first)

    # -- loss and optimizer ----------------------------------------------------------------------------------------

    def _setting(self, section: syntax.Section | None, path: str) -> Setting | None:
        if section is None or not section.values:
            return None
        node = section.values[0]
        line, column = self.source.position(node.at)
        if isinstance(node, syntax.Literal) and isinstance(node.value, str):
            node = self._inside_string(node)
        value = self._value(node, path)
        if isinstance(value, Called):
            return Setting(value.name, value.named, line, column, value.positional)
        if isinstance(value, dict):
            return self._from_mapping(value, path, line, column, node.at)
        name = plain(value)
        if not isinstance(name, str):
            if value is not None:
                self._say(Severity.ERROR, node.at, f"{path} needs a name, not {shown(value)}")
            return None
        return Setting(name, {}, line, column)

    def _from_mapping(self, value: dict[str, Any], path: str, line: int, column: int, at: int) -> Setting | None:
        kind = plain(value.get("type") or value.get("name"))
        if not isinstance(kind, str):
            kind = next((plain(each) for each in value.values() if isinstance(plain(each), str)), None)
            if kind is None:
                self._say(Severity.ERROR, at, f"{path}: a name is expected, as in {path}: name(...)")
                return None
            self._say(Severity.WARNING, at, f"{path}: one is supported, the first is taken: {kind}")
            return Setting(kind, {}, line, column)
        params = value.get("params")
        rest = {key: each for key, each in value.items() if key not in ("type", "name", "params")}
        return Setting(kind, {**rest, **(params if isinstance(params, dict) else {})}, line, column)

    def _inside_string(self, node: syntax.Literal) -> syntax.Value:
        """`"Adam(learning_rate=1e-4)"`: a call inside a string."""
        text = str(node.value)
        if "(" not in text:
            return node
        tokens, _, problems = tokenize(Source(text))
        shifted = [(kind, word, node.at) for kind, word, _ in tokens]
        cursor = Cursor(self.source, shifted)
        try:
            found = read_value(cursor)
        except (Unexpected, TooDeep) as error:
            self._say(Severity.ERROR, node.at, f"inside the string: {error}")
            return syntax.Literal(None, node.at)
        if problems or not cursor.ended:
            self._say(Severity.ERROR, node.at, f"{text[:60]!r} is neither a name nor a call")
            return syntax.Literal(None, node.at)
        return found

    def _with_params(self, optimizer: Setting | None, section: syntax.Section | None) -> Setting | None:
        if section is None:
            return optimizer
        params = self._entries(section, "optimizer")
        if optimizer is None:
            self._say(Severity.WARNING, section.at, "optimizer_param has no effect without optimizer:")
            return None
        merged = {**optimizer.params, **params}
        return Setting(optimizer.name, merged, optimizer.line, optimizer.column, optimizer.positional)


def _is_shape(node: syntax.Value) -> bool:
    return isinstance(node, syntax.Sequence) or (isinstance(node, syntax.Call) and node.name.lower() == "shape")
