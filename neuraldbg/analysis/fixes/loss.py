"""Cures of losses and outputs: an activation taken away, another loss function, a sign, an axis, a shape."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called, keyword
from neuraldbg.analysis.fixes.placing import (
    at,
    every_script,
    imports_torch,
    is_module_call,
    layer_class,
    line_of,
    method_of,
    number,
    offered,
    products_at,
)
from neuraldbg.analysis.fixes.thresholds import with_scores
from neuraldbg.records import Call, Finding, Fix

_ELEMENTWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def _without_activation(finding: Finding, evidence: Evidence, module: str, function: str, title: str) -> Iterator[Fix]:
    for script, changed in _activation_gone(finding, evidence, module, function):
        yield from offered(title, "R", script, changed)


def _activation_gone(finding: Finding, evidence: Evidence, module: str, function: str) -> Iterator[tuple[Script, str]]:
    """Takes a final activation away: a module (an entry of a Sequential, an attribute that is called) where the layer
    of the finding is one, else the call of the function."""
    for script in _near_first(finding, evidence):
        if layer_class(finding, evidence) == module:
            called_as = [_drop_call(script, name) for name in _attributes_of(script, module)]
            ways = [_drop_entry(script, module), _drop_added(script, module), *called_as]
        else:
            ways = [_drop_call(script, function)]
        changed = next((way for way in ways if way is not None), None)
        if changed is not None:
            yield script, changed
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


def _drop_added(script: Script, module: str) -> str | None:
    """`model.add_module("prob", nn.Sigmoid())`, the last one that is added."""
    added = script.calls("add_module", "append")
    statement = script.statement(added[-1].lineno) if added else None
    last = added[-1].args[-1] if added and added[-1].args else None
    alone = isinstance(statement, ast.Expr) and statement.value is added[-1]
    right = alone and last is not None and called(last) == module
    return script.remove(statement) if right and statement is not None else None


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
    """What the script compares with 0.5 afterwards is a score then, and its middle is 0."""
    models = {str(fact["name"]).rpartition(".")[2].partition("#")[0] for fact in evidence.facts("model")}
    for script, changed in _activation_gone(finding, evidence, "Sigmoid", "sigmoid"):
        mended = with_scores(Script(script.file, changed), models)
        title = "Hand the raw scores to the loss: it applies the sigmoid itself"
        title += "" if mended in (None, changed) else "; a score is positive where its probability is above 0.5"
        yield from offered(title, "R", script, mended)


@cure("wrong_activation_last_layer")
def wrong_activation_last_layer(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    kind = str(finding.evidence.get("activation") or finding.op or "").lower()
    names = {"relu": ("ReLU", "relu"), "sigmoid": ("Sigmoid", "sigmoid"), "tanh": ("Tanh", "tanh")}
    names |= {"softmax": ("Softmax", "softmax")}
    if kind == "softmax" and finding.evidence.get("units") == 1:
        yield from _sigmoid_for_softmax(finding, evidence)
    elif kind in names and finding.evidence.get("loss") != "bce":  # which takes probabilities only
        yield from _without_activation(finding, evidence, *names[kind], "Leave the output as it is, for this target")


def _sigmoid_for_softmax(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """Over a single unit a softmax is always 1."""
    for script in _near_first(finding, evidence):
        made = script.calls("Softmax")
        if len(made) == 1 and layer_class(finding, evidence) == "Softmax":
            code = script.source(made[0].func).removesuffix("Softmax") + "Sigmoid()"
            yield from offered("A sigmoid for a single unit", "R", script, script.replace(made[0], code))
            return


@cure("wrong_loss_for_labels")
def wrong_loss_for_labels(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """Several ones in a row of the targets: each label is a question of its own."""
    if finding.evidence.get("loss") != "cross_entropy" or "ones_per_row" not in finding.evidence:
        return
    swaps = {"CrossEntropyLoss": "BCEWithLogitsLoss", "cross_entropy": "binary_cross_entropy_with_logits"}
    for script in _near_first(finding, evidence):
        calls = [call for call in script.calls(*swaps) if isinstance(call.func, ast.Attribute) and not call.keywords]
        if len(calls) == 1:
            old, new = called(calls[0]), swaps[called(calls[0])]
            code = script.source(calls[0].func).removesuffix(old) + new
            yield from offered(f"{new}: a yes or no for each label", "S", script, script.replace(calls[0].func, code))
            return


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
                new = f"{home}.{new}" if imports_torch(script) else new
            title = f"Use {swaps[called(calls[0])]}, which applies log-softmax itself"
            yield from offered(title, "R", script, script.replace(function, new))
            return


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
    yield from _divergence_turned(finding, evidence)


def _divergence_turned(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """`kl = 0.5 * sum(1 + logvar - mu**2 - logvar.exp())` at the line of the finding: the usual form has a minus."""
    place = at(finding, evidence)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.BinOp):
        return
    factor, body = statement.value.left, ast.unparse(statement.value.right)
    product = isinstance(statement.value.op, ast.Mult) and (number(factor) or 0) > 0
    if product and "1 + " in body and "exp()" in body:
        changed = place[0].replace(factor, f"-{place[0].source(factor)}")
        yield from offered("Minimise the divergence: give it its minus", "R", place[0], changed)


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
    """`loss(net(x), y)` with (N, 1) and (N,): the one with an axis more loses its last."""
    wider = _wider(finding)
    for script in _near_first(finding, evidence):
        pairs = [(call.args[0], call.args[1]) for call in script.calls(*_ELEMENTWISE) if len(call.args) >= 2]
        differences = [node for node in script.nodes(ast.BinOp) if isinstance(node, ast.BinOp)]
        minus = [node for node in differences if isinstance(node.op, ast.Sub) and _in_loss(script, node)]
        pairs = pairs or [(node.left, node.right) for node in minus]
        if wider is not None and len(pairs) == 1:
            wide = pairs[0][wider]
            title = f"Give both the same shape: squeeze the {('prediction', 'target')[wider]}"
            yield from offered(title, "R", script, script.replace(wide, f"{script.operand(wide)}.squeeze(-1)"))
            return
    yield from _squeezed_operand(finding, evidence, wider)


_OPERATIONS = {"Mul": ast.Mult, "Sub": ast.Sub, "Add": ast.Add, "Div": ast.Div}


def _squeezed_operand(finding: Finding, evidence: Evidence, wider: int | None) -> Iterator[Fix]:
    """`log_prob * advantage` of (N,) and (N, 1), in the operation that the graph says paired them."""
    facts = [fact for fact in evidence.facts("loss_input") if fact.get("operation") in _OPERATIONS]
    place = at(finding, evidence)
    if wider is None or place is None or not facts:
        return
    script = place[0]
    found = products_at(script, place[1], _OPERATIONS[facts[0]["operation"]])
    if len(found) == 1:
        slot = facts[0]["slot"] if wider == 0 else 1 - facts[0]["slot"]
        wide = (found[0].left, found[0].right)[slot]
        changed = script.replace(wide, f"{script.operand(wide)}.squeeze(-1)")
        yield from offered(f"Give both the same shape: squeeze {script.source(wide)}", "R", script, changed)


def _wider(finding: Finding) -> int | None:
    """0 where the prediction has one axis more, of length 1, at its end; 1 where the target has."""
    shapes = [str(finding.evidence.get(name) or "") for name in ("prediction_shape", "target_shape")]
    sizes = [[part for part in shape.strip("()").replace(" ", "").split(",") if part] for shape in shapes]
    for wide, narrow in ((0, 1), (1, 0)):
        if len(sizes[wide]) == len(sizes[narrow]) + 1 and sizes[wide][-1] == "1":
            return wide
    return None


def _in_loss(script: Script, node: ast.BinOp) -> bool:
    statement = script.statement(node.lineno)
    return isinstance(statement, ast.Assign) and "loss" in ast.unparse(statement.targets[0]).lower()


@cure("loss_reduction_scale")
def loss_reduction_scale(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    for script in every_script(evidence):
        summed = [
            node
            for node in script.nodes(ast.keyword)
            if isinstance(node, ast.keyword)
            and node.arg == "reduction"
            and ast.unparse(node.value) in ("'sum'", '"sum"')
        ]
        if len(summed) == 1 and not script.calls("sum"):  # of several, one may be a metric's
            changed = script.replace(summed[0].value, '"mean"')
            yield from offered('Average the loss: reduction="mean"', "R", script, changed)
            return
        place = line_of(evidence, Call.BACKWARD)
        if place is not None and place[0].file == script.file:
            sums = [call for call in script.calls("sum") if _is_loss_sum(script, call)]
            if len(sums) == 1 and isinstance(sums[0].func, ast.Attribute):
                owner = script.source(sums[0].func.value)
                yield from offered("Average the loss", "R", script, script.replace(sums[0], f"{owner}.mean()"))


def _is_loss_sum(script: Script, call: ast.Call) -> bool:
    statement = script.statement(call.lineno)
    name = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    return "loss" in name.lower() and not call.args and called(call) == "sum"
