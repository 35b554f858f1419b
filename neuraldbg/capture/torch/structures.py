"""How models are built, remembered from pass to pass: to look at what lies around one (training flags, which parameters
are trainable, buffers), nobody walks through all its names again."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.kernels import frameless
from neuraldbg.capture.torch.members import named_modules_of
from neuraldbg.capture.torch.pieces import copy_of
from neuraldbg.capture.torch.ungraded import ungraded

# training flags of the modules; requires_grad of the parameters, module by module; (path, name, buffer)
Surroundings = tuple[tuple[bool, ...], tuple[bool, ...], list[tuple[str, str, Tensor]]]
Modules = list[tuple[str, weakref.ref[nn.Module]]]
Children = list[tuple[str | int, ...]]  # of each module: name and id of the first, of the second, ...


@dataclass(eq=False)
class Structure:
    """Of one model. Holds nothing of it alive."""

    modules: Modules
    children: Children

    @classmethod
    def of(cls, root: nn.Module) -> Structure:
        named = named_modules_of(root)
        return cls([(path, weakref.ref(module)) for path, module in named], _children([each for _, each in named]))

    def look(self) -> Surroundings | None:
        """None where it is no longer built like this."""
        found = None if frameless.surroundings is None else frameless.surroundings(self.modules, self.children)
        return (surroundings(self.modules, self.children) if found is None else found) or None


def surroundings(modules: Modules, children: Children) -> Surroundings | Literal[False]:
    """False where a module is gone or has other children, or other names for them."""
    found = [(path, module) for path, ref in modules if (module := ref()) is not None]
    whole = len(found) == len(modules)  # a new child may lie where one was that is gone
    if not whole or _children([module for _, module in found]) != children:
        return False
    training: list[bool] = []
    trainable: list[bool] = []
    buffers: list[tuple[str, str, Tensor]] = []
    for path, module in found:
        training.append(module.training)
        trainable += [p.requires_grad for p in module._parameters.values() if p is not None]
        buffers += [(path, name, buffer) for name, buffer in module._buffers.items() if buffer is not None]
    return tuple(training), tuple(trainable), buffers


def _children(modules: list[nn.Module]) -> Children:
    return [
        tuple([part for name, child in module._modules.items() for part in (name, id(child))]) for module in modules
    ]


class Structures:
    def __init__(self) -> None:
        self._known: IdentityTable[Structure] = IdentityTable()

    def look(self, root: nn.Module) -> Surroundings:
        structure = self._known.get(root)
        found = None if structure is None else structure.look()
        if found is None:
            structure = self._known[root] = Structure.of(root)
            found = structure.look() or ((), (), [])
        return found


def named_buffers(seen: Surroundings) -> dict[str, Tensor]:
    """As a module tells them: one that stands in several places by its first name."""
    found: dict[str, Tensor] = {}
    known: set[int] = set()
    for path, name, buffer in seen[2]:
        if id(buffer) not in known:
            known.add(id(buffer))
            found[f"{path}.{name}" if path else name] = buffer
    return found


@ungraded
def copies_of(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: copy_of(buffer) for name, buffer in buffers.items()}
