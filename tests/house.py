"""The source of the house, read without importing it: modules, the room each stands in, and what it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASE = frozenset({"records", "errors", "config", "registry"})
MAY_IMPORT = {  # DESIGN.md, "The house"
    **dict.fromkeys(BASE, BASE),
    "trace": BASE,
    "control": BASE,
    "capture": BASE | {"trace"},
    "analysis": BASE | {"trace"},
    "store": BASE | {"trace"},
    "fleet": BASE | {"trace", "store", "analysis"},
    "replay": BASE | {"script", "trace", "capture", "analysis"},
    "dsl": BASE,
    "dsl.build": BASE | {"dsl"},
    "dsl.train": BASE | {"dsl", "dsl.build"},
    "debug": BASE | {"trace", "capture", "analysis", "session", "surfaces"},
    "session": BASE | {"trace", "control", "capture", "analysis", "replay"},
    "script": BASE,
    "viewing": BASE | {"script", "control", "capture"},
    "ranks": BASE | {"viewing", "script", "trace", "control", "capture"},
    "launch": BASE
    | {"viewing", "ranks", "script", "trace", "control", "capture", "session", "dsl", "dsl.build", "dsl.train"},
    "surfaces": BASE | {"trace", "control", "analysis", "store", "fleet"},
}
FRONTS = {"neuraldbg", "__main__", "compat", "cli", "neural"}  # may import every room
FRAMEWORKS = frozenset(
    [
        "torch",
        "torchvision",
        "torchaudio",
        "triton",
        "tensorflow",
        "keras",
        "jax",
        "jaxlib",
        "flax",
        "onnx",
        "onnxruntime",
    ]
)
FRAMEWORK_ROOMS = {"capture", "replay", "dsl.build", "dsl.train"}
LEAN_ROOMS = BASE | {"trace", "capture"}  # record on any node: no more than numpy and a framework


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    @property
    def place(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def room(self) -> str:
        return room_of(self.name)


@dataclass(frozen=True, slots=True)
class Import:
    target: str  # "neuraldbg.trace.tables", "torch.nn"
    line: int
    lazy: bool  # inside a function
    typing_only: bool  # under `if TYPE_CHECKING:`

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


def room_of(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "neural" or len(parts) == 1:
        return parts[0]
    if parts[1:3] == ["surfaces", "cli"]:
        return "cli"
    if parts[1] == "dsl" and parts[2:3] in (["build"], ["train"]):
        return f"dsl.{parts[2]}"
    return parts[1]


@cache
def modules() -> dict[str, Module]:
    found = {}
    for path in sorted((*ROOT.glob("neuraldbg/**/*.py"), *ROOT.glob("neural/**/*.py"))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return found


def imports_of(module: Module, known: frozenset[str]) -> list[Import]:
    return list(_imports(module.tree, module, known, lazy=False, typing_only=False))


def _imports(
    node: ast.AST, module: Module, known: frozenset[str], *, lazy: bool, typing_only: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        for target in _targets(child, module, known):
            yield Import(target, getattr(child, "lineno", 0), lazy, typing_only)
        inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typed = typing_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        yield from _imports(child, module, known, lazy=inside, typing_only=typed)


def _targets(node: ast.AST, module: Module, known: frozenset[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        source = node.module or ""
        if node.level:
            package = module.package.split(".")
            source = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
        inner = [f"{source}.{alias.name}" for alias in node.names]
        return [each if each in known else source for each in inner]
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__"):
        return [each.value for each in node.args[:1] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return []


@cache
def all_imports() -> list[tuple[Module, Import]]:
    known = frozenset(modules())
    return [(module, each) for module in modules().values() for each in imports_of(module, known)]


def own_imports() -> list[tuple[Module, Import]]:
    return [(module, each) for module, each in all_imports() if each.top in ("neuraldbg", "neural")]


def said(module: Module, line: int, text: str) -> str:
    return f"{module.place}:{line}: {text}"
