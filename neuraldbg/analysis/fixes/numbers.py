"""Cures of numerics: a small edit at the line where the number is lost."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, keyword
from neuraldbg.analysis.fixes.placing import at, is_module_call, offered
from neuraldbg.records import Finding, Fix


def _argument(call: ast.Call) -> ast.expr | None:
    """What a function is applied to: `x` of torch.log(x) and of x.log()."""
    if is_module_call(call) or not isinstance(call.func, ast.Attribute):
        return call.args[0] if call.args else None
    return call.func.value


def _at_argument(finding: Finding, evidence: Evidence, names: tuple[str, ...], code: str, title: str) -> Iterator[Fix]:
    """`code` with {x} in the place of the argument; of several calls on the line, of each."""
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    found = [_argument(call) for call in script.calls(*names, within=(line, line))]
    arguments = [node for node in found if node is not None]
    nested = any(inner in arguments for node in arguments for inner in ast.walk(node) if inner is not node)
    if arguments and len(arguments) == len(found) and not nested:
        changes: list[tuple[ast.AST, str]] = [(node, code.format(x=script.operand(node))) for node in arguments]
        yield from offered(title, "R", script, script.replace_all(changes))


@cure("log_of_zero")
def log_of_zero(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    names = ("log", "log2", "log10")
    yield from _at_argument(finding, evidence, names, "{x}.clamp_min(1e-8)", "Keep the argument of the log above zero")


@cure("undefined_gradient_at_zero")
def undefined_gradient_at_zero(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    title = "Keep the argument away from zero, where the derivative is infinite"
    yield from _at_argument(finding, evidence, ("sqrt",), "({x} + 1e-12)", title)
    place = at(finding, evidence)
    if place is not None:
        yield from _norms(*place, title)


def _norms(script: Script, line: int, title: str) -> Iterator[Fix]:
    """`d.norm(dim=1)` -> `(d.pow(2).sum(dim=1) + 1e-12).sqrt()`"""
    for call in script.calls("norm", within=(line, line)):
        inner = _argument(call)
        dim = keyword(call, "dim")
        if inner is None or any(each.arg not in ("dim", "keepdim") for each in call.keywords):
            return
        keep = keyword(call, "keepdim")
        words = [f"dim={script.source(dim)}"] if dim is not None else []
        words += [f"keepdim={script.source(keep)}"] if keep is not None else []
        positional = call.args[1:] if is_module_call(call) else call.args
        if positional:
            return
        code = f"({script.operand(inner)}.pow(2).sum({', '.join(words)}) + 1e-12).sqrt()"
        yield from offered(title, "R", script, script.replace(call, code))


@cure("exp_overflow")
def exp_overflow(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    yield from _at_argument(finding, evidence, ("exp",), "{x}.clamp(max=80)", "Bound the argument of exp")


@cure("division_by_zero")
def division_by_zero(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    every = [node for node in script.nodes(ast.BinOp) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    divisions = [node for node in every if node.lineno <= line <= (node.end_lineno or 0)]
    if len(divisions) == 1:
        under = divisions[0].right
        changed = script.replace(under, f"({script.source(under)} + 1e-8)")
        yield from offered("Keep the divisor away from zero", "R", script, changed)
