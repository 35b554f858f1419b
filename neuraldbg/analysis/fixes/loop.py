"""Cures of the training loop: calls inserted, moved or taken away."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called, keyword
from neuraldbg.analysis.fixes.placing import at, inserted, line_of, method_of, offered, script_at
from neuraldbg.records import Call, Finding, Fix


def _optimizer(finding: Finding, evidence: Evidence) -> str | None:
    """What the user calls the optimizer."""
    said = finding.evidence.get("optimizer")
    if isinstance(said, str) and said.replace(".", "").replace("_", "").isalnum():
        return said
    names = [fact["name"] for fact in evidence.facts("optimizer")]
    return names[0] if names else None


@cure("missing_zero_grad")
def missing_zero_grad(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    name = _optimizer(finding, evidence)
    if name is not None:
        title = f"Clear the gradients before each backward: {name}.zero_grad()"
        yield from inserted(line_of(evidence, Call.BACKWARD), f"{name}.zero_grad()", title, "R")


@cure("optimizer_step_missing")
def optimizer_step_missing(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    name = _optimizer(finding, evidence)
    if name is not None:
        title = f"Make the update after each backward: {name}.step()"
        yield from inserted(line_of(evidence, Call.BACKWARD), f"{name}.step()", title, "R", after=True)


@cure("backward_missing")
def backward_missing(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = line_of(evidence, Call.STEP)
    if place is None:
        return
    script, line = place
    step = script.statement(line)
    loss = None if step is None else _loss_name(script, step)
    if step is not None and loss is not None:
        title = f"Compute the gradients before the update: {loss}.backward()"
        yield from offered(title, "R", script, script.insert(step, f"{loss}.backward()"))


def _loss_name(script: Script, before: ast.stmt) -> str | None:
    """The variable of the loss: the last one assigned before a statement whose name or value says so."""
    found = None
    for statement in script.block_of(before):
        if statement.lineno >= before.lineno:
            break
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if re.search(r"loss|cost|objective|nll|mse", name) or re.search(
                r"loss|criterion|entropy", ast.unparse(statement.value)
            ):
                found = name
    return found


@cure("step_order_wrong")
def step_order_wrong(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    zero, back, step = (line_of(evidence, each) for each in (Call.ZERO_GRAD, Call.BACKWARD, Call.STEP))
    if back is None:
        return
    script, backward = back[0], back[0].statement(back[1])
    if backward is None:
        return
    if step is not None and step[0].file == script.file and step[1] < back[1]:
        moving = script.statement(step[1])
        changed = None if moving is None else script.move(moving, backward, after=True)
        yield from offered("Make the update after the backward", "R", script, changed)
    elif zero is not None and zero[0].file == script.file and zero[1] > back[1]:
        clearing = script.statement(zero[1])
        changed = None if clearing is None else script.move(clearing, backward, after=False)
        yield from offered("Clear the gradients before the backward, not after it", "R", script, changed)


@cure("parameters_not_in_optimizer")
def parameters_not_in_optimizer(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place, name = at(finding, evidence), _optimizer(finding, evidence)
    left_out = _left_out(finding)
    if place is None or name is None or left_out is None:
        return
    script, line = place
    statement = script.statement(line)
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return
    code = f'{name}.add_param_group({{"params": {left_out}.parameters()}})'
    title = f"Give the optimizer the parameters of {left_out} as well"
    yield from offered(title, "R", script, script.insert(statement, code, after=True))


def _left_out(finding: Finding) -> str | None:
    """The expression for the module that the optimizer lacks: the whole model, or its first part that is left out."""
    model, share = finding.evidence.get("model"), finding.evidence.get("share_of_model")
    if not isinstance(model, str):
        return None
    if isinstance(share, float) and share > 0.999:
        return model
    layer = (finding.layer or "").removeprefix(f"{model}.")
    parts = [f"[{part}]" if part.isdigit() else f".{part}" for part in layer.split(".") if part]
    return f"{model}{''.join(parts)}" if parts else model


@cure("unregistered_parameters")
def unregistered_parameters(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    attribute = str(finding.evidence.get("attribute") or "").rpartition(".")[2]
    for fact in evidence.facts("source_file"):
        script = Script(fact["file"], fact["text"])
        for node in script.nodes(ast.Assign):
            if not isinstance(node, ast.Assign) or not _is_self(node.targets[0], attribute):
                continue
            kind = {ast.List: "ModuleList", ast.ListComp: "ModuleList", ast.Dict: "ModuleDict"}.get(type(node.value))
            if kind is not None:
                prefix = "nn." if re.search(r"\bnn\b", fact["text"]) else "torch.nn."
                changed = script.replace(node.value, f"{prefix}{kind}({script.source(node.value)})")
                yield from offered(f"Keep the modules in an nn.{kind}", "S", script, changed)
                return


def _is_self(target: ast.expr, attribute: str) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == attribute and ast.unparse(target.value) == "self"


@cure("detached_graph")
def detached_graph(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    changes: list[tuple[ast.AST, str]] = []
    for node in script.calls("detach", within=(line, line)):
        owner = method_of(node)
        if owner is not None and not node.args:
            changes.append((node, owner))
    for each in script.nodes(ast.Attribute):
        if isinstance(each, ast.Attribute) and each.attr == "data" and each.lineno == line:
            changes.append((each, script.source(each.value)))
    if len(changes) == 1:
        yield from offered("Leave the tensor in the graph", "S", script, script.replace_all(changes))


@cure("no_grad_in_training")
def no_grad_in_training(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    blocks = [
        node
        for node in script.nodes(ast.With)
        if isinstance(node, ast.With) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    for block in sorted(blocks, key=lambda node: -node.lineno):
        item = block.items[0].context_expr
        if len(block.items) == 1 and called(item) in ("no_grad", "inference_mode"):
            changed = script.replace(item, "torch.enable_grad()")
            yield from offered("Leave the gradients on for the training forward", "R", script, changed)
            return


@cure("eval_mode_in_training")
def eval_mode_in_training(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    yield from _mode(finding, evidence, "train", "Switch back to training mode before the training pass")


@cure("train_mode_in_eval")
def train_mode_in_eval(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    yield from _mode(finding, evidence, "eval", "Switch to evaluation mode before evaluating")


def _mode(finding: Finding, evidence: Evidence, mode: str, title: str) -> Iterator[Fix]:
    model = finding.evidence.get("model")
    if isinstance(model, str) and model.replace(".", "").replace("_", "").isalnum():
        yield from inserted(at(finding, evidence), f"{model}.{mode}()", f"{title}: {model}.{mode}()", "R")


@cure("retained_graph_memory_leak")
def retained_graph_memory_leak(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    statement = script.statement(line)
    if isinstance(statement, ast.AugAssign):
        changed = script.replace(statement.value, f"{script.operand(statement.value)}.detach()")
        yield from offered("Add up the value, not the graph", "S", script, changed)
    for node in script.calls("append", within=(line, line)):
        if node.args and called(node.args[0]) not in ("item", "detach", "float"):
            changed = script.replace(node.args[0], f"{script.operand(node.args[0])}.detach()")
            yield from offered("Keep the value, not the graph", "S", script, changed)
            return


@cure("missing_no_grad_in_eval")
def missing_no_grad_in_eval(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    statement = script.statement(line)
    if statement is None or statement.lineno != statement.end_lineno:
        return
    code = script.source(statement)
    changed = script.replace(statement, f"with torch.no_grad():\n{script.indent(statement)}    {code}")
    yield from offered("Evaluate without building graphs: torch.no_grad()", "R", script, changed)


@cure("hidden_state_not_detached")
def hidden_state_not_detached(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    name = finding.evidence.get("state")
    if isinstance(name, str) and name.isidentifier():
        parts = f"tuple(part.detach() for part in {name})"  # an LSTM carries two
        code = f"{name} = {parts} if isinstance({name}, tuple) else {name}.detach()"
        title = "Cut the graph of the carried state after each backward"
        yield from inserted(line_of(evidence, Call.BACKWARD) or at(finding, evidence), code, title, "S", after=True)


@cure("checkpoint_aliases_live_weights")
def checkpoint_aliases_live_weights(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    load = next(iter(script.calls("load_state_dict", within=(1, line))[-1:]), None)
    wanted = None if load is None or not load.args else script.source(load.args[0])
    for node in script.nodes(ast.Assign):
        if not isinstance(node, ast.Assign) or called(node.value) != "state_dict":
            continue
        if any(script.source(target) == wanted for target in node.targets):
            copied = f"{{name: value.clone() for name, value in {script.source(node.value)}.items()}}"
            yield from offered("Keep copies of the weights", "S", script, script.replace(node.value, copied))
            return


@cure("checkpoint_not_loaded")
def checkpoint_not_loaded(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = script_at(evidence, finding.source)
    if place is None:
        return
    script, line = place
    for node in script.calls("load_state_dict", within=(line, line)):
        missing, unexpected = (str(finding.evidence.get(k) or "") for k in ("first_missing", "first_unexpected"))
        strict = keyword(node, "strict")
        if not node.args or strict is None or not missing or not unexpected:
            continue
        state = script.source(node.args[0])
        changes: list[tuple[ast.AST, str]] = [(strict, "True")]
        if unexpected.endswith(f".{missing}"):
            prefix = unexpected[: -len(missing)]
            mine = f'{{k.removeprefix("{prefix}"): v for k, v in {state}.items() if k.startswith("{prefix}")}}'
            changes.append((node.args[0], mine))
        elif missing.endswith(f".{unexpected}"):
            prefix = missing[: -len(unexpected)]
            changes.append((node.args[0], f'{{"{prefix}" + k: v for k, v in {state}.items()}}'))
        else:
            return
        yield from offered(
            "Make the names fit, and let a mismatch be an error", "S", script, script.replace_all(changes)
        )
