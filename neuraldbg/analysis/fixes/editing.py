"""Edits of a Python file as a person would make them: whole statements or single expressions, the rest untouched."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from neuraldbg.analysis.places import parsed


@dataclass(frozen=True)
class Script:
    """A file of the user's, as it was when the run began."""

    file: str
    text: str

    @cached_property
    def tree(self) -> ast.Module | None:
        return parsed(self.text)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines(keepends=True)

    # -- finding -----------------------------------------------------------------------------------------------------

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement on a line that is not merely the head of a block over it."""
        every = [node for node in self.nodes(ast.stmt) if isinstance(node, ast.stmt)]
        found = [node for node in every if node.lineno <= line <= (node.end_lineno or node.lineno)]
        simple = [node for node in found if not hasattr(node, "body")]
        return max(simple or found, key=lambda node: node.lineno, default=None)

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        if self.tree is not None:
            yield from (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    def calls(self, *names: str, within: tuple[int, int] | None = None) -> list[ast.Call]:
        """Calls whose function ends in one of the names (`nn.Softmax` ends in `Softmax`), in order of the file."""
        found = [node for node in self.nodes(ast.Call) if isinstance(node, ast.Call) and called(node) in names]
        if within is not None:
            found = [node for node in found if within[0] <= node.lineno <= within[1]]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))

    def parent(self, child: ast.AST) -> ast.AST | None:
        for node in self.nodes(ast.AST):
            if any(each is child for each in ast.iter_child_nodes(node)):
                return node
        return None

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements it stands in."""
        for node in self.nodes(ast.AST):
            for name in ("body", "orelse", "finalbody", "handlers"):
                block = getattr(node, name, None)
                if isinstance(block, list) and any(each is statement for each in block):
                    return [each for each in block if isinstance(each, ast.stmt)]
        return [statement]

    def loop_around(self, statement: ast.stmt) -> ast.For | ast.While | None:
        """The innermost loop whose body a statement stands in."""
        loops = [node for node in self.nodes(ast.For, ast.While) if isinstance(node, ast.For | ast.While)]
        around = [node for node in loops if node is not statement and _within(statement, node)]
        return max(around, key=lambda node: node.lineno, default=None)

    def function_around(self, node: ast.AST) -> ast.FunctionDef | None:
        found = [each for each in self.nodes(ast.FunctionDef) if isinstance(each, ast.FunctionDef)]
        around = [each for each in found if each is not node and _within(node, each)]
        return max(around, key=lambda each: each.lineno, default=None)

    def bindings(self, name: ast.Name) -> list[ast.AST]:
        """Everything that gives a variable its value where it is used: assignments, loops, parameters, imports."""
        every = [node for node in self.nodes(ast.Name, ast.arg, ast.alias) if _binds(node, name.id)]
        here = self.function_around(name)
        own = [node for node in every if self.function_around(node) is here]
        return own or [node for node in every if self.function_around(node) is None]

    def source(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def operand(self, node: ast.AST) -> str:
        """The source of an expression so that `.method()` or an operator may follow it."""
        text = self.source(node)
        return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"

    def indent(self, statement: ast.stmt) -> str:
        before = self.lines[statement.lineno - 1][: statement.col_offset]
        return " " * statement.col_offset if before.strip() else before  # tabs stay tabs

    # -- editing: each returns the new text, or None where the edit cannot be made

    def insert(self, statement: ast.stmt, code: str, *, after: bool = False) -> str | None:
        """New lines before or after a statement, at its indentation. Not where it shares a line with others."""
        line = self.lines[statement.lineno - 1]
        if line[: statement.col_offset].strip() or self._shares_line(statement):
            return None
        at = (statement.end_lineno or statement.lineno) if after else statement.lineno - 1
        new = [f"{self.indent(statement)}{each}\n" if each else "\n" for each in code.splitlines()]
        head = self.lines[:at]
        if head and not head[-1].endswith("\n"):
            head[-1] += "\n"
        return "".join([*head, *new, *self.lines[at:]])

    def insert_all(self, codes: dict[ast.stmt, str]) -> str | None:
        """New lines before several statements."""
        text: str | None = self.text
        for statement in sorted(codes, key=lambda each: -each.lineno):  # from the end, so that places stay right
            text = None if text is None else Script(self.file, text).insert(statement, codes[statement])
        return text

    def _shares_line(self, statement: ast.stmt) -> bool:
        last = (statement.end_lineno or statement.lineno) - 1
        rest = self.lines[last][_column(self.lines[last], statement.end_col_offset or 0) :]
        return bool(rest.strip()) and not rest.strip().startswith("#")

    def replace(self, node: ast.AST, code: str) -> str | None:
        """Another text in the place of an expression or statement."""
        return self.replace_all([(node, code)])

    def rewritten(self, node: ast.AST, changes: list[tuple[ast.AST, str]]) -> str:
        """The source of an expression with parts of it changed."""
        begin, end = self.span(node)
        changed = self.replace_all(changes) or self.text
        return changed[begin : end + len(changed) - len(self.text)]

    def replace_all(self, changes: list[tuple[ast.AST, str]]) -> str | None:
        text = self.text
        spots = sorted(((*self.span(node), code) for node, code in changes), reverse=True)
        for start, end, code in spots:
            text = text[:start] + code + text[end:]
        return text

    def remove(self, statement: ast.stmt) -> str | None:
        """Without a statement; where it was alone in its block, with `pass`."""
        if self._shares_line(statement) or self.lines[statement.lineno - 1][: statement.col_offset].strip():
            return None
        if len(self.block_of(statement)) == 1:
            return self.replace(statement, "pass")
        first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
        return "".join([*self.lines[:first], *self.lines[last:]])

    def move(self, statement: ast.stmt, target: ast.stmt, *, after: bool) -> str | None:
        """A statement to just before or after another one."""
        code = "".join(self.lines[statement.lineno - 1 : statement.end_lineno])
        without = self.remove(statement)
        if without is None:
            return None
        shift = (statement.end_lineno or statement.lineno) - statement.lineno + 1
        moved = Script(self.file, without)
        line = target.lineno - (shift if target.lineno > statement.lineno else 0)
        there = moved.statement(line)
        body = "\n".join(each.strip() if at == 0 else each.rstrip() for at, each in enumerate(code.splitlines()))
        return None if there is None or "\n" in body else moved.insert(there, body.strip(), after=after)

    def span(self, node: ast.AST) -> tuple[int, int]:
        starts = [0]
        for line in self.lines:
            starts.append(starts[-1] + len(line))
        first, last = getattr(node, "lineno", 1) - 1, (getattr(node, "end_lineno", 1) or 1) - 1
        begin = starts[first] + _column(self.lines[first], getattr(node, "col_offset", 0))
        end = starts[last] + _column(self.lines[last], getattr(node, "end_col_offset", 0) or 0)
        return begin, end

    def diff(self, changed: str | None) -> str | None:
        """A unified diff that `patch -p0` takes; None where nothing changed or the result is no Python."""
        if changed is None or changed == self.text or parsed(changed) is None:
            return None
        lines = difflib.unified_diff(
            self.text.splitlines(keepends=True), changed.splitlines(keepends=True), self.file, self.file
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _column(line: str, offset: int) -> int:
    """ast counts bytes, text counts characters."""
    return len(line.encode()[:offset].decode(errors="ignore"))


def called(node: ast.AST) -> str:
    """The last part of the name of what a call calls; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _within(node: ast.AST, outer: ast.stmt) -> bool:
    begin, end = _ends(outer)
    first, last = _ends(node)
    return begin <= first and last <= end


def _ends(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    first = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    return first, (getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0)


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, ast.Store)
    if isinstance(node, ast.alias):
        return (node.asname or node.name.partition(".")[0]) == name
    return isinstance(node, ast.arg) and node.arg == name


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


def with_argument(script: Script, call: ast.Call, argument: str) -> str | None:
    """The text of the file with one more argument at the end of a call."""
    given = [*call.args, *(each.value for each in call.keywords)]
    if given:
        last = max(given, key=lambda node: (node.lineno, node.col_offset))
        return script.replace(last, f"{script.source(last)}, {argument}")
    head = script.source(call.func)
    return script.replace(call, f"{head}({argument})") if script.source(call) == f"{head}()" else None
