"""What a script decides by probabilities, once its model puts out scores: 0.5 of the one is 0 of the other."""

from __future__ import annotations

import ast

from neuraldbg.analysis.fixes.editing import Script, called
from neuraldbg.analysis.fixes.placing import number

_SAME_ORDER = ("squeeze", "flatten", "view", "reshape", "detach", "cpu", "numpy", "unsqueeze", "float", "ravel")
_OF_PROBABILITIES = ("round", "log", "log1p", "binary_cross_entropy")


def with_scores(script: Script, models: set[str]) -> str | None:
    """The file with every `model(x) > 0.5` as `model(x) > 0`; None where it uses what the model puts out as a
    probability in a way that has no such twin (`round()`, `log()`)."""
    comparisons = [node for node in script.nodes(ast.Compare) if isinstance(node, ast.Compare)]
    changes: list[tuple[ast.AST, str]] = []
    for node in comparisons:
        limit = node.comparators[0]
        if len(node.ops) == 1 and number(limit) == 0.5 and from_model(script, node.left, models):
            changes.append((limit, "0"))
    for call in script.calls(*_OF_PROBABILITIES):
        operands = [*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
        if any(from_model(script, operand, models) for operand in operands):
            return None
    return script.replace_all(changes)


def from_model(script: Script, node: ast.expr, models: set[str], depth: int = 4) -> bool:
    """Whether an expression is what a model put out, up to its shape."""
    if not depth:
        return False
    if isinstance(node, ast.Subscript):
        return from_model(script, node.value, models, depth)
    if isinstance(node, ast.Call):
        method = isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_ORDER
        if method and isinstance(node.func, ast.Attribute):
            return from_model(script, node.func.value, models, depth)
        return called(node) in models
    if not isinstance(node, ast.Name):
        return False
    values = [_given(script, each) for each in script.bindings(node)]
    return bool(values) and all(value is not None and from_model(script, value, models, depth - 1) for value in values)


def _given(script: Script, binding: ast.AST) -> ast.expr | None:
    """The value of the plain assignment that a name is the target of."""
    for node in script.nodes(ast.Assign):
        if isinstance(node, ast.Assign) and any(target is binding for target in node.targets):
            return node.value
    return None
