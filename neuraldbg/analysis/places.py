"""Lines of the user's files: where a layer is written, also inside a `Sequential(...)` over several lines."""

from __future__ import annotations

import ast
from functools import lru_cache

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Site


@lru_cache(maxsize=64)
def parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def split(source: str | None) -> tuple[str, int] | None:
    """`train.py:42` -> file and line."""
    file, _, line = (source or "").rpartition(":")
    return (file, int(line)) if file and line.isdigit() else None


def layer_line(evidence: Evidence, site: Site | int | None) -> str | None:
    """Where the module is made. torch sees the line of the whole `Sequential(`; this is the line of the one entry."""
    known = evidence.sites.get(site) if isinstance(site, int) else site
    if known is None:
        return None
    place = split(known.defined)
    _, _, last = known.path.rpartition(".")
    if place is None or not last.isdigit():
        return known.defined or known.source
    file, line = place
    entry = _entry(evidence.text(file), line, int(last), known.op)
    return known.defined if entry is None else f"{file}:{entry}"


def _entry(text: str | None, line: int, index: int, op: str | None) -> int | None:
    tree = None if text is None else parsed(text)
    if tree is None:
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _covers(node, line)]
    for call in sorted(calls, key=lambda each: (each.end_lineno or 0) - each.lineno):
        named = _called(call)
        entries = call.args
        if named == "Sequential" and index < len(entries) and _called(entries[index]) in (op, None):
            return entries[index].lineno
        if named == "ModuleList" and entries and isinstance(entries[0], ast.List) and index < len(entries[0].elts):
            return entries[0].elts[index].lineno
    return None


def _covers(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _called(node: ast.expr) -> str | None:
    """The last part of the name of what is called; None for anything but a plain call."""
    if isinstance(node, ast.Starred) or not isinstance(node, ast.Call):
        return None if not isinstance(node, ast.Starred) else ""
    return ast.unparse(node.func).rpartition(".")[2]
