"""Cures of losses and outputs: an activation taken away, another loss function, a sign, an axis, a shape."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called, keyword
from neuraldbg.analysis.fixes.placing import at, every_script, is_module_call, method_of, offered
from neuraldbg.records import Finding, Fix


def _without_activation(finding: Finding, evidence: Evidence, module: str, function: str, title: str) -> Iterator[Fix]:
    """Takes a final activation away: an entry of a Sequential, a functional call, or a module attribute's call."""
    for script in _near_first(finding, evidence):
        changed = _drop_entry(script, module) or _drop_call(script, function)
        if changed is not None:
            yield from offered(title, "R", script, changed)
            return
        for name in _attributes_of(script, module):
            changed = _drop_call(script, name)
            if changed is not None:
                yield from offered(title, "R", script, changed)
                return


def _near_first(finding: Finding, evidence: Evidence) -> list[Script]:
    place = at(finding, evidence)
    first = [] if place is None else [place[0]]
    return [*first, *(each for each in every_script(evidence) if all(each.file != one.file for one in first))]


def _drop_entry(script: Script, module: str) -> str | None:
    """The last such module of a Sequential, with its comma."""
    entries = [
        (call, at)
        for call in script.calls("Sequential")
        for at, entry in enumerate(call.args)
        if called(entry) == module and at == len(call.args) - 1 and at > 0
    ]
    if len(entries) != 1:
        return None
    call, at = entries[0]
    before, entry = call.args[at - 1], call.args[at]
    own_line = script.lines[entry.lineno - 1].strip().rstrip(",") == script.source(entry)
    if own_line and entry.lineno == entry.end_lineno and before.end_lineno != entry.lineno:
        return "".join([*script.lines[: entry.lineno - 1], *script.lines[entry.lineno :]])
    begin, end = script.span(before)[1], script.span(entry)[1]
    return script.text[:begin] + script.text[end:]


def _drop_call(script: Script, function: str) -> str | None:
    """`F.softmax(x, dim=1)`, `torch.sigmoid(x)`, `x.softmax(1)`, `self.softmax(x)` -> `x`; only where there is one."""
    calls = script.calls(function)
    if len(calls) != 1:
        return None
    call = calls[0]
    owner = method_of(call)
    plain = is_module_call(call) or owner in ("self", None)
    inner = script.source(call.args[0]) if call.args and plain else owner
    return None if inner is None else script.replace(call, inner)


def _attributes_of(script: Script, module: str) -> list[str]:
    """Names under which a module of a class is kept: `self.softmax = nn.Softmax(1)`."""
    return [
        node.targets[0].attr
        for node in script.nodes(ast.Assign)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and called(node.value) == module
    ]


@cure("softmax_before_cross_entropy")
def softmax_before_cross_entropy(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    title = "Hand the raw scores to the loss: it applies log-softmax itself"
    yield from _without_activation(finding, evidence, "Softmax", "softmax", title)


@cure("sigmoid_before_bce_with_logits")
def sigmoid_before_bce_with_logits(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    title = "Hand the raw scores to the loss: it applies the sigmoid itself"
    yield from _without_activation(finding, evidence, "Sigmoid", "sigmoid", title)


@cure("wrong_activation_last_layer")
def wrong_activation_last_layer(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    kind = str(finding.evidence.get("activation") or finding.op or "").lower()
    names = {"relu": ("ReLU", "relu"), "sigmoid": ("Sigmoid", "sigmoid"), "tanh": ("Tanh", "tanh")}
    names |= {"softmax": ("Softmax", "softmax")}
    if kind in names and finding.evidence.get("loss") != "bce":  # which takes probabilities only
        yield from _without_activation(finding, evidence, *names[kind], "Leave the output as it is, for this target")


@cure("missing_log_softmax")
def missing_log_softmax(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    swaps = {"nll_loss": "cross_entropy", "NLLLoss": "CrossEntropyLoss"}
    for script in every_script(evidence):
        calls = script.calls(*swaps)
        if len(calls) == 1:
            function = calls[0].func
            new = script.source(function).removesuffix(called(calls[0])) + swaps[called(calls[0])]
            if isinstance(function, ast.Name):  # imported by its own name: the other one may not be
                home = "torch.nn.functional" if new[0].islower() else "torch.nn"
                new = f"{home}.{new}" if _imports_torch(script) else new
            title = f"Use {swaps[called(calls[0])]}, which applies log-softmax itself"
            yield from offered(title, "R", script, script.replace(function, new))
            return


def _imports_torch(script: Script) -> bool:
    imports = [node for node in script.nodes(ast.Import) if isinstance(node, ast.Import)]
    return any(
        name.name.partition(".")[0] == "torch" and name.asname is None for node in imports for name in node.names
    )


@cure("loss_sign_flipped")
def loss_sign_flipped(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    if finding.evidence.get("sign") == 1.0:
        return  # a minus is missing, and a loss has more than one place for it
    for script in _near_first(finding, evidence):
        turned = [
            node
            for node in script.nodes(ast.UnaryOp)
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _is_loss(node.operand)
        ]
        if len(turned) == 1:
            changed = script.replace(turned[0], script.source(turned[0].operand))
            yield from offered("Minimise the loss: take the minus away", "R", script, changed)
            return


def _is_loss(node: ast.expr) -> bool:
    name = called(node) or (node.id if isinstance(node, ast.Name) else "")
    return any(word in name.lower() for word in ("loss", "entropy", "criterion", "kl_div", "mse"))


@cure("wrong_softmax_dim")
def wrong_softmax_dim(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    for script in _near_first(finding, evidence):
        calls = script.calls("softmax", "log_softmax", "Softmax", "LogSoftmax")
        near = [call for call in calls if place is not None and call.lineno == place[1]] or calls
        if len(near) != 1:
            continue
        dim = keyword(near[0], "dim") or _second_dim(near[0])
        if dim is not None:
            yield from offered("Take the softmax over the last axis", "R", script, script.replace(dim, "-1"))
            return


def _second_dim(call: ast.Call) -> ast.expr | None:
    """The positional dim: first for a method or a module, second for a function."""
    position = 1 if is_module_call(call) and called(call) in ("softmax", "log_softmax") else 0
    return call.args[position] if len(call.args) > position else None


@cure("broadcast_shape_bug")
def broadcast_shape_bug(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """`loss(net(x), y)` with (N, 1) and (N,): the prediction loses its last axis."""
    for script in _near_first(finding, evidence):
        calls = script.calls("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
        if len(calls) == 1 and len(calls[0].args) >= 2:
            wide = calls[0].args[0]
            changed = script.replace(wide, f"{script.source(wide)}.squeeze(-1)")
            yield from offered("Give both the same shape: squeeze the prediction", "R", script, changed)
            return
        differences = [
            node
            for node in script.nodes(ast.BinOp)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _in_loss(script, node)
        ]
        if len(differences) == 1:
            left = differences[0].left
            changed = script.replace(left, f"{script.source(left)}.squeeze(-1)")
            yield from offered("Give both the same shape: squeeze the prediction", "R", script, changed)
            return


def _in_loss(script: Script, node: ast.BinOp) -> bool:
    statement = script.statement(node.lineno)
    return isinstance(statement, ast.Assign) and "loss" in ast.unparse(statement.targets[0]).lower()
