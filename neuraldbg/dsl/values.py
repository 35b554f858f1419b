"""From written values to plain ones: variables, arithmetic, and what is left to a search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neuraldbg.dsl import syntax
from neuraldbg.dsl.model import Called, Choice, Chooser, Reference
from neuraldbg.dsl.problems import Source
from neuraldbg.errors import nearest

LARGEST = 10**12  # of a number that arithmetic may make
_HPO_KINDS = {"choice": "categorical", "categorical": "categorical", "range": "range", "log_range": "log_range"}


class BadValue(Exception):
    def __init__(self, at: int, message: str) -> None:
        self.at, self.message = at, message
        super().__init__(message)


class Evaluator:
    """Reads values of one network; notes every choice on the way."""

    def __init__(self, source: Source, choose: Chooser) -> None:
        self.source = source
        self.choose = choose
        self.choices: list[Choice] = []

    def value(self, node: syntax.Value, scope: Mapping[str, Any], path: str) -> Any:
        if isinstance(node, syntax.Literal):
            return node.value
        if isinstance(node, syntax.Word):
            return scope[node.text] if node.text in scope else Reference(node.text)
        if isinstance(node, syntax.Variable):
            return self._variable(node, scope)
        if isinstance(node, syntax.Sequence):
            items = [self.value(item, scope, path) for item in node.items]
            return items[0] if node.brackets == "" else tuple(items) if node.brackets == "()" else items
        if isinstance(node, syntax.Mapping):
            return {str(a.name): self.value(a.value, scope, f"{path}.{a.name}") for a in node.items}
        if isinstance(node, syntax.Negative):
            return self._arithmetic("-", 0, self.value(node.operand, scope, path), node.at)
        if isinstance(node, syntax.Binary):
            left, right = self.value(node.left, scope, path), self.value(node.right, scope, path)
            return self._arithmetic(node.operator, left, right, node.at)
        if node.name.lower() == "hpo":
            return self._hpo(node, scope, path)
        return self._called(node, scope, path)

    def _variable(self, node: syntax.Variable, scope: Mapping[str, Any]) -> Any:
        if node.name in scope:
            return scope[node.name]
        near = nearest(node.name, scope, 1)
        hint = f"did you mean ${near[0]}?" if near else "variables are the parameters of the macro they stand in"
        raise BadValue(node.at, f"${node.name} is not defined here; {hint}")

    def _arithmetic(self, operator: str, left: Any, right: Any, at: int) -> Any:
        left, right = _first_of(left), _first_of(right)
        for side in (left, right):
            if isinstance(side, Reference):
                raise BadValue(at, f"{side.text!r} is not defined: {operator!r} needs numbers")
            if isinstance(side, bool) or not isinstance(side, int | float):
                raise BadValue(at, f"{operator!r} needs numbers, not {shown(side)}")
        if operator in "/%" and right == 0:
            raise BadValue(at, "division by zero")
        result = _compute(operator, left, right)
        if not math.isfinite(result) or abs(result) > LARGEST:
            raise BadValue(at, f"the result of {operator!r} is larger than {LARGEST:.0e}")
        return result

    def _called(self, node: syntax.Call, scope: Mapping[str, Any], path: str) -> Called:
        positional = [self.value(a.value, scope, f"{path}.{node.name}") for a in node.arguments if a.name is None]
        named = {a.name: self.value(a.value, scope, f"{path}.{a.name}") for a in node.arguments if a.name is not None}
        return Called(node.name, tuple(positional), named, node.at)

    # -- choices ---------------------------------------------------------------------------------------------------

    def _hpo(self, node: syntax.Call, scope: Mapping[str, Any], path: str) -> Any:
        choice = self.choice(node, scope, path)
        return self.decide(choice)

    def decide(self, choice: Choice) -> Any:
        taken = self.choose(choice)
        fields = {name: getattr(choice, name) for name in choice.__slots__}
        self.choices.append(Choice(**{**fields, "taken": taken}))
        return taken

    def choice(self, node: syntax.Call, scope: Mapping[str, Any], path: str) -> Choice:
        inner = node.arguments[0].value if len(node.arguments) == 1 else None
        if not isinstance(inner, syntax.Call) or inner.name.lower() not in _HPO_KINDS:
            raise BadValue(node.at, "HPO takes choice(...), categorical(...), range(...) or log_range(...)")
        kind = _HPO_KINDS[inner.name.lower()]
        line, column = self.source.position(node.at)
        if kind == "categorical":
            options = tuple(self._options(inner, scope, path))
            if not options:
                raise BadValue(inner.at, "there is nothing to choose from")
            return Choice(path, kind, options, None, None, None, line, column)
        bounds = self._called(inner, scope, path)
        start, end = bounds.argument(0, "start", "low", "min"), bounds.argument(1, "end", "high", "max")
        step = bounds.argument(2, "step")
        for number in (start, end):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise BadValue(inner.at, f"{inner.name} needs two numbers, as in {inner.name}(1, 10)")
        if start > end or (kind == "log_range" and start <= 0):
            raise BadValue(inner.at, f"{inner.name}({start}, {end}) holds no value")
        return Choice(path, kind, (), start, end, step, line, column)

    def _options(self, node: syntax.Call, scope: Mapping[str, Any], path: str) -> list[Any]:
        values = [self.value(argument.value, scope, path) for argument in node.arguments]
        return values[0] if len(values) == 1 and isinstance(values[0], list) else values


def _first_of(value: Any) -> Any:
    """What is left open counts as its first choice in arithmetic."""
    told = value.get("hpo") if isinstance(value, dict) else None
    return (told["values"][0] if told["type"] == "categorical" else told["start"]) if told else value


def _compute(operator: str, left: float, right: float) -> int | float:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "%":
        return left % right
    exact = isinstance(left, int) and isinstance(right, int) and left % right == 0
    return left // right if exact else left / right


def shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, Reference) else value.text
    return text if len(text) <= 60 else text[:57] + "..."
