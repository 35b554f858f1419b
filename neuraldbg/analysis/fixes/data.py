"""Cures of the data: a line after the one that makes it, an argument of the loader or of the loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, keyword, with_argument
from neuraldbg.analysis.fixes.placing import at, every_script, imports_torch, offered, write
from neuraldbg.analysis.fixes.tracing import input_origin
from neuraldbg.records import Finding, Fix


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
        changed = script.replace(given, "True") if given is not None else with_argument(script, call, "shuffle=True")
        yield from offered("Shuffle the training data", "R", script, changed)


@cure("unnormalised_input")
def unnormalised_input(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    code = "{x} = ({x} - {x}.mean(0)) / ({x}.std(0) + 1e-8)"
    yield from _after_origin(evidence, code, "Bring every feature to mean 0 and deviation 1")


@cure("nan_in_input")
def nan_in_input(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    if finding.evidence.get("nan_values"):
        yield from _after_origin(evidence, "{x} = {x}.nan_to_num()", "Put 0 in the place of missing values")


def _after_origin(evidence: Evidence, code: str, title: str) -> Iterator[Fix]:
    """A line behind the one that makes what every call of the model is given: training and evaluation alike."""
    found = input_origin(evidence)
    if found is not None:
        script, origin = found
        yield from offered(title, "R", script, script.insert(origin.made, code.format(x=origin.name), after=True))


@cure("data_outlier_batch")
def data_outlier_batch(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    largest, usual = finding.evidence.get("largest_input"), finding.evidence.get("usual_largest_input")
    place = at(finding, evidence)
    if place is None or not isinstance(largest, float) or not isinstance(usual, float) or usual <= 0:
        return
    script, line = place
    statement = script.statement(line)
    name = None if statement is None else _given(script, evidence, line)
    if statement is None or name is None or script.loop_around(statement) is None:
        return
    limit = (largest * usual) ** 0.5  # far from both
    code = f"if {name}.abs().max() > {write(limit)}:\n    continue"
    title = f"Leave out batches with values above {write(limit)}; look at what makes them"
    yield from offered(title, "R", script, script.insert(statement, code))


def _given(script: Script, evidence: Evidence, line: int) -> str | None:
    """The variable that the model is called with on a line."""
    models = {str(fact["name"]) for fact in evidence.facts("model")}
    for node in script.nodes(ast.Call):
        if isinstance(node, ast.Call) and node.lineno == line and node.args and script.source(node.func) in models:
            return node.args[0].id if isinstance(node.args[0], ast.Name) else None
    return None


@cure("class_imbalance")
def class_imbalance(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    weights = _class_weights(evidence)
    for script in every_script(evidence):
        calls = script.calls("CrossEntropyLoss", "cross_entropy")
        plain = imports_torch(script) and "device" not in script.text and "cuda" not in script.text
        if weights is not None and plain and len(calls) == 1 and keyword(calls[0], "weight") is None:
            code = f"weight=torch.tensor([{', '.join(map(write, weights))}])"
            title = "Weigh each class by how rare it is in the labels of this run"
            yield from offered(title, "D", script, with_argument(script, calls[0], code))
            return


def _class_weights(evidence: Evidence) -> list[float] | None:
    """Total over (classes times count), as scikit-learn's "balanced"; None where a class was never seen."""
    fact = next((one for one in reversed(evidence.facts("loss_input")) if one["kind"] == "cross_entropy"), None)
    if fact is None or not fact.get("softmax_shape") or fact.get("softmax_dim") is None:
        return None
    classes = int(fact["softmax_shape"][fact["softmax_dim"]])
    counts = {int(label): int(count) for label, count in fact.get("labels") or ()}
    if sorted(counts) != list(range(classes)):
        return None
    return [sum(counts.values()) / (classes * counts[label]) for label in range(classes)]
