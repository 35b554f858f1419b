"""Habits that the user's files show by their form: a best state that is kept, a value for everything unknown."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.places import parsed

_KEEPING = ("save", "state_dict", "deepcopy", "save_checkpoint", "save_pretrained", "save_model")


def keeps_best(evidence: Evidence) -> bool:
    """Whether a state is saved or copied where a comparison says so: `if val < low: low, kept = val, deepcopy(...)`."""
    for _, tree in _trees(evidence):
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and any(isinstance(each, ast.Compare) for each in ast.walk(node.test)):
                compared = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
                compared |= {each.attr for each in ast.walk(node.test) if isinstance(each, ast.Attribute)}
                inside = [each for statement in node.body for each in ast.walk(statement)]
                if compared & set(_stored(inside)) and any(_called(each) in _KEEPING for each in inside):
                    return True
    return False


def fallback_line(evidence: Evidence, value: float) -> str | None:
    """The one line that gives a value to whatever nothing else is known of: `table.get(key, value)`,
    `where(known, codes, value)`, `x if known else value`, `clamp(max=value)`, `fillna(value)`."""
    found = [
        f"{file}:{given.lineno}"
        for file, tree in _trees(evidence)
        for node in ast.walk(tree)
        for given in _fallbacks(node)
        if isinstance(given, ast.Constant) and type(given.value) in (int, float) and given.value == value
    ]
    return found[0] if len(set(found)) == 1 else None


def identifiers(evidence: Evidence) -> Iterator[str]:
    """Names that the user's code gives to things; words of comments and texts are none."""
    for _, tree in _trees(evidence):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.arg):
                yield node.arg
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name


def _trees(evidence: Evidence) -> Iterator[tuple[str, ast.Module]]:
    for fact in evidence.facts("source_file"):
        tree = parsed(fact["text"])
        if tree is not None and "site-packages" not in fact["file"]:
            yield fact["file"], tree


def _called(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)


def _stored(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _fallbacks(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    name = _called(node)
    if not isinstance(node, ast.Call) or name is None:
        return
    place = {"get": 1, "where": 2, "fillna": 0, "min": 1, "minimum": 1, "clip": 2}.get(name)
    if place is not None and len(node.args) > place:
        yield node.args[place]
    if name in ("clamp", "clamp_", "clip"):
        yield from (word.value for word in node.keywords if word.arg in ("max", "a_max"))
