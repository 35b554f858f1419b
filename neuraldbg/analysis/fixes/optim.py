"""Cures of step sizes: a number in the optimizer's constructor, a clip before the step, a scheduler moved."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.causes.loop_reading import stepping
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called, keyword
from neuraldbg.analysis.fixes.placing import assigned_number, every_script, line_of, number, offered, write
from neuraldbg.analysis.fixes.precision import unscaled_before_clip
from neuraldbg.records import Call, Finding, Fix

GUESSED = ": a guess that no experiment has tried"
CLIP_QUANTILE = 0.9  # of the observed norms: one step in ten is clipped
USUAL_VALUE = 1.0  # of a limit for single elements


def _constructors(evidence: Evidence, finding: Finding) -> Iterator[tuple[Script, ast.Call]]:
    """Where the optimizer of a finding is made (any, where it names none)."""
    wanted = finding.evidence.get("optimizer")
    kinds = {fact["class"] for fact in evidence.facts("optimizer") if wanted in (None, fact["name"])}
    kinds = kinds or {fact["class"] for fact in evidence.facts("optimizer")}
    found = [(script, call) for script in every_script(evidence) for call in script.calls(*kinds)]
    if wanted is not None and len(found) > 1:
        found = [one for one in found if _assigned_to(*one) == wanted]
    yield from found


def _assigned_to(script: Script, call: ast.Call) -> str | None:
    """`head_opt` of `head_opt = Adam(...)`, and of `self.head_opt = Adam(...)`."""
    for node in script.nodes(ast.Assign):
        if isinstance(node, ast.Assign) and node.value is call:
            return script.source(node.targets[0]).rpartition(".")[2]
    return None


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


def rate_of(finding: Finding, evidence: Evidence) -> float | None:
    if len(stepping(evidence)) > 1:  # the experiment changed all rates together: one may stand out all the same
        named = finding.evidence.get("lr") if "optimizer" in finding.evidence else None
        return float(named) if isinstance(named, float | int) else None
    values = evidence.curve("lr").values
    return float(values[0]) if len(values) and np.isfinite(values[0]) else None


def better_factor(finding: Finding) -> float | None:
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
    lr = rate_of(finding, evidence)
    if lr:
        known = better_factor(finding)
        new = lr * (known or 0.1)
        title = f"Lower the learning rate to {write(new)}{'' if known else GUESSED}"
        yield from _change_number(finding, evidence, "lr", new, title, 1)


@cure("learning_rate_too_low")
def learning_rate_too_low(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    lr = rate_of(finding, evidence)
    if lr:
        known = better_factor(finding)
        new = lr * (known or 100)
        title = f"Raise the learning rate to {write(new)}{'' if known else GUESSED}"
        yield from _change_number(finding, evidence, "lr", new, title, 1)


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
    if place is None or len(models) != 1 or evidence.count(Call.CLIP):
        yield Fix(title, None, "R")
        return
    script, line = place
    statement = script.statement(line)
    code = f"torch.nn.utils.clip_grad_norm_({models[0]}.parameters(), {write(limit)})"
    changed = None if statement is None else script.insert(statement, code)
    yield from offered(title, "R", script, changed) if script.diff(changed) else iter([Fix(title, None, "R")])


@cure("gradient_clip_misuse")
def gradient_clip_misuse(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
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
    usual = _usual_norm(finding)
    for call in script.calls("clip_grad_norm_", within=(line, line)):
        given = keyword(call, "max_norm") or (call.args[1] if len(call.args) > 1 else None)
        literal = assigned_number(script, given)
        if literal is not None and usual is not None:
            title = f"Raise max_norm to {write(usual)}, the usual gradient norm before the clip"
            yield from offered(title, "R", script, script.replace(literal, write(usual)))
    if usual is None:
        yield from _value_limit(finding, script, line)
        yield from unscaled_before_clip(evidence)


def _value_limit(finding: Finding, script: Script, line: int) -> Iterator[Fix]:
    """Of single elements. What they were before the clip is not recorded; that they do without one is."""
    limit = finding.evidence.get("limit")
    if "probe_loss_unclipped" not in finding.evidence or not isinstance(limit, float | int) or limit >= USUAL_VALUE:
        return
    for call in script.calls("clip_grad_value_", within=(line, line)):
        given = keyword(call, "clip_value") or (call.args[1] if len(call.args) > 1 else None)
        literal = assigned_number(script, given)
        if literal is not None:
            title = f"Raise clip_value to {write(USUAL_VALUE)}: without any limit the same batches are learned"
            yield from offered(title, "R", script, script.replace(literal, write(USUAL_VALUE)))


def _usual_norm(finding: Finding) -> float | None:
    """Before the clip: what was recorded afterwards is the limit itself."""
    over, limit = finding.evidence.get("median_norm_over_limit"), finding.evidence.get("limit")
    known = isinstance(over, float | int) and isinstance(limit, float | int)
    return float(over) * float(limit) if known and over and limit else None


@cure("missing_warmup")
def missing_warmup(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """A LinearLR beside the optimizer, stepped after each update; not where a schedule is at work already."""
    step, made = line_of(evidence, Call.STEP), list(_constructors(evidence, finding))
    if step is None or len(made) != 1 or evidence.facts("scheduler"):
        return
    script, after = step[0], step[0].statement(step[1])
    built = script.statement(made[0][1].lineno)
    if after is None or not isinstance(built, ast.Assign) or made[0][0].file != script.file:
        return
    name = script.source(built.targets[0])
    if script.function_around(built) is not script.function_around(after) or script.source(after) != f"{name}.step()":
        return
    length = max(10, evidence.updates // 5)
    code = f"warmup = torch.optim.lr_scheduler.LinearLR({name}, start_factor=0.01, total_iters={length})"
    changed = script.insert(after, "warmup.step()", after=True)
    changed = None if changed is None else Script(script.file, changed).insert(built, code, after=True)
    yield from offered(f"Reach the full rate over the first {length} updates", "R", script, changed)


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


@cure("accumulation_token_imbalance")
def accumulation_token_imbalance(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    """`cross_entropy(..., targets) / len(window)` in `for inputs, targets in window`: the sum of the losses over the
    number of valid targets of the whole window."""
    place = line_of(evidence, Call.BACKWARD)
    backward = None if place is None else place[0].statement(place[1])
    loop = None if place is None or backward is None else place[0].loop_around(backward)
    if place is None or not isinstance(loop, ast.For):
        return
    script, window = place[0], place[0].source(loop.iter)
    for node in ast.walk(loop):
        mean = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and called(node.left) == "cross_entropy"
        if not mean or not isinstance(node, ast.BinOp) or script.source(node.right) != f"len({window})":
            continue
        targets = _root(node.left.args[1]) if isinstance(node.left, ast.Call) and len(node.left.args) == 2 else None
        if targets is None or not isinstance(node.left, ast.Call) or node.left.keywords:
            return
        arguments = ", ".join(map(script.source, node.left.args))
        total = f'{script.source(node.left.func)}({arguments}, reduction="sum")'
        count = f"sum(({targets} != -100).sum() for {script.source(loop.target)} in {window})"
        title = "Weigh every target of the window alike"
        yield from offered(title, "R", script, script.replace(node, f"{total} / {count}"))
        return


def _root(node: ast.expr) -> str | None:
    """`targets` of `targets.flatten()`"""
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _accumulation_name(script: Script, count: int) -> str | None:
    """A constant of the user's that holds the number of backwards per update."""
    for node in script.nodes(ast.Assign):
        if isinstance(node, ast.Assign) and number(node.value) == count and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if any(word in name.lower() for word in ("accum", "micro", "every")):
                return name
    return None
