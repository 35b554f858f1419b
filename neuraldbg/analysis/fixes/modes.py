"""Cures of modes: train(), eval() and what is frozen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script
from neuraldbg.analysis.fixes.placing import at, every_script, line_of, offered, reaches
from neuraldbg.records import Call, Finding, Fix


@cure("eval_mode_in_training")
def eval_mode_in_training(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place, model = line_of(evidence, Call.BACKWARD), _model(finding)
    if place is None or model is None:
        return
    first = _first_of_loop(place[0], place[0].statement(place[1]))
    if first is not None and reaches(place[0], first, model):
        title = f"Switch back to training mode before the training pass: {model}.train()"
        yield from offered(title, "R", place[0], place[0].insert(first, f"{model}.train()"))


def _first_of_loop(script: Script, statement: ast.stmt | None) -> ast.stmt | None:
    """The first statement of the loop of batches: whatever an evaluation between them did is undone there."""
    loop = None if statement is None else script.loop_around(statement)
    return None if loop is None else loop.body[0]


def _model(finding: Finding) -> str | None:
    model = finding.evidence.get("model")
    plain = isinstance(model, str) and model.replace(".", "").replace("_", "").isalnum()
    return model if plain and isinstance(model, str) else None


@cure("train_mode_in_eval")
def train_mode_in_eval(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place, model = at(finding, evidence), _model(finding)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or model is None or statement is None:
        return
    script = place[0]
    edits = {statement: f"{model}.eval()"}
    if not _switches_back(script, model):
        training = line_of(evidence, Call.BACKWARD)
        first = None if training is None else _first_of_loop(script, script.statement(training[1]))
        if training is None or training[0].file != script.file or first is None:
            return
        edits[first] = f"{model}.train()"
    if all(reaches(script, each, model) for each in edits):
        title = f"Switch to evaluation mode before evaluating: {model}.eval()"
        yield from offered(title, "R", script, script.insert_all(edits))


def _switches_back(script: Script, model: str) -> bool:
    """Whether `model.train()` stands where it is run again and again."""
    for call in script.calls("train"):
        statement = script.statement(call.lineno)
        if script.source(call) == f"{model}.train()" and statement is not None:
            return script.loop_around(statement) is not None or script.function_around(statement) is not None
    return False


@cure("frozen_parameters")
def frozen_parameters(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    for script in every_script(evidence):
        values = [*_frozen_by_flag(script), *_frozen_by_call(script)]
        if len(values) == 1:
            yield from offered("Let them learn", "R", script, script.replace(values[0], "True"))
            return


def _frozen_by_flag(script: Script) -> Iterator[ast.expr]:
    for node in script.nodes(ast.Assign):
        flag = isinstance(node, ast.Assign) and script.source(node.targets[0]).endswith(".requires_grad")
        if flag and isinstance(node, ast.Assign) and ast.unparse(node.value) == "False":
            yield node.value


def _frozen_by_call(script: Script) -> Iterator[ast.expr]:
    for call in script.calls("requires_grad_"):
        if len(call.args) == 1 and ast.unparse(call.args[0]) == "False":
            yield call.args[0]


@cure("frozen_state_still_changes")
def frozen_state_still_changes(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """Statistics of a frozen block: after each train() the block goes back to eval() while it is frozen."""
    block, models = _frozen_block(finding, evidence), [fact["name"] for fact in evidence.facts("model")]
    if block is None or len(set(models)) != 1:
        return
    part = f"{models[0]}.{block}"
    for script in every_script(evidence):
        calls = [call for call in script.calls("train") if script.source(call) == f"{models[0]}.train()"]
        statement = script.statement(calls[0].lineno) if len(calls) == 1 else None
        if statement is not None:
            code = f"{part}.train(any(p.requires_grad for p in {part}.parameters()))"
            changed = script.insert(statement, code, after=True)
            yield from offered(f"Keep {part} in evaluation mode while it is frozen", "R", script, changed)


def _frozen_block(finding: Finding, evidence: Evidence) -> str | None:
    """The innermost module that holds every norm layer which moves although frozen."""
    if "passes_looked_at" not in finding.evidence:
        return None
    last = {fact["site"]: fact for fact in evidence.facts("batchnorm")}
    moving = [site for site, fact in last.items() if fact["tracks"] and fact["frozen_looks"]]
    paths = [evidence.sites[site].path.split(".")[:-1] for site in moving if site in evidence.sites]
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]
    return ".".join(shared) if shared and not any(part.isdigit() for part in shared) else None
