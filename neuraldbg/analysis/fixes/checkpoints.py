"""Cures of saved and averaged weights: copies instead of views, names that fit, the rest of the state as well."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called, keyword
from neuraldbg.analysis.fixes.placing import at, every_script, offered, reaches
from neuraldbg.records import Finding, Fix


@cure("checkpoint_aliases_live_weights")
def checkpoint_aliases_live_weights(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    load = next(iter(script.calls("load_state_dict", within=(1, line))[-1:]), None)
    wanted = None if load is None or not load.args else script.source(load.args[0])
    taken = [value for name, value in _pairs(script) if name == wanted and called(value) == "state_dict"]
    if taken:
        copied = f"{{name: value.clone() for name, value in {script.source(taken[0])}.items()}}"
        yield from offered("Keep copies of the weights", "S", script, script.replace(taken[0], copied))


def _pairs(script: Script) -> Iterator[tuple[str, ast.expr]]:
    """Every `name = value` of a file, also those of `a, b = c, d`."""
    for node in script.nodes(ast.Assign):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(map(script.source, target.elts), node.value.elts, strict=False)
            else:
                yield script.source(target), node.value


@cure("checkpoint_not_loaded")
def checkpoint_not_loaded(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
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
        title = "Make the names fit, and let a mismatch be an error"
        yield from offered(title, "S", script, script.replace_all(changes))


@cure("optimizer_state_not_restored")
def optimizer_state_not_restored(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """`model.load_state_dict(checkpoint["model"])`: the other states that the same file's save put beside it."""
    place = at(finding, evidence)
    statement = None if place is None else place[0].statement(place[1])
    loads = [] if place is None else place[0].calls("load_state_dict", within=(place[1], place[1]))
    if place is None or statement is None or len(loads) != 1 or not loads[0].args:
        return
    script, given = place[0], loads[0].args[0]
    key = given.slice.value if isinstance(given, ast.Subscript) and isinstance(given.slice, ast.Constant) else None
    saved = [each for each in map(_states, script.nodes(ast.Dict)) if key in each]
    if not isinstance(given, ast.Subscript) or len(saved) != 1:
        return
    others = {name: owner for name, owner in saved[0].items() if name != key and reaches(script, statement, owner)}
    code = [f'{owner}.load_state_dict({script.source(given.value)}["{name}"])' for name, owner in others.items()]
    title = "Load the state of the optimizer, and what else was saved, with the weights"
    yield from offered(title, "S", script, script.insert(statement, "\n".join(code), after=True) if code else None)


def _states(node: ast.AST) -> dict[str, str]:
    """`{"model": model.state_dict()}` -> {"model": "model"}"""
    found = {}
    for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
        if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and called(value) == "state_dict":
            found[str(key.value)] = ast.unparse(value.func).removesuffix(".state_dict")
    return found


@cure("ema_not_tracking")
def ema_not_tracking(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """After the loop that averages the parameters, one that copies the buffers."""
    if finding.evidence.get("parameters_moved") != "true" or finding.evidence.get("buffers_moved") != "false":
        return
    for script in every_script(evidence):
        loops = [node for node in script.nodes(ast.For) if isinstance(node, ast.For) and _averages(node)]
        if len(loops) == 1 and isinstance(loops[0].target, ast.Tuple):
            averaged, live = map(script.source, loops[0].target.elts)
            over = script.source(loops[0].iter).replace(".parameters()", ".buffers()")
            code = f"for {averaged}, {live} in {over}:\n    {averaged}.copy_({live})"
            changed = script.insert(loops[0], code, after=True)
            yield from offered("Copy the buffers as well: running statistics are not parameters", "S", script, changed)


def _averages(loop: ast.For) -> bool:
    """`for averaged, live in zip(ema.parameters(), model.parameters())`"""
    pair = isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2
    over = loop.iter.args if isinstance(loop.iter, ast.Call) and called(loop.iter) == "zip" else []
    return pair and len(over) == 2 and all(called(each) == "parameters" for each in over)
