"""Cures of the network: another initialisation or activation, a flag or number of a layer, weights tied again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.causes.arch_reading import activations
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called, keyword, with_argument
from neuraldbg.analysis.fixes.placing import at, every_script, is_module_call, made_as, number, offered
from neuraldbg.records import Finding, Fix

RECURRENT = ("LSTM", "GRU", "RNN")
ATTENDING = ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer")
WEIGHT_INITS = ("constant_", "normal_", "uniform_", "zeros_", "ones_", "trunc_normal_")
DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "dropout")
BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
SATURATING = {"sigmoid": "Sigmoid", "tanh": "Tanh"}


@cure("bad_init")
def bad_init(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    of_bias = "bias" in finding.evidence
    kinds = {fact["op"] for fact in activations(evidence)}
    family = "xavier" if kinds <= {"Tanh", "Sigmoid"} else "kaiming"
    for script in every_script(evidence):
        part = "bias" if of_bias else "weight"
        calls = [call for call in script.calls(*WEIGHT_INITS) if _initialises(script, call, part, str(finding.layer))]
        if len(calls) != 1 or not isinstance(calls[0].func, ast.Attribute):
            continue
        new = "zeros_" if of_bias else f"{family}_{'normal_' if called(calls[0]) == 'normal_' else 'uniform_'}"
        code = f"{script.source(calls[0].func.value)}.{new}({script.source(calls[0].args[0])})"
        title = "Start the biases at zero" if of_bias else f"Start with {new}, which fits the width of the layers"
        yield from offered(title, "R", script, script.replace(calls[0], code))
        return


def _initialises(script: Script, call: ast.Call, part: str, layer: str) -> bool:
    """`nn.init.normal_(m.weight, ...)` of whatever m is, or of the layer itself: `self.hidden.weight`."""
    owner = script.source(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    given = script.source(call.args[0]) if call.args else ""
    mine = not given.startswith("self.") or given == f"self.{layer.rpartition('.')[2]}.{part}"
    return owner.endswith("init") and given.endswith(f".{part}") and mine


@cure("saturating_activation")
def saturating_activation(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """Only where one line makes all of them: of several, one may be the output's."""
    module = SATURATING.get(str(finding.evidence.get("activation")).lower())
    for script in every_script(evidence):
        if module is None or script.calls("BCELoss", "binary_cross_entropy"):
            continue
        calls = [*script.calls(module), *script.calls(module.lower())]
        if len(calls) == 1 and isinstance(calls[0].func, ast.Attribute):
            name = "ReLU" if called(calls[0]) == module else "relu"
            code = f"{script.source(calls[0].func.value)}.{name}"
            yield from offered(f"{name} instead of {module}", "S", script, script.replace(calls[0].func, code))
            return


@cure("weight_tying_lost")
def weight_tying_lost(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """After the block that makes one of the two anew: `self.head = nn.Linear(...)`."""
    place = at(finding, evidence)
    first, second = (str(finding.evidence.get(name)) for name in ("first", "second"))
    statement = None if place is None else place[0].statement(place[1])
    if place is None or not isinstance(statement, ast.Assign):
        return
    script, target = place[0], place[0].source(statement.targets[0])
    owner = second.rpartition(".")[0]
    if target == f"self.{owner}" and made_as(script, first.rpartition(".")[0]):
        last = script.block_of(statement)[-1]
        code = f"self.{second} = self.{first}"
        changed = None if isinstance(last, ast.Return) else script.insert(last, code, after=True)
        yield from offered(f"Tie them again: {code}", "R", script, changed)


@cure("wrong_tensor_layout")
def wrong_tensor_layout(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    kind = str(finding.evidence.get("layer_class") or "")
    for script in every_script(evidence):
        if kind in (*RECURRENT, *ATTENDING):
            calls = [call for call in script.calls(kind) if keyword(call, "batch_first") is None]
            if len(calls) == 1:
                changed = with_argument(script, calls[0], "batch_first=True")
                yield from offered("Tell the layer that the batch comes first", "S", script, changed)
        else:
            views = [call for call in script.calls("view", "reshape") if _of_time_first(script, call)]
            if len(views) == 1 and isinstance(views[0].func, ast.Attribute):
                code = f"{script.source(views[0].func.value)}.transpose(0, 1).reshape"
                title = "Bring the batch to the front before the rows are made"
                yield from offered(title, "S", script, script.replace(views[0].func, code))


def _of_time_first(script: Script, call: ast.Call) -> bool:
    """`out.view(-1, ...)` where `out, _ = self.rnn(x)` and the layer was made without batch_first."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(owner, ast.Name) or not call.args or number(call.args[0]) != -1:
        return False
    function = script.function_around(call)
    for node in ast.walk(function) if function is not None else ():
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
            continue
        first, layer = node.targets[0].elts[0], node.value.func if isinstance(node.value, ast.Call) else None
        if isinstance(first, ast.Name) and first.id == owner.id and isinstance(layer, ast.Attribute):
            made = made_as(script, layer.attr)
            return len(made) == 1 and called(made[0].value) in RECURRENT and not _batch_first(made[0].value)
    return False


def _batch_first(made: ast.expr) -> bool:
    return isinstance(made, ast.Call) and keyword(made, "batch_first") is not None


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
    yield from _other_number(finding, evidence, "p", "0.2", "Drop less: p=0.2")


@cure("batchnorm_stats_stale")
def batchnorm_stats_stale(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    title = "Let the running statistics follow: momentum=0.1, the default"
    yield from _other_number(finding, evidence, "momentum", "0.1", title)


def _other_number(finding: Finding, evidence: Evidence, name: str, new: str, title: str) -> Iterator[Fix]:
    """Another value for an argument of layers, given as a literal or as the default of a parameter."""
    now = finding.evidence.get(name)
    layers = DROPOUTS if name == "p" else BATCH_NORMS
    for script in every_script(evidence):
        changes: dict[ast.AST, str] = {}
        for call in script.calls(*layers):
            position = 1 if is_module_call(call) else 0
            given = keyword(call, name) or (call.args[position] if name == "p" and len(call.args) > position else None)
            literal = _default_of(script, given) if isinstance(given, ast.Name) else given
            if literal is not None and number(literal) == now:
                changes[literal] = new
        if changes:
            yield from offered(title, "R", script, script.replace_all(list(changes.items())))
            return


def _default_of(script: Script, name: ast.Name) -> ast.expr | None:
    """The default of the parameter of the function around that a name stands for."""
    function = script.function_around(name)
    if function is None:
        return None
    named = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    defaults = zip(named, function.args.defaults, strict=True)
    return next((value for parameter, value in defaults if parameter.arg == name.id), None)
