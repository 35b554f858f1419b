"""Cures of half precision: another type, gradients unscaled before they are clipped, masks without infinity."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called, keyword
from neuraldbg.analysis.fixes.placing import every_script, line_of, offered
from neuraldbg.records import Call, Finding, Fix

HALF = ("torch.float16", "torch.half")
MINUS_INFINITY = ("float('-inf')", "-float('inf')", "-math.inf", "-torch.inf", "-np.inf")


@cure("fp16_overflow")
def fp16_overflow(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    yield from _bfloat16(evidence)


@cure("fp16_underflow")
def fp16_underflow(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    yield from _bfloat16(evidence)


def _bfloat16(evidence: Evidence) -> Iterator[Fix]:
    for script in every_script(evidence):
        types = [keyword(call, "dtype") for call in script.calls("autocast")]
        half = [each for each in types if each is not None and ast.unparse(each) in HALF]
        if len(half) == 1 and not script.calls("GradScaler"):
            changed = script.replace(half[0], "torch.bfloat16")
            yield from offered("bfloat16, which has the range of float32", "R", script, changed)
            return


@cure("loss_scale_issue")
def loss_scale_issue(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    yield from unscaled_before_clip(evidence)


def unscaled_before_clip(evidence: Evidence) -> Iterator[Fix]:
    """`scaler.unscale_(optimizer)` before the clip, with the names of `scaler.step(optimizer)` in the same block."""
    place = line_of(evidence, Call.CLIP)
    clip = None if place is None else place[0].statement(place[1])
    if place is None or clip is None or place[0].calls("unscale_"):
        return
    script = place[0]
    later = [each for each in script.block_of(clip) if each.lineno > clip.lineno and isinstance(each, ast.Expr)]
    for each in later:
        call = each.value
        if isinstance(call, ast.Call) and called(call) == "step" and len(call.args) == 1:
            code = script.source(call.func).removesuffix(".step") + f".unscale_({script.source(call.args[0])})"
            yield from offered("Unscale the gradients before they are clipped", "R", script, script.insert(clip, code))
            return


@cure("fully_masked_attention")
def fully_masked_attention(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    """The smallest number in the place of minus infinity: a row without any key then gives a mean and not NaN."""
    for script in every_script(evidence):
        calls = [call for call in script.calls("masked_fill") if len(call.args) == 2]
        infinite = [call for call in calls if ast.unparse(call.args[1]) in MINUS_INFINITY]
        if len(infinite) == 1 and isinstance(infinite[0].func, ast.Attribute):
            code = _smallest(script, infinite[0].func.value)
            changed = script.replace(infinite[0].args[1], code)
            yield from offered("Hide keys with the smallest number instead of -inf", "R", script, changed)
            return


def _smallest(script: Script, scores: ast.expr) -> str:
    return f"torch.finfo({script.source(scores)}.dtype).min" if isinstance(scores, ast.Name) else "-1e9"


@cure("update_lost_to_rounding")
def update_lost_to_rounding(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    """The one cast of the file is taken from the model; with others, inputs would no longer fit its weights."""
    for script in every_script(evidence):
        casts = [*script.calls("bfloat16"), *script.calls("half")]
        types = [node for node in script.nodes(ast.Attribute) if ast.unparse(node) in ("torch.bfloat16", *HALF)]
        casts += [call for call in script.calls("to") if len(call.args) == 1 and call.args[0] in types]
        if len(casts) != 1 or len(types) > 1 or not isinstance(casts[0].func, ast.Attribute):
            continue
        statement = script.statement(casts[0].lineno)
        if isinstance(statement, ast.Assign) and statement.value is casts[0]:
            changed = script.replace(casts[0], script.source(casts[0].func.value))
            yield from offered("Keep the weights in float32", "R", script, changed)
            return
