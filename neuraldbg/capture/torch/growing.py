"""The line of a script that puts something into a container, found in its source by the container's name."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable
from typing import Any, Final

FILLING: Final = {"append", "extend", "add", "insert", "setdefault", "appendleft", "update", "push"}
LONGEST: Final = 200_000  # characters of a file that is read for it


def growing_line(frames: Any, files: Iterable[str], name: str) -> str | None:
    """`train.py:31` for a variable `history`, an attribute `trainer.history`, or an item `kept['loss']`; None where
    nothing in these files seems to fill it."""
    wanted = re.findall(r"\w+", name.partition("[")[0])[-1]
    for filename in dict.fromkeys(files):
        line = _first_line(filename, wanted)
        if line is not None:
            return f"{frames.display(filename)}:{line}"
    return None


def _first_line(filename: str, wanted: str) -> int | None:
    text = "".join(linecache.getlines(filename))
    if not text or len(text) > LONGEST:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # a cell of a notebook with magic in it
        return None
    found = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt)]
    return min((node.lineno for node in found if _fills(node, wanted)), default=None)


def _fills(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FILLING:
        return _is(node.func.value, name)
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Subscript) and _is(target.value, name) for target in node.targets)
    return isinstance(node, ast.AugAssign) and _is(node.target, name)


def _is(node: ast.AST, name: str) -> bool:
    """The name itself, an attribute of that name, or an item of it."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
