"""Where a patch goes: the file and statement a finding points at."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes.editing import Script
from neuraldbg.analysis.places import split
from neuraldbg.records import Call, Finding, Fix


def script_at(evidence: Evidence, source: str | None) -> tuple[Script, int] | None:
    """The user's file that a source line is in, as it was; None where it was not kept."""
    place = split(source)
    if place is None:
        return None
    text = evidence.text(place[0])
    return None if text is None else (Script(place[0], text), place[1])


def at(finding: Finding, evidence: Evidence) -> tuple[Script, int] | None:
    return script_at(evidence, finding.source)


def line_of(evidence: Evidence, call: Call, *, site: int | None = None) -> tuple[Script, int] | None:
    """Where the script makes a call of the ledger."""
    return script_at(evidence, evidence.line_of(call, site=site))


def offered(title: str, auto: str, script: Script, changed: str | None) -> Iterator[Fix]:
    """A fix with its patch, where the edit could be made."""
    patch = script.diff(changed)
    if patch is not None:
        yield Fix(title, patch, auto)


def inserted(
    place: tuple[Script, int] | None, code: str, title: str, auto: str, *, after: bool = False
) -> Iterator[Fix]:
    """A fix that is one new line before or after the statement at a place."""
    statement = None if place is None else place[0].statement(place[1])
    if place is not None and statement is not None:
        yield from offered(title, auto, place[0], place[0].insert(statement, code, after=after))


def every_script(evidence: Evidence) -> list[Script]:
    return [Script(fact["file"], fact["text"]) for fact in evidence.facts("source_file")]


def number(node: ast.expr | None) -> float | None:
    """A literal number; None for anything computed elsewhere."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    return None


def assigned_number(script: Script, node: ast.expr | None) -> ast.expr | None:
    """The literal behind an expression: itself, or what a name was assigned once in the file."""
    if number(node) is not None:
        return node
    if not isinstance(node, ast.Name):
        return None
    values = [
        each.value
        for each in script.nodes(ast.Assign)
        if isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in each.targets)
    ]
    values += _defaults(script, node.id) or _given(script, node)
    return values[0] if len(values) == 1 and number(values[0]) is not None else None


def _defaults(script: Script, name: str) -> list[ast.expr]:
    """What a parameter of that name is where no call gives it another value."""
    if any(word.arg == name for word in script.nodes(ast.keyword) if isinstance(word, ast.keyword)):
        return []
    found: list[ast.expr] = []
    for each in script.nodes(ast.FunctionDef):
        if isinstance(each, ast.FunctionDef):
            last = each.args.args[len(each.args.args) - len(each.args.defaults) :]
            pairs = zip([*last, *each.args.kwonlyargs], [*each.args.defaults, *each.args.kw_defaults], strict=True)
            found += [value for given, value in pairs if given.arg == name and value is not None]
    return found


def products_at(script: Script, line: int, *operators: type[ast.operator]) -> list[ast.BinOp]:
    """Operations of some sort on a line, between two things that are no plain numbers."""
    found = [node for node in script.nodes(ast.BinOp) if isinstance(node, ast.BinOp) and node.lineno == line]
    found = [node for node in found if isinstance(node.op, operators)]
    return [node for node in found if number(node.left) is None and number(node.right) is None]


def _given(script: Script, name: ast.Name) -> list[ast.expr]:
    """What the calls of a function give, by name, to the parameter that a name is."""
    around = script.function_around(name)
    if around is None or all(each.arg != name.id for each in (*around.args.args, *around.args.kwonlyargs)):
        return []
    calls = script.calls(around.name)
    given = [word.value for call in calls for word in call.keywords if word.arg == name.id]
    return given if len(given) == len(calls) else []


def method_of(node: ast.Call) -> str | None:
    """`x` of `x.log()`; None for a plain function."""
    if isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value)
    return None


def is_module_call(node: ast.Call) -> bool:
    """`torch.log(x)`, `F.softmax(x)`: a function of a module and not a method of a tensor."""
    owner = method_of(node)
    return owner in ("torch", "F", "nn.functional", "torch.nn.functional", "functional", "np", "math")


def write(value: float) -> str:
    """A number as a person writes it."""
    return f"{value:.3g}"


def imports_torch(script: Script) -> bool:
    """Whether the file can say `torch.something`."""
    imports = [node for node in script.nodes(ast.Import) if isinstance(node, ast.Import)]
    return any(
        name.name.partition(".")[0] == "torch" and name.asname is None for node in imports for name in node.names
    )


def made_as(script: Script, attribute: str) -> list[ast.Assign]:
    """The statements `self.attribute = ...`."""
    found = [node for node in script.nodes(ast.Assign) if isinstance(node, ast.Assign)]
    return [node for node in found if script.source(node.targets[0]) == f"self.{attribute}"]


def layer_class(finding: Finding, evidence: Evidence) -> str | None:
    """The class of the module that a finding names."""
    return next((site.op for site in evidence.sites.values() if evidence.name(site) == finding.layer), None)


def optimizer_name(finding: Finding, evidence: Evidence) -> str | None:
    """What the user calls the optimizer."""
    said = finding.evidence.get("optimizer")
    if isinstance(said, str) and said.replace(".", "").replace("_", "").isalnum():
        return said
    names = [fact["name"] for fact in evidence.facts("optimizer")]
    return names[0] if names else None


def reaches(script: Script, statement: ast.stmt, expression: str) -> bool:
    """Whether `model.head` can be said at a statement: its first name is bound there or in the whole file."""
    name = ast.Name(expression.partition(".")[0], ast.Load(), **_position(statement))
    return bool(script.bindings(name))


def _position(node: ast.stmt) -> dict[str, int]:
    end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    return {"lineno": node.lineno, "col_offset": node.col_offset, "end_lineno": end[0], "end_col_offset": end[1]}
