"""The line of a script that puts something into a container, found in its source by the container's name."""

from __future__ import annotations

import ast
import linecache
import re
from types import FrameType
from typing import Any, Final

FILLING: Final = {"append", "extend", "add", "insert", "setdefault", "appendleft", "update", "push"}
LONGEST: Final = 200_000  # characters of a file that is read for it


def growing_line(frames: Any, frame: FrameType, name: str) -> str | None:
    """`train.py:31` for a variable `history`, an attribute `trainer.history`, or an item `kept['loss']`; None where
    nothing in the file seems to fill it."""
    wanted = re.findall(r"\w+", name.partition("[")[0])[-1]
    filename = frame.f_code.co_filename
    text = "".join(linecache.getlines(filename))
    if not text or len(text) > LONGEST:
        return None
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.expr | ast.stmt)]
    lines = sorted(node.lineno for node in found if _fills(node, wanted))
    return f"{frames.display(filename)}:{lines[0]}" if lines else None


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
