"""Cures of the graph: cuts that should not be there, cuts that are missing, gradients that are switched off."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called, keyword
from neuraldbg.analysis.fixes.placing import at, line_of, method_of, offered, products_at, script_at
from neuraldbg.records import Call, Finding, Fix

NO_GRAD = ("no_grad", "inference_mode")


@cure("detached_graph")
def detached_graph(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    changes: list[tuple[ast.AST, str]] = [*_rebuilt(script, line)]
    for node in script.calls("detach", within=(line, line)):
        owner = method_of(node)
        if owner is not None and not node.args:
            changes.append((node, owner))
    for each in script.nodes(ast.Attribute):
        if isinstance(each, ast.Attribute) and each.attr == "data" and each.lineno == line:
            changes.append((each, script.source(each.value)))
    leaves_torch = script.calls("numpy", within=(line, line)) or script.calls("tolist", within=(line, line))
    if len(changes) == 1 and not leaves_torch:
        yield from offered("Leave the tensor in the graph", "S", script, script.replace_all(changes))


def _rebuilt(script: Script, line: int) -> Iterator[tuple[ast.AST, str]]:
    """`torch.tensor(a.item() + b.item(), requires_grad=True)` -> `(a + b)`"""
    for call in script.calls("tensor", within=(line, line)):
        flag = keyword(call, "requires_grad")
        if flag is None or ast.unparse(flag) != "True" or len(call.args) != 1 or len(call.keywords) != 1:
            continue
        inside = [node for node in ast.walk(call.args[0]) if called(node) == "item"]
        items = [node for node in inside if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
        kept = [(node, script.source(node.func.value)) for node in items if isinstance(node.func, ast.Attribute)]
        text = script.rewritten(call.args[0], [*kept])
        if items:
            yield call, text if isinstance(call.args[0], ast.Call) else f"({text})"


@cure("no_grad_in_training")
def no_grad_in_training(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    place = at(finding, evidence)
    if place is None:
        return
    script, line = place
    title = "Leave the gradients on for the training forward"
    decorators = [each for each in _decorators(script) if each.lineno == line]
    for decorator in decorators[:1]:
        if script.lines[line - 1].strip() == f"@{script.source(decorator)}":
            changed = "".join([*script.lines[: line - 1], *script.lines[line:]])
            yield from offered(title, "R", script, changed)
            return
    blocks = [node for node in script.nodes(ast.With) if isinstance(node, ast.With)]
    around = [node for node in blocks if node.lineno <= line <= (node.end_lineno or 0)]
    for block in sorted(around, key=lambda node: -node.lineno):
        item = block.items[0].context_expr
        if len(block.items) == 1 and called(item) in NO_GRAD:
            yield from offered(title, "R", script, script.replace(item, "torch.enable_grad()"))
            return


def _decorators(script: Script) -> list[ast.expr]:
    functions = [node for node in script.nodes(ast.FunctionDef) if isinstance(node, ast.FunctionDef)]
    return [each for one in functions for each in one.decorator_list if called(each) in NO_GRAD]


@cure("missing_detach")
def missing_detach(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    if "policy_loss_line" in finding.evidence:
        yield from _constant_worth(finding, evidence)
        return
    place = at(finding, evidence)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or statement is None or finding.layer is None:
        return
    script = place[0]
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    for module in _modules(finding):
        made = [call for call in calls if script.source(call.func) == module]
        uses = [node for node in ast.walk(statement) if _holds_output(script, statement, node, module)]
        for spots in (made, uses):
            if len(spots) == 1:
                changed = script.replace(spots[0], f"{script.source(spots[0])}.detach()")
                yield from offered(f"Take what {module} gives as a constant here", "S", script, changed)
                return


def _constant_worth(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """`(log_prob * advantage).mean()` -> `(log_prob * advantage.detach()).mean()`, at the line of the product."""
    line = str(finding.evidence["policy_loss_line"])
    fact = next((fact for fact in evidence.facts("score_term") if fact["baseline"] and fact.get("line") == line), None)
    place = script_at(evidence, line)
    if fact is None or place is None:
        return
    script = place[0]
    products = products_at(script, place[1], ast.Mult)
    if len(products) == 1:
        worth = (products[0].left, products[0].right)[fact.get("slot", 1)]
        changed = script.replace(worth, f"{script.operand(worth)}.detach()")
        yield from offered("Take the advantage as a constant in the policy's loss", "S", script, changed)


def _modules(finding: Finding) -> list[str]:
    """What the user may call the module that must not learn here, the part before the whole: agent.target, agent."""
    model = finding.evidence.get("model")
    path = [*([str(model)] if model is not None else []), *str(finding.layer).split(".")]
    return [".".join(path[:length]) for length in range(len(path), 0, -1)]


def _holds_output(script: Script, statement: ast.stmt, node: ast.AST, module: str) -> bool:
    """Whether a name was last assigned `module(...)` before a statement of its block."""
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return False
    before = [each for each in script.block_of(statement) if each.lineno < statement.lineno]
    made = [each for each in before if isinstance(each, ast.Assign) and script.source(each.targets[0]) == node.id]
    value = made[-1].value if made else None
    return isinstance(value, ast.Call) and script.source(value.func) == module


@cure("hidden_state_not_detached")
def hidden_state_not_detached(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    name = finding.evidence.get("state")
    place = line_of(evidence, Call.BACKWARD) or at(finding, evidence)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or statement is None or not isinstance(name, str) or not name.isidentifier():
        return
    script = place[0]
    parts = f"tuple(part.detach() for part in {name})"  # an LSTM carries two
    code = f"{name} = {parts} if isinstance({name}, tuple) else {name}.detach()"
    changed = script.insert(statement, code, after=True)
    retaining = [call for call in script.calls("backward") if _only_retains(script, call, statement)]
    if changed is not None and len(retaining) == 1:
        changed = Script(script.file, changed).replace(
            retaining[0], f"{script.source(retaining[0].func)}()"
        )  # nothing goes through the graph again
    yield from offered("Cut the graph of the carried state after each backward", "S", script, changed)


def _only_retains(script: Script, call: ast.Call, statement: ast.stmt) -> bool:
    alone = not call.args and [each.arg for each in call.keywords] == ["retain_graph"]
    return alone and script.statement(call.lineno) is statement


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
    if statement is None or statement.lineno != statement.end_lineno or hasattr(statement, "body"):
        return
    code = script.source(statement)
    changed = script.replace(statement, f"with torch.no_grad():\n{script.indent(statement)}    {code}")
    yield from offered("Evaluate without building graphs: torch.no_grad()", "R", script, changed)
