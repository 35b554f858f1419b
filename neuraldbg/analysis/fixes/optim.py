"""Cures of step sizes: a number in the optimizer's constructor, a clip before the step, a scheduler moved."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called, keyword
from neuraldbg.analysis.fixes.placing import assigned_number, every_script, line_of, number, offered, write
from neuraldbg.records import Call, Finding, Fix

CLIP_QUANTILE = 0.9  # of the observed norms: one step in ten is clipped


def _constructors(evidence: Evidence, finding: Finding) -> Iterator[tuple[Script, ast.Call]]:
    """Where the optimizer of a finding is made (any, where it names none)."""
    wanted = finding.evidence.get("optimizer")
    kinds = {fact["class"] for fact in evidence.facts("optimizer") if wanted in (None, fact["name"])}
    kinds = kinds or {fact["class"] for fact in evidence.facts("optimizer")}
    for script in every_script(evidence):
        for call in script.calls(*kinds):
            yield script, call


def _change_number(
    finding: Finding, evidence: Evidence, name: str, new: float, title: str, position: int | None = None
) -> Iterator[Fix]:
    """Another literal for one argument of the optimizer."""
    for script, call in _constructors(evidence, finding):
        given = keyword(call, name)
        if given is None and position is not None and len(call.args) > position:
            given = call.args[position]
        literal = assigned_number(script, given)
        if literal is not None:
            yield from offered(title, "R", script, script.replace(literal, write(new)))
        elif given is None:
            closing = [*call.args, *(each.value for each in call.keywords)]
            if closing:
                last = closing[-1]
                yield from offered(
                    title, "R", script, script.replace(last, f"{script.source(last)}, {name}={write(new)}")
                )
        return


def _lr(evidence: Evidence) -> float | None:
    values = evidence.curve("lr").values
    return float(values[0]) if len(values) and np.isfinite(values[0]) else None


def _better_factor(finding: Finding) -> float | None:
    """The factor of the learning rate that the experiment learned best with."""
    arms = {
        name.rpartition("lr_x")[2]: value
        for name, value in finding.evidence.items()
        if "lr_x" in name and isinstance(value, float | int) and np.isfinite(value)
    }
    best = min(arms, key=lambda factor: arms[factor], default=None)
    return float(best) if best is not None and best.replace(".", "").isdigit() else None


@cure("learning_rate_too_high")
def learning_rate_too_high(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    lr = _lr(evidence)
    if lr:
        new = lr * (_better_factor(finding) or 0.1)
        yield from _change_number(finding, evidence, "lr", new, f"Lower the learning rate to {write(new)}", 1)


@cure("learning_rate_too_low")
def learning_rate_too_low(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    lr = _lr(evidence)
    if lr:
        new = lr * (_better_factor(finding) or 100)
        yield from _change_number(finding, evidence, "lr", new, f"Raise the learning rate to {write(new)}", 1)


@cure("momentum_too_high")
def momentum_too_high(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    yield from _change_number(finding, evidence, "momentum", 0.9, "Lower the momentum to 0.9", 2)


@cure("weight_decay_too_high")
def weight_decay_too_high(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    yield from _change_number(finding, evidence, "weight_decay", 0.0, "Take the weight decay away, then try 1e-4")


def clip_value(evidence: Evidence) -> float | None:
    """A limit from the observed gradient norms: what nine of ten steps stay below."""
    norms = evidence.curve("grad_norm").values
    finite = norms[np.isfinite(norms) & (norms > 0)]
    return float(np.quantile(finite, CLIP_QUANTILE)) if len(finite) >= 5 else None


@cure("missing_gradient_clipping")
def missing_gradient_clipping(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    yield from _clip_before_step(evidence)


@cure("exploding_gradient")
def exploding_gradient(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    yield from _clip_before_step(evidence)


def _clip_before_step(evidence: Evidence) -> Iterator[Fix]:
    limit, place = clip_value(evidence), line_of(evidence, Call.STEP)
    models = [fact["name"] for fact in evidence.facts("model")]
    if limit is None:
        return
    title = f"Clip the gradient norm at {write(limit)}, which nine of ten steps of this run stayed below"
    if place is None or not models or evidence.count(Call.CLIP):
        yield Fix(title, None, "R")
        return
    script, line = place
    statement = script.statement(line)
    code = f"torch.nn.utils.clip_grad_norm_({models[0]}.parameters(), {write(limit)})"
    changed = None if statement is None else script.insert(statement, code)
    yield from offered(title, "R", script, changed) if script.diff(changed) else iter([Fix(title, None, "R")])


@cure("gradient_clip_misuse")
def gradient_clip_misuse(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    clip, step = line_of(evidence, Call.CLIP), line_of(evidence, Call.STEP)
    if clip is None:
        return
    script, line = clip
    statement = script.statement(line)
    if step is not None and statement is not None and step[0].file == script.file and step[1] < line:
        target = script.statement(step[1])
        if target is not None and script.block_of(target) == script.block_of(statement):
            changed = script.move(statement, target, after=False)
            yield from offered("Clip before the update, not after it", "R", script, changed)
            return
    limit = clip_value(evidence)
    for call in script.calls("clip_grad_norm_", within=(line, line)):
        given = keyword(call, "max_norm") or (call.args[1] if len(call.args) > 1 else None)
        literal = assigned_number(script, given)
        if literal is not None and limit is not None:
            title = f"Raise max_norm to {write(limit)}, which nine of ten steps of this run stayed below"
            yield from offered(title, "R", script, script.replace(literal, write(limit)))


@cure("gradient_accumulation_not_scaled")
def gradient_accumulation_not_scaled(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    fact, place = evidence.fact("accumulation"), line_of(evidence, Call.BACKWARD)
    count = None if fact is None else fact.get("backwards_per_update")
    if place is None or not count or count < 2:
        return
    script, line = place
    for call in script.calls("backward", within=(line, line)):
        if isinstance(call.func, ast.Attribute):
            loss = script.source(call.func.value)
            by = _accumulation_name(script, int(count)) or str(int(count))
            changed = script.replace(call.func.value, f"({loss} / {by})")
            yield from offered(f"Divide each loss by the {int(count)} that are added up", "R", script, changed)


def _accumulation_name(script: Script, count: int) -> str | None:
    """A constant of the user's that holds the number of backwards per update."""
    for node in script.nodes(ast.Assign):
        if isinstance(node, ast.Assign) and number(node.value) == count and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if any(word in name.lower() for word in ("accum", "micro", "every")):
                return name
    return None


@cure("scheduler_misuse")
def scheduler_misuse(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    """Stepped in every batch where once per epoch was meant: one block further out."""
    for script in every_script(evidence):
        steps = [call for call in script.calls("step") if "sched" in ast.unparse(call.func).lower()]
        if len(steps) != 1:
            continue
        statement = script.statement(steps[0].lineno)
        loop = None if statement is None else _loop_around(script, statement)
        outer = None if loop is None else _loop_around(script, loop)
        if statement is None or loop is None or outer is None or not isinstance(outer, ast.For | ast.While):
            return
        changed = script.move(statement, loop, after=True)
        yield from offered("Step the scheduler once per epoch, after the batches", "S", script, changed)
        return


def _loop_around(script: Script, statement: ast.stmt) -> ast.stmt | None:
    loops = [
        node
        for node in script.nodes(ast.For, ast.While)
        if isinstance(node, ast.For | ast.While)
        and node is not statement
        and node.lineno <= statement.lineno
        and (node.end_lineno or 0) >= (statement.end_lineno or 0)
    ]
    return max(loops, key=lambda node: node.lineno, default=None)


@cure("loss_reduction_scale")
def loss_reduction_scale(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    for script in every_script(evidence):
        for node in script.nodes(ast.keyword):
            if (
                isinstance(node, ast.keyword)
                and node.arg == "reduction"
                and ast.unparse(node.value) in ("'sum'", '"sum"')
            ):
                changed = script.replace(node.value, '"mean"')
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
