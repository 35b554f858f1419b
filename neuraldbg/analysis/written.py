"""Where a number that the script uses is written: the constant, the entry of a table of settings, the default of an
option."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.places import parsed, split
from neuraldbg.records import Call

MOST_CALLS = 3  # from a function to the loop that calls it


def argument_line(evidence: Evidence, call_line: str | None, name: str, place: int) -> str | None:
    """The line of the number that the call on a line is given, by name or by place; that of the call where it is not
    found."""
    known = split(call_line)
    tree = None if known is None else parsed(evidence.text(known[0]) or "")
    if known is None or tree is None:
        return call_line
    for call in _calls(tree):
        if call.lineno <= known[1] <= (call.end_lineno or call.lineno):
            given = next((word.value for word in call.keywords if word.arg == name), None)
            given = given or (call.args[place] if len(call.args) > place else None)
            line = None if given is None else _written(tree, given)
            if line is not None:
                return f"{known[0]}:{line}"
    return call_line


def rounds_line(evidence: Evidence) -> str | None:
    """The line of the number of epochs, or of steps: what the outermost loop around the update counts to."""
    known = split(evidence.line_of(Call.STEP))
    tree = None if known is None else parsed(evidence.text(known[0]) or "")
    if known is None or tree is None:
        return None
    loops = [loop for loop in _loops(tree, known[1], MOST_CALLS) if _counted(loop) is not None]
    if not loops:
        return None
    counted = _counted(loops[-1])
    line = None if counted is None else _written(tree, counted)
    return f"{known[0]}:{line or loops[-1].lineno}"


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _loops(tree: ast.Module, line: int, depth: int) -> list[ast.For]:
    """Loops around a line, from the inside out, and those around the calls of the function that it is in."""
    around = [node for node in ast.walk(tree) if _around(node, line)]
    found = [node for node in reversed(around) if isinstance(node, ast.For)]
    functions = [node.name for node in around if isinstance(node, ast.FunctionDef)]
    if not functions or not depth:
        return found
    callers = [call.lineno for call in _calls(tree) if ast.unparse(call.func).rpartition(".")[2] == functions[-1]]
    return [*found, *(loop for caller in callers[:1] for loop in _loops(tree, caller, depth - 1))]


def _around(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.For | ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or node.lineno)


def _counted(loop: ast.For) -> ast.expr | None:
    """`EPOCHS` of `for epoch in range(EPOCHS)`, also inside tqdm and the like."""
    calls = [node for node in ast.walk(loop.iter) if isinstance(node, ast.Call)]
    ranges = [call for call in calls if ast.unparse(call.func) in ("range", "trange") and call.args]
    return None if not ranges else ranges[0].args[min(1, len(ranges[0].args) - 1)]


def _written(tree: ast.Module, node: ast.expr) -> int | None:
    """The line of the number behind an expression: its own, or the one place where its name is given a value."""
    if isinstance(node, ast.Constant):
        return node.lineno
    name = _last_name(node)
    lines = [] if name is None else [line for each in ast.walk(tree) for line in _gives(each, name)]
    return lines[0] if lines else None


def _last_name(node: ast.expr) -> str | None:
    """`clip` of clip, args.clip, self.clip, HP["clip"]."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _gives(node: ast.AST, name: str) -> Iterator[int]:
    """Lines at which a node gives a constant to a name: assignments, tables, keywords, options, defaults."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(_last_name(target) == name for target in targets):
            yield node.lineno
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple):
        pairs = zip(node.targets[0].elts, node.value.elts, strict=False)
        yield from (node.lineno for target, value in pairs if _last_name(target) == name and _is_number(value))
    elif isinstance(node, ast.Dict):
        pairs_of = zip(node.keys, node.values, strict=True)
        yield from (v.lineno for k, v in pairs_of if isinstance(k, ast.Constant) and k.value == name and _is_number(v))
    elif isinstance(node, ast.Call):
        yield from (word.value.lineno for word in node.keywords if word.arg == name and _is_number(word.value))
        if any(isinstance(each, ast.Constant) and _option(each.value) == name for each in node.args):
            yield from (word.value.lineno for word in node.keywords if word.arg == "default")
    elif isinstance(node, ast.FunctionDef):
        by_place = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
        by_name = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        for each, value in (*by_place, *by_name):
            if value is not None and each.arg == name and _is_number(value):
                yield value.lineno


def _is_number(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _option(value: object) -> str | None:
    """`batch_size` of "--batch-size"."""
    return value.lstrip("-").replace("-", "_") if isinstance(value, str) and value.startswith("-") else None
