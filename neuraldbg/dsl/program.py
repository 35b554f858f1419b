"""A whole `.neural` file: its networks, macros, research notes, and what is to be said about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuraldbg.dsl import syntax
from neuraldbg.dsl.expand import plain
from neuraldbg.dsl.lexer import Token
from neuraldbg.dsl.model import Block, Branch, Choice, Chooser, Layer, Network, Node, Setting
from neuraldbg.dsl.networks import NetworkReader, macros_of
from neuraldbg.dsl.parser import read
from neuraldbg.dsl.problems import Problem, Severity, Source, mistakes
from neuraldbg.dsl.settings import check_settings
from neuraldbg.errors import DslError, DslFileNotFound, nearest

SUFFIXES = (".neural", ".nr", ".rnr")


@dataclass(frozen=True)
class Program:
    """What `parse` returns: `.networks`, `.research`, `.problems` (warnings and notes; mistakes are raised)."""

    source: Source
    tree: syntax.File
    comments: list[Token]
    networks: tuple[Network, ...]
    problems: tuple[Problem, ...]

    @property
    def research(self) -> list[dict[str, Any]]:
        found = [item for item in self.tree.items if isinstance(item, syntax.Research)]
        return [
            {
                "name": item.name,
                "metrics": {a.name: getattr(a.value, "value", None) for a in item.metrics},
                "references": [getattr(a.value, "value", None) for a in item.references],
            }
            for item in found
        ]

    def network(self, name: str | None = None) -> Network:
        """The network of that name; without one, the first."""
        for network in self.networks:
            if name is None or network.name == name:
                return network
        known = [network.name for network in self.networks]
        near = nearest(name or "", known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known) or 'none'}"
        raise DslError(f"{self.source.name}: no network {name!r}; {hint}")

    def resolved(self, choose: Chooser) -> Program:
        """The same file with its open choices decided by `choose`."""
        return _program(self.source, self.tree, self.comments, choose)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Every network as the original's parser returned it; what is left to a search is told as such."""
        open_choices = self.resolved(Choice.as_dict) if any(n.choices for n in self.networks) else self
        return [as_dict(network) for network in open_choices.networks]


def parse(text: str, name: str = "<text>") -> Program:
    """Read a `.neural` file. Raises `DslError` with every mistake that was found, each with line and column."""
    source = Source(text, name)
    tree, comments, problems = read(source)
    if any(problem.severity.fatal for problem in problems):
        raise mistakes(problems, source, DslError)
    return _program(source, tree, comments, first_choice)


def parse_file(path: str | Path) -> Program:
    """`parse` of a file; its path stands in every problem."""
    return parse(read_text(path), str(path))


def read_text(path: str | Path) -> str:
    file = Path(path)
    try:
        return file.read_text(encoding="utf-8-sig")
    except IsADirectoryError:
        raise DslFileNotFound(f"can't open file {str(path)!r}: it is a directory") from None
    except (FileNotFoundError, NotADirectoryError):
        known = [each.name for suffix in SUFFIXES for each in file.parent.glob(f"*{suffix}")]
        near = nearest(file.name, known, 1)
        hint = f"; did you mean {str(file.parent / near[0])!r}?" if near else ""
        raise DslFileNotFound(f"can't open file {str(path)!r}: no such file{hint}") from None
    except PermissionError:
        raise DslFileNotFound(f"can't open file {str(path)!r}: no permission to read it") from None
    except UnicodeDecodeError as error:
        raise DslError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from None


def first_choice(choice: Choice) -> Any:
    return choice.first


def _program(source: Source, tree: syntax.File, comments: list[Token], choose: Chooser) -> Program:
    macros, problems = macros_of(tree, source)
    networks = []
    for item in tree.items:
        if isinstance(item, syntax.NetworkNode):
            reader = NetworkReader(source, macros, item, choose)
            networks.append(reader.read())
            problems += reader.problems
    if not tree.items:
        problems.append(Problem(Severity.ERROR, 1, 1, "the file holds no network"))
    if any(problem.severity.fatal for problem in problems):
        settings = [each for network in networks for each in check_settings(network)]  # all mistakes in one run
        raise mistakes(dict.fromkeys([*problems, *settings]), source, DslError)
    return Program(source, tree, comments, tuple(networks), tuple(problems))


# -- the model dict of the original ------------------------------------------------------------------------------------


def as_dict(network: Network) -> dict[str, Any]:
    shapes = [tuple(each.shape) for each in network.inputs]
    told: dict[str, Any] = {
        "name": network.name,
        "input": {"type": "Input", "shape": shapes[0] if len(shapes) == 1 else shapes},
        "layers": [each for node in network.layers for each in _layer_dicts(node)],
        "loss": None if network.loss is None else network.loss.name,
        "optimizer": _setting_dict(network.optimizer),
        "training": plain(network.training),
    }
    if len(shapes) > 1 and all(each.name for each in network.inputs):
        told["input"]["shape"] = {str(each.name): tuple(each.shape) for each in network.inputs}
    if network.metrics:
        told["metrics"] = list(network.metrics)
    if network.execution:
        told["execution"] = told["execution_config"] = plain(network.execution)
    return told


def _setting_dict(setting: Setting | None) -> dict[str, Any] | None:
    return None if setting is None else {"type": setting.name, "params": plain(setting.params)}


def _layer_dicts(node: Node) -> list[dict[str, Any]]:
    if isinstance(node, Block):
        return [each for layer in node.layers for each in _layer_dicts(layer)]
    if isinstance(node, Branch):
        inner = [each for layer in node.layers for each in _layer_dicts(layer)]
        return [{"type": "Branch", "params": {"name": node.name}, "sublayers": inner}]
    return [_layer_dict(node)]


def _layer_dict(layer: Layer) -> dict[str, Any]:
    params = plain(layer.params)
    if layer.inner is not None:
        params["layer"] = _layer_dict(layer.inner)
    if layer.device is not None:
        params["device"] = layer.device
    sublayers = [each for node in layer.sublayers for each in _layer_dicts(node)]
    return {"type": layer.type, "params": params or None, "sublayers": sublayers}
