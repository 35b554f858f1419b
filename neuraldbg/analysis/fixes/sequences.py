"""Cures of sequences: masks, positions, shifts and padding."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called, keyword, with_argument
from neuraldbg.analysis.fixes.placing import at, every_script, made_as, number, offered
from neuraldbg.records import Finding, Fix

CROSS_ENTROPY = ("CrossEntropyLoss", "cross_entropy")
PADDING_MASKS = ("key_padding_mask", "src_key_padding_mask")


@cure("padding_not_masked")
def padding_not_masked(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    label = finding.evidence.get("pad_label")
    for script in every_script(evidence):
        calls = script.calls(*CROSS_ENTROPY)
        if isinstance(label, float | int) and len(calls) == 1 and keyword(calls[0], "ignore_index") is None:
            name = _constant_called(script, "pad", label) or str(int(label))
            changed = with_argument(script, calls[0], f"ignore_index={name}")
            yield from offered(f"Leave the padding out of the loss: ignore_index={name}", "S", script, changed)
            return


def _constant_called(script: Script, word: str, value: float) -> str | None:
    """A constant of the file with a word in its name and this value."""
    for node in script.tree.body if script.tree is not None else ():
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for name, given in zip(names, values, strict=False):
            if isinstance(name, ast.Name) and word in name.id.lower() and number(given) == value:
                return name.id
    return None


@cure("missing_causal_mask")
def missing_causal_mask(_: Finding, evidence: Evidence) -> Iterator[Fix]:
    title = "Let no position see a later one"
    for script in every_script(evidence):
        plain = [call for call in script.calls("scaled_dot_product_attention") if len(call.args) == 3]
        plain = [call for call in plain if not call.keywords]
        if len(plain) == 1:
            yield from offered(title, "S", script, with_argument(script, plain[0], "is_causal=True"))
            return
        for attribute, made in _encoders(script):
            calls = [call for call in script.calls(attribute) if len(call.args) == 1 and not call.keywords]
            if len(calls) == 1 and isinstance(calls[0].args[0], ast.Name):
                given = calls[0].args[0].id
                home = script.source(made.func).removesuffix("TransformerEncoder")
                axis = 1 if _batch_first(script) else 0
                size = f"{given}.size({axis}), device={given}.device"
                mask = f"mask={home}Transformer.generate_square_subsequent_mask({size})"
                yield from offered(title, "S", script, with_argument(script, calls[0], mask))
                return


def _encoders(script: Script) -> list[tuple[str, ast.Call]]:
    """Attributes that hold a TransformerEncoder, with the call that makes it."""
    made = [(node, node.value) for node in script.nodes(ast.Assign) if isinstance(node, ast.Assign)]
    encoders = [(node, call) for node, call in made if called(call) == "TransformerEncoder"]
    return [
        (node.targets[0].attr, call)
        for node, call in encoders
        if isinstance(call, ast.Call) and isinstance(node.targets[0], ast.Attribute)
    ]


def _batch_first(script: Script) -> bool:
    flags = [keyword(call, "batch_first") for call in script.calls("TransformerEncoderLayer")]
    return any(flag is not None and ast.unparse(flag) == "True" for flag in flags)


@cure("attention_mask_inverted")
def attention_mask_inverted(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """Of several attentions the one that the finding names."""
    attribute = str(finding.layer).rpartition(".")[2]
    for script in every_script(evidence):
        masks = [mask for call in script.calls(attribute) for name in PADDING_MASKS if (mask := keyword(call, name))]
        if len(masks) == 1 and made_as(script, attribute):
            mask = masks[0]
            turned = isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert)
            code = script.source(mask.operand) if isinstance(mask, ast.UnaryOp) and turned else _inverted(script, mask)
            title = "Turn the mask: True hides a key here"
            yield from offered(title, "R", script, script.replace(mask, code))
            return


def _inverted(script: Script, mask: ast.expr) -> str:
    return f"~{script.operand(mask)}"


@cure("position_ids_wrong")
def position_ids_wrong(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """`torch.arange(ids.size(1))`, however it is spread over the rows -> the number of real tokens before."""
    pad, place = finding.evidence.get("pad_token"), at(finding, evidence)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or not isinstance(statement, ast.Assign) or not isinstance(pad, float | int):
        return
    script = place[0]
    ids = _counted(statement.value)
    if ids is not None:
        name = _constant_called(script, "pad", pad) or str(int(pad))
        code = f"(({ids} != {name}).cumsum(1) - 1).clamp(min=0)"
        yield from offered("Count real tokens, not padding", "S", script, script.replace(statement.value, code))


def _counted(value: ast.expr) -> str | None:
    """`ids` of `torch.arange(ids.size(1))`, also behind expand_as, expand, unsqueeze or [None]."""
    while True:
        if isinstance(value, ast.Subscript) and ast.unparse(value.slice) == "None":
            value = value.value
        elif isinstance(value, ast.Call) and called(value) in ("expand_as", "expand", "unsqueeze"):
            value = value.func.value if isinstance(value.func, ast.Attribute) else value.func
        else:
            break
    if not isinstance(value, ast.Call) or called(value) != "arange" or len(value.args) != 1:
        return None
    size = ast.unparse(value.args[0])
    owner = next((size.removesuffix(end) for end in (".size(1)", ".shape[1]") if size.endswith(end)), "")
    return owner if owner.isidentifier() else None


@cure("label_shift_wrong")
def label_shift_wrong(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """Shifted twice: `logits[:, :-1]` and `target[:, 1:]` in one statement, of two variables, are taken back."""
    place = at(finding, evidence)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or statement is None or finding.evidence.get("shift") != 2.0:
        return
    script = place[0]
    cuts = [node for node in ast.walk(statement) if isinstance(node, ast.Subscript)]
    ends = [node for node in cuts if script.source(node).endswith("[:, :-1]")]
    starts = [node for node in cuts if script.source(node).endswith("[:, 1:]")]
    if len(ends) == len(starts) == 1 and ast.unparse(ends[0].value) != ast.unparse(starts[0].value):
        changes: list[tuple[ast.AST, str]] = [(node, script.source(node.value)) for node in (*ends, *starts)]
        title = "Shift once: the targets are already one ahead"
        yield from offered(title, "S", script, script.replace_all(changes))
