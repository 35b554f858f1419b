"""The house: which room may import which, and how large its parts are."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest
from house import (
    BASE,
    FRAMEWORK_ROOMS,
    FRAMEWORKS,
    FRONTS,
    LEAN_ROOMS,
    MAY_IMPORT,
    ROOT,
    Module,
    all_imports,
    imports_of,
    modules,
    own_imports,
    room_of,
    said,
)

AT_MODULE_LEVEL = {"cli": BASE, "__main__": BASE | {"cli"}}  # and the rest only inside functions
CATCHES_ALL = {  # our own failures; whatever the user's script raises
    ROOT / "neuraldbg" / "capture" / "guard.py",
    ROOT / "neuraldbg" / "script.py",
    ROOT / "neuraldbg" / "analysis" / "diagnose.py",  # a finder that fails is named in the judgement
    ROOT / "neuraldbg" / "control" / "gate.py",  # conditions and requests are the user's: told to who asked
    ROOT / "neuraldbg" / "surfaces" / "terminal" / "prompt.py",  # an expression typed at the terminal
    ROOT / "neuraldbg" / "control" / "channel.py",  # a request that fails is answered, the line stays open
}
PROGRAMS = ROOT / "tests" / "programs"  # written as other people write
LARGEST_FILE, LONGEST_FUNCTION = 400, 40
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}


def test_imports_are_seen_wherever_they_hide() -> None:
    source = """
import torch.nn
from neuraldbg import records, NeuralDbg
from . import tables
from ..capture import hooks
if TYPE_CHECKING:
    from neuraldbg.session import Session
def later():
    import importlib
    importlib.import_module("neuraldbg.analysis")
"""
    sample = Module("neuraldbg.trace.sample", ROOT / "neuraldbg" / "trace" / "sample.py", ast.parse(source))
    known = frozenset({"neuraldbg.records", "neuraldbg.trace.tables", "neuraldbg.capture.hooks"})
    found = imports_of(sample, known)
    assert {(each.target, each.lazy, each.typing_only) for each in found} == {
        ("torch.nn", False, False),
        ("neuraldbg.records", False, False),
        ("neuraldbg", False, False),
        ("neuraldbg.trace.tables", False, False),
        ("neuraldbg.capture.hooks", False, False),
        ("neuraldbg.session", False, True),
        ("importlib", True, False),
        ("neuraldbg.analysis", True, False),
    }


def test_every_module_stands_in_a_room() -> None:
    assert [each.place for each in modules().values() if each.room not in {*MAY_IMPORT, *FRONTS}] == []


def test_rooms_import_only_what_stands_below_them() -> None:
    wrong = []
    for module, each in own_imports():
        target = room_of(each.target)
        if module.room in FRONTS or target == module.room:
            continue
        if target not in MAY_IMPORT.get(module.room, frozenset()):
            wrong.append(said(module, each.line, f"{module.room} imports {each.target}"))
    assert wrong == []


def test_the_command_line_imports_the_rooms_only_when_a_command_runs() -> None:
    wrong = [
        said(module, each.line, f"{each.target} at module level")
        for module, each in own_imports()
        if module.room in AT_MODULE_LEVEL and not (each.lazy or each.typing_only)
        if room_of(each.target) not in AT_MODULE_LEVEL[module.room] | {module.room}
    ]
    heavy = [
        said(module, each.line, f"{each.target} at module level")
        for module, each in all_imports()
        if module.room == "cli" and not (each.lazy or each.typing_only)
        if each.top not in {*sys.stdlib_module_names, "click", "neuraldbg"}
    ]
    assert wrong + heavy == []


def test_only_the_rooms_that_see_import_a_framework() -> None:
    wrong = [
        said(module, each.line, f"{module.room} imports {each.target}")
        for module, each in all_imports()
        if each.top in FRAMEWORKS and not each.typing_only and module.room not in FRAMEWORK_ROOMS
    ]
    assert wrong == []


def test_the_core_never_imports_the_facade() -> None:
    wrong = [
        said(module, each.line, f"imports {each.target}")
        for module, each in own_imports()
        if each.top == "neural" and module.name.partition(".")[0] == "neuraldbg" and module.room != "compat"
    ]
    assert wrong == []


def test_rooms_that_record_need_no_more_than_numpy_and_a_framework() -> None:
    wrong = [
        said(module, each.line, f"imports {each.target} at module level")
        for module, each in all_imports()
        if module.room in LEAN_ROOMS and not (each.lazy or each.typing_only)
        if each.top not in {*sys.stdlib_module_names, "neuraldbg", *(FRAMEWORKS if module.room == "capture" else ())}
        if each.top != "numpy" or module.room in BASE
    ]
    assert [line for line in wrong if not _guarded(line)] == []


def _guarded(line: str) -> bool:
    """Whether the import on that line stands in a `try` that survives its absence."""
    place, number, _ = line.split(":", 2)
    tree = next(each.tree for each in modules().values() if each.place == place)
    attempts = [node for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers]
    return any(node.body[0].lineno <= int(number) <= (node.body[-1].end_lineno or 0) for node in attempts)


def test_no_module_imports_itself_in_a_circle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for module, each in own_imports():
        if not (each.lazy or each.typing_only) and each.target in graph and each.target != module.name:
            graph[module.name].add(each.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_files_are_short() -> None:
    folders = ("neuraldbg", "neural", "tests", "benchmarks", "examples")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if PROGRAMS not in path.parents]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {place: lines for place, lines in lengths.items() if lines > LARGEST_FILE} == {}


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The docstring of a detector or cause is its page of documentation and does not make the function longer."""
    first = node.body[0]
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return (first.end_lineno or first.lineno) - first.lineno + 1 if told else 0


def test_functions_are_short() -> None:
    long = []
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)
                if lines > LONGEST_FUNCTION:
                    long.append(said(module, node.lineno, f"{node.name} has {lines} lines"))
    assert long == []


def test_only_the_guard_of_capture_catches_everything() -> None:
    wrong = [
        said(module, line, "catches everything")
        for module in modules().values()
        if module.path not in CATCHES_ALL
        for line in blind_catches(module.tree)
    ]
    assert wrong == []


def blind_catches(tree: ast.Module) -> Iterator[int]:
    """Handlers for every exception; one for BaseException may stand where it ends by raising again."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            caught = {ast.unparse(kind).rpartition(".")[2] if kind else "" for kind in kinds}
            again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if caught & {"", "Exception"} or ("BaseException" in caught and not again):
                yield node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
            suppressed = {ast.unparse(each).rpartition(".")[2] for each in node.args}
            yield from [node.lineno] if suppressed & {"Exception", "BaseException"} else []


@pytest.mark.parametrize(
    ("handler", "blind"),
    [
        ("except Exception:\n pass", True),
        ("except:\n raise", True),
        ("except (ValueError, Exception) as e:\n pass", True),
        ("except BaseException:\n pass", True),
        ("except BaseException:\n undo()\n raise", False),
        ("except (OSError, ValueError):\n pass", False),
    ],
)
def test_blind_handlers_are_told_from_the_others(handler: str, blind: bool) -> None:
    assert bool(list(blind_catches(ast.parse(f"try:\n pass\n{handler}")))) is blind


def test_modules_say_what_they_are_and_have_names_that_do() -> None:
    silent = [each.place for each in modules().values() if each.tree.body and not ast.get_docstring(each.tree)]
    vague = [
        each.place
        for each in modules().values()
        if each.name.rpartition(".")[2] in VAGUE_NAMES and each.room != "neural"
    ]
    assert silent + vague == []
