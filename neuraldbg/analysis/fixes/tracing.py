"""Where the values that a model is given come from, by the names in the user's file."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes.editing import Script, called
from neuraldbg.analysis.fixes.placing import every_script

_LOOPS = 4  # a loop over a loader over a data set over a tensor: no program needs more


@dataclass(frozen=True)
class Origin:
    """The one statement that gives a variable its value."""

    name: str
    made: ast.Assign


def input_origin(evidence: Evidence) -> tuple[Script, Origin] | None:
    """The one variable that every call of the model, in training and evaluation, takes its rows from."""
    models = {str(fact["name"]) for fact in evidence.facts("model")}
    for script in every_script(evidence):
        calls = [call for call in _calls(script) if script.source(call.func) in models and call.args]
        found = [_origin(script, call.args[0]) for call in calls]
        known = [one for one in found if one is not None]
        if calls and len(known) == len(calls) and len({one.name for one in known}) == 1:
            return script, known[0]
    return None


def _calls(script: Script) -> list[ast.Call]:
    return [node for node in script.nodes(ast.Call) if isinstance(node, ast.Call)]


def _origin(script: Script, node: ast.expr, depth: int = 0) -> Origin | None:
    while isinstance(node, ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Name) or depth > _LOOPS:
        return None
    bound = script.bindings(node)
    if len(bound) != 1:
        return None
    for each in script.nodes(ast.Assign, ast.For):
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and _position(each.targets[0], bound[0]) is not None:
            return Origin(node.id, each)
        if isinstance(each, ast.For):
            position = _position(each.target, bound[0])
            tensors = None if position is None else _tensors(script, each.iter)
            if tensors is not None and position is not None and position < len(tensors):
                return _origin(script, tensors[position], depth + 1)
    return None


def _position(target: ast.expr, name: ast.AST) -> int | None:
    """0 of `x = ...`, its place in `x, y = ...`; None where it is not bound there."""
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return next((at for at, part in enumerate(parts) if part is name), None)


def _tensors(script: Script, loader: ast.expr) -> list[ast.expr] | None:
    """What `for x, y in loader` hands out, where the loader is made of tensors in this file."""
    loader = _value(script, loader)
    if not isinstance(loader, ast.Call) or called(loader) != "DataLoader" or not loader.args:
        return None
    data = _value(script, loader.args[0])
    return data.args if isinstance(data, ast.Call) and called(data) == "TensorDataset" else None


def _value(script: Script, node: ast.expr) -> ast.expr:
    """What a variable was assigned, where that is said once; else the expression itself."""
    if not isinstance(node, ast.Name):
        return node
    bound = script.bindings(node)
    for each in script.nodes(ast.Assign):
        if isinstance(each, ast.Assign) and len(bound) == 1 and each.targets[0] is bound[0]:
            return each.value
    return node
