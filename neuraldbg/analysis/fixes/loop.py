"""Cures of the training loop: calls inserted, moved or taken away."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script
from neuraldbg.analysis.fixes.placing import inserted, line_of, offered, optimizer_name
from neuraldbg.records import Call, Finding, Fix


@cure("missing_zero_grad")
def missing_zero_grad(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    name = optimizer_name(finding, evidence)
    if name is None:
        return
    if evidence.backwards >= 1.5 * evidence.updates:  # gradients are added up on purpose: clear them after the update
        title = f"Clear the gradients after each update: {name}.zero_grad()"
        yield from inserted(line_of(evidence, Call.STEP), f"{name}.zero_grad()", title, "R", after=True)
    else:
        title = f"Clear the gradients before each backward: {name}.zero_grad()"
        yield from inserted(line_of(evidence, Call.BACKWARD), f"{name}.zero_grad()", title, "R")


@cure("optimizer_step_missing")
def optimizer_step_missing(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    name = optimizer_name(finding, evidence)
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
def step_order_wrong(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    if "lost_backward_line" in finding.evidence:
        yield Fix("Clear the gradients once per update, before its first backward", None, "R")
        return
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
