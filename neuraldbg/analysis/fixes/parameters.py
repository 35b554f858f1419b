"""Cures of who owns which parameter: optimizers that lack some, hold old ones or are made again and again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called
from neuraldbg.analysis.fixes.placing import at, every_script, offered, optimizer_name, reaches
from neuraldbg.records import Finding, Fix

VIEWS = ("t", "transpose", "permute", "swapaxes", "expand")


@cure("parameters_not_in_optimizer")
def parameters_not_in_optimizer(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place, name = at(finding, evidence), optimizer_name(finding, evidence)
    left_out = _left_out(finding, evidence)
    if place is None or name is None or not left_out:
        return
    script, line = place
    statement = _assignment(script, script.statement(line), name)
    if statement is None or not reaches(script, statement, left_out[0]):
        return
    params = left_out[0] if len(left_out) == 1 else f"[{', '.join(f'*{each}' for each in left_out)}]"
    code = f'{name}.add_param_group({{"params": {params}}})'
    title = "Give the optimizer the parameters it lacks"
    yield from offered(title, "R", script, script.insert(statement, code, after=True))


def _assignment(script: Script, statement: ast.stmt | None, name: str) -> ast.stmt | None:
    """Where the optimizer gets its name: the statement itself, or the one that calls the function which returns it."""
    if isinstance(statement, ast.Return):
        function = script.function_around(statement)
        calls = [] if function is None else script.calls(function.name)
        statement = script.statement(calls[0].lineno) if len(calls) == 1 else None
    named = isinstance(statement, ast.Assign) and script.source(statement.targets[0]) == name
    return statement if named else None


def _left_out(finding: Finding, evidence: Evidence) -> list[str]:
    """The largest modules none of whose parameters has an owner, as expressions; none where there are too many."""
    model = finding.evidence.get("model")
    sites = [fact["site"] for fact in evidence.facts("model") if fact["name"] == model]
    if not isinstance(model, str) or not sites:
        return []
    owned = {site for fact in evidence.facts("optimizer") for site in fact.get("parameter_sites") or ()}
    every = evidence.parameters_of(sites[0])
    paths = {site.path: site.id in owned for site in every}
    tops = dict.fromkeys(_top(path, paths) for path, has_owner in paths.items() if not has_owner)
    if len(tops) > 3:
        return []
    return [f"{model}{_access(top)}" + ("" if top in paths else ".parameters()") for top in tops]


def _top(path: str, owned: dict[str, bool]) -> str:
    """The outermost part of a path under which nothing has an owner; the whole model is the empty path."""
    parts = path.split(".")
    for length in range(len(parts)):
        prefix = ".".join(parts[:length])
        if not any(has for each, has in owned.items() if not prefix or each.startswith(f"{prefix}.")):
            return prefix
    return path


def _access(path: str) -> str:
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split(".") if part)


@cure("stale_parameters_in_optimizer")
def stale_parameters_in_optimizer(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """The optimizer is made after the last statement that replaces a part of the model."""
    place, model = at(finding, evidence), str(finding.evidence.get("model"))
    made = None if place is None else place[0].statement(place[1])
    if place is None or not isinstance(made, ast.Assign):
        return
    script, name = place[0], optimizer_name(finding, evidence)
    later = [each for each in script.block_of(made) if each.lineno > made.lineno]
    replacing = [each for each in later if isinstance(each, ast.Assign) and _sets_part(script, each, model)]
    if not replacing or name is None:
        return
    between = [each for each in later if each.lineno <= replacing[-1].lineno]
    if not any(re.search(rf"\b{re.escape(name)}\b", script.source(each)) for each in between):
        changed = script.move(made, replacing[-1], after=True)
        yield from offered("Make the optimizer after the last change of the model", "R", script, changed)


def _sets_part(script: Script, statement: ast.Assign, model: str) -> bool:
    return script.source(statement.targets[0]).startswith(f"{model}.")


@cure("state_reset_in_loop")
def state_reset_in_loop(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or not isinstance(statement, ast.Assign):
        return
    script = place[0]
    loop = script.loop_around(statement)
    if loop is None or not any(each is statement for each in loop.body):
        return
    used = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
    own = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if not used & _bound_in(loop) and not _builds_on(script, loop, statement, own):
        changed = script.move(statement, loop, after=False)
        yield from offered("Make them once, before the loop", "S", script, changed)


def _bound_in(loop: ast.For | ast.While) -> set[str]:
    return {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _builds_on(script: Script, loop: ast.For | ast.While, moved: ast.stmt, names: set[str]) -> bool:
    """Whether the loop makes more of what is moved (an optimizer over its parameters), which would have to move too."""
    others = [each for each in loop.body if each is not moved and isinstance(each, ast.Assign)]
    return any(f"{name}.parameters(" in script.source(each) for each in others for name in names)


@cure("unregistered_parameters")
def unregistered_parameters(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    attribute = str(finding.evidence.get("attribute") or "").rpartition(".")[2]
    for script in every_script(evidence):
        for node in script.nodes(ast.Assign):
            if not isinstance(node, ast.Assign) or script.source(node.targets[0]) != f"self.{attribute}":
                continue
            kind = {ast.List: "ModuleList", ast.ListComp: "ModuleList", ast.Dict: "ModuleDict"}.get(type(node.value))
            if kind is not None:
                prefix = "nn." if re.search(r"\bnn\b", script.text) else "torch.nn."
                changed = script.replace(node.value, f"{prefix}{kind}({script.source(node.value)})")
                yield from offered(f"Keep the modules in an nn.{kind}", "S", script, changed)
                return


@cure("update_not_applied")
def update_not_applied(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """`self.inp.weight = nn.Parameter(kernel.t())`: a transposed view, which reshape copies."""
    layer = str(finding.layer).rpartition(".")[2]
    for script in every_script(evidence):
        for node in script.nodes(ast.Assign):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            target = script.source(node.targets[0]).split(".")
            viewed = node.value.args[0] if called(node.value) == "Parameter" and node.value.args else None
            if len(target) > 1 and target[-2] == layer and viewed is not None and called(viewed) in VIEWS:
                changed = script.replace(viewed, f"{script.source(viewed)}.contiguous()")
                yield from offered("Give the parameter memory of its own, in order", "R", script, changed)
                return
