"""Cures of numerics, architecture and data that are one small edit at the line of the fault."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, keyword
from neuraldbg.analysis.fixes.placing import at, every_script, is_module_call, offered
from neuraldbg.records import Finding, Fix


def _argument(script: Script, line: int, *names: str) -> ast.expr | None:
    """What the one call of a function on a line is applied to: `x` of torch.log(x) and of x.log()."""
    calls = script.calls(*names, within=(line, line))
    if len(calls) != 1:
        return None
    call = calls[0]
    if is_module_call(call) or not isinstance(call.func, ast.Attribute):
        return call.args[0] if call.args else None
    return call.func.value


def _at_argument(finding: Finding, evidence: Evidence, names: tuple[str, ...], code: str, title: str) -> Iterator[Fix]:
    """`code` with {x} in the place of the argument."""
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    node = _argument(script, line, *names)
    if node is not None:
        yield from offered(title, "R", script, script.replace(node, code.format(x=script.operand(node))))


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
        inner = _argument(script, line, "norm")
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


@cure("data_not_shuffled")
def data_not_shuffled(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    loaders = script.calls("DataLoader")
    near = [call for call in loaders if call.lineno <= line <= (call.end_lineno or call.lineno)] or loaders[:1]
    for call in near[:1]:
        given = keyword(call, "shuffle")
        last = call.keywords[-1].value if call.keywords else call.args[-1] if call.args else None
        if given is not None:
            yield from offered("Shuffle the training data", "R", script, script.replace(given, "True"))
        elif last is not None:
            changed = script.replace(last, f"{script.source(last)}, shuffle=True")
            yield from offered("Shuffle the training data", "R", script, changed)


@cure("inplace_modifies_shared_tensor")
def inplace_modifies_shared_tensor(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    scripts = [place[0]] if place is not None else every_script(evidence)
    for script in scripts:
        flags = [
            node
            for node in script.nodes(ast.keyword)
            if isinstance(node, ast.keyword) and node.arg == "inplace" and ast.unparse(node.value) == "True"
        ]
        near = [flag for flag in flags if place is not None and flag.value.lineno == place[1]] or flags
        if len(near) == 1:
            changed = script.replace(near[0].value, "False")
            yield from offered("Work on a new tensor: inplace=False", "R", script, changed)
            return


@cure("dropout_too_high")
def dropout_too_high(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    p = finding.evidence.get("p")
    for script in every_script(evidence):
        changes: list[tuple[ast.AST, str]] = []
        for call in script.calls("Dropout", "Dropout1d", "Dropout2d", "Dropout3d"):
            given = keyword(call, "p") or (call.args[0] if call.args else None)
            if isinstance(given, ast.Constant) and given.value == p:
                changes.append((given, "0.2"))
        if changes:
            yield from offered("Drop less: p=0.2", "R", script, script.replace_all(changes))
            return


@cure("batchnorm_stats_stale")
def batchnorm_stats_stale(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    momentum = finding.evidence.get("momentum")
    for script in every_script(evidence):
        changes: list[tuple[ast.AST, str]] = []
        for call in script.calls("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"):
            given = keyword(call, "momentum")
            if isinstance(given, ast.Constant) and given.value == momentum:
                changes.append((given, "0.1"))
        if changes:
            title = "Let the running statistics follow: momentum=0.1, the default"
            yield from offered(title, "R", script, script.replace_all(changes))
            return


@cure("wrong_tensor_layout")
def wrong_tensor_layout(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    kind = str(finding.evidence.get("layer_class") or "")
    kinds = ("LSTM", "GRU", "RNN", "MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer")
    for script in every_script(evidence):
        wanted = [kind] if kind in kinds else kinds
        calls = [call for call in script.calls(*wanted) if keyword(call, "batch_first") is None]
        if len(calls) == 1 and calls[0].args:
            last = calls[0].keywords[-1].value if calls[0].keywords else calls[0].args[-1]
            changed = script.replace(last, f"{script.source(last)}, batch_first=True")
            yield from offered("Tell the layer that the batch comes first", "S", script, changed)
            return
