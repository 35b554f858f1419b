"""Parameters that a module uses and does not own: kept in plain lists, dicts, sets or as bare tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor, nn

from neuraldbg.capture.torch.members import modules_of, named_modules_of, parameters_of

_MOST_ITEMS = 512
_DEEPEST = 3
_OWN = frozenset(vars(nn.Module())) - {"training"}


@dataclass(frozen=True, slots=True)
class Hidden:
    parameter: Tensor
    owner: str  # path of the module that keeps it
    owner_class: str
    attribute: str  # "blocks", or "encoder.blocks"
    container: str  # "list", "dict", "tensor", ...
    module: nn.Module | None  # the sub-module it belongs to

    def nested_model(self, tree: Any) -> bool:
        """Whether it counts as a parameter of a model only because its module looked like a model of its own."""
        return self.module is not None and self.module in tree.models


def hidden_parameters(root: nn.Module) -> Iterator[Hidden]:
    """What is reachable from the attributes of a model's modules but not from parameters()."""
    modules = named_modules_of(root)
    theirs = [(path, module) for path, module in modules if not type(module).__module__.startswith("torch.")]
    registered = {id(parameter) for parameter in parameters_of(root)} if theirs else set()
    own_modules = {id(module) for module in modules_of(root)} if theirs else set()
    for path, module in theirs:
        for name, value in list(vars(module).items()):
            if name in _OWN or name.startswith("__"):
                continue
            for inner, parameter in _inside(value, own_modules, 0):
                if id(parameter) not in registered:
                    attribute = f"{path}.{name}" if path else name
                    container = type(value).__name__ if not isinstance(value, Tensor) else "tensor"
                    yield Hidden(parameter, path, type(module).__name__, attribute, container, inner)


def _inside(value: Any, own: set[int], depth: int) -> Iterator[tuple[nn.Module | None, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_leaf and value.requires_grad:
            yield None, value
    elif isinstance(value, nn.Module):
        if id(value) not in own:
            for parameter in value.parameters():
                yield value, parameter
    elif depth < _DEEPEST and type(value) in (list, tuple, dict, set, frozenset):
        items = value.values() if type(value) is dict else value
        for item in islice(items, _MOST_ITEMS):
            yield from _inside(item, own, depth + 1)
