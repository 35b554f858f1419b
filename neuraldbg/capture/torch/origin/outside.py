"""Tensors that no graph knows (weights of a loss, advantages, targets made in the loop): which line computes them.

Read from the source: the variable that holds the tensor, its last assignment, and the operation written there.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.frames import Frames

MOST_FRAMES = 6
MOST_ELEMENTS = 2**22  # of a tensor that is compared
_CALLS = {"log": "log", "log2": "log2", "log10": "log10", "sqrt": "sqrt", "exp": "exp", "reciprocal": "reciprocal",
          "div": "div", "rsqrt": "rsqrt", "true_divide": "div"}  # fmt: skip
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@dataclass(frozen=True)
class Made:
    """Where a variable got its value."""

    name: str
    op: str
    line: str
    in_loop: bool


def maker(frames: Frames, tensor: Tensor) -> Made | None:
    """None when the variable is not in sight or its line has no operation, or several, that could do it."""
    for number, frame in enumerate(frames.user_frames()):
        if number == MOST_FRAMES:
            break
        found = attempt(lambda frame=frame: _in_frame(frames, frame, tensor))  # type: ignore[misc]
        if found is not None:
            made: Made = found
            return made
    return None


def _in_frame(frames: Frames, frame: FrameType, tensor: Tensor) -> Made | None:
    names = [name for name, value in frame.f_locals.items() if isinstance(value, Tensor) and _same(value, tensor)]
    if not names:
        return None
    filename = frame.f_code.co_filename
    module = ast.parse("".join(linecache.getlines(filename)))
    scope = _scope(module, frame)
    for name in names:
        assigned = [node for node in _assignments(scope, name) if node.lineno <= frame.f_lineno]
        if not assigned:
            continue
        last = max(assigned, key=lambda node: node.lineno)
        found = _operations(last) or _operations_called(module, last)
        if len(set(found)) == 1:
            op, line = found[0]
            return Made(name, op, f"{frames.display(filename)}:{line}", _in_loop(scope, last))
    return None


def _same(one: Tensor, other: Tensor) -> bool:
    """By value: what we have may be a copy."""
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype or not 0 < one.numel() <= MOST_ELEMENTS:
        return False
    return one.device == other.device and torch.equal(torch.nan_to_num(one.detach()), torch.nan_to_num(other))


def _scope(module: ast.Module, frame: FrameType) -> _Scope:
    """The function a frame runs, or the module."""
    wanted = frame.f_code.co_name
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != wanted:
            continue
        if node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno):
            return node
    return module


def _assignments(scope: _Scope, name: str) -> Iterator[Any]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        for target in targets:
            if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(target)):
                yield node


def _operations(node: ast.AST) -> list[tuple[str, int]]:
    found = []
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp | ast.AugAssign) and isinstance(part.op, ast.Div):
            divisor = part.right if isinstance(part, ast.BinOp) else part.value
            if not isinstance(divisor, ast.Constant):
                found.append(("div", part.lineno))
        elif isinstance(part, ast.Call):
            name = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
            if name in _CALLS:
                found.append((_CALLS[name], part.lineno))
    return found


def _operations_called(module: ast.Module, node: ast.AST) -> list[tuple[str, int]]:
    """Of a function of the same file that the line calls."""
    called = {part.func.id for part in ast.walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)}
    bodies = [each for each in ast.walk(module) if isinstance(each, ast.FunctionDef) and each.name in called]
    return [operation for body in bodies for operation in _operations(body)]


def _in_loop(scope: _Scope, node: ast.AST) -> bool:
    if not isinstance(scope, ast.Module):
        return True  # a function that is called step by step, as far as one can see
    loops = [each for each in ast.walk(scope) if isinstance(each, ast.For | ast.While)]
    return any(part is node for loop in loops for part in ast.walk(loop))
