"""Python text in the making. Every line remembers the line of the `.neural` file it stands for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

INDENT = "    "


class Code:
    def __init__(self) -> None:
        self._lines: list[tuple[str, int]] = []
        self._depth = 0

    def add(self, text: str = "", line: int = 0) -> None:
        """One line of Python; `line` is the place in the `.neural` file, 0 for none."""
        self._lines.append((INDENT * self._depth + text if text else "", line))

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    def extend(self, other: Code) -> None:
        """The lines of another, at this depth."""
        for text, line in other._lines:
            self.add(text, line)

    @property
    def text(self) -> str:
        return "\n".join(line for line, _ in self._lines) + "\n"

    def compiled(self, filename: str, default_line: int) -> CodeType:
        """Compiled so that every frame, traceback and `source` of it names the `.neural` file and its line."""
        lines = [line for _, line in self._lines]
        tree = ast.parse(self.text)
        previous = default_line
        places = []
        for line in lines:
            previous = line or previous
            places.append(previous)
        node: Any
        for node in ast.walk(tree):
            if hasattr(node, "lineno"):
                node.lineno = node.end_lineno = places[node.lineno - 1]
                node.col_offset = node.end_col_offset = 0
        return compile(tree, filename, "exec", dont_inherit=True)


@cache
def _blocks(file: str) -> dict[str, str]:
    """The classes of a file of blocks as text; nothing is imported."""
    spec = find_spec("neuraldbg.dsl.build.code")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).with_name(f"{file}.py").read_text(encoding="utf-8")
    found = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {node.name: ast.get_source_segment(text, node) or "" for node in found}


def block_source(name: str, file: str = "blocks") -> str:
    """A class of `blocks.py` or `keras_blocks.py` as it is written there."""
    return _blocks(file)[name]
