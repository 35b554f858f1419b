"""`Lambda("x * 2")`: one line of elementwise arithmetic, read and written again. Nothing else passes."""

from __future__ import annotations

import ast
from typing import Final

FUNCTIONS: Final = {
    "abs": "torch.abs",
    "absolute": "torch.abs",
    "exp": "torch.exp",
    "log": "torch.log",
    "sqrt": "torch.sqrt",
    "square": "torch.square",
    "sin": "torch.sin",
    "cos": "torch.cos",
    "tanh": "torch.tanh",
    "sigmoid": "torch.sigmoid",
    "relu": "torch.relu",
    "clip": "torch.clamp",
    "clip_by_value": "torch.clamp",
    "clamp": "torch.clamp",
}
_ROOTS: Final = {"torch", "tf", "np", "numpy", "keras", "K", "math", "nn", "ops", "F", "backend", "tensorflow"}
_OPERATORS: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
LONGEST: Final = 500


class BadExpression(Exception):
    pass


def python_of(text: str) -> str:
    """The same expression as torch code over `x`."""
    if len(text) > LONGEST:
        raise BadExpression(f"an expression of {len(text)} characters is refused")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadExpression(f"{text[:60]!r} is not an expression in x, as in x * 2") from None
    name = "x"
    if isinstance(tree, ast.Lambda):
        names = [argument.arg for argument in tree.args.args]
        if len(names) != 1:
            raise BadExpression("it takes one input, as in lambda x: x * 2")
        name, tree = names[0], tree.body
    if not _holds(tree, name):
        raise BadExpression("the expression does not use x")
    return _write(tree, name, 0)


def _holds(tree: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def _is_power(node: ast.BinOp, name: str) -> bool:
    return isinstance(node.right, ast.Constant | ast.UnaryOp) and _holds(node.left, name)


def _write(node: ast.expr, name: str, depth: int) -> str:
    if depth > 30:
        raise BadExpression("the expression is nested too deeply")
    if isinstance(node, ast.Name) and node.id == name:
        return "x"
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return repr(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return f"-{_write(node.operand, name, depth + 1)}"
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        if isinstance(node.op, ast.Pow) and not _is_power(node, name):
            raise BadExpression("** takes x on its left and a number on its right")
        left, right = _write(node.left, name, depth + 1), _write(node.right, name, depth + 1)
        return f"({left} {_OPERATORS[type(node.op)]} {right})"
    if isinstance(node, ast.Call) and not node.keywords:
        arguments = [_write(each, name, depth + 1) for each in node.args]
        return f"{_function(node.func)}({', '.join(arguments)})"
    raise BadExpression(f"only x, numbers, + - * / ** and {', '.join(sorted(FUNCTIONS))} are supported")


def _function(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and not parts:
        parts = [node.id]
    elif not (isinstance(node, ast.Name) and node.id in _ROOTS):
        raise BadExpression("only plain functions of one value are supported")
    if parts[0] not in FUNCTIONS:
        raise BadExpression(f"{parts[0]!r} is not one of {', '.join(sorted(FUNCTIONS))}")
    return FUNCTIONS[parts[0]]
