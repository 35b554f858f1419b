"""The modules, parameters and buffers of a model as torch's own iterators give them, in a tenth of the time.

A model is walked through two dozen times in a step that is looked at closely, and torch opens a generator for every
module inside of another. Nothing is kept from one walk to the next: users add, share and replace modules as they train.
C does it where there is some; what is here is its twin.
"""

from __future__ import annotations

import sys

from torch import Tensor, nn

from neuraldbg.capture.kernels import frameless

_WAYS = ("modules", "named_modules", "parameters", "named_parameters", "named_buffers", "_named_members")
_USUAL = tuple(getattr(nn.Module, name) for name in _WAYS)
_NAMED_MODULES = nn.Module.named_modules
Named = list[tuple[str, nn.Module]]


def is_usual(root: nn.Module) -> bool:
    """Whether neither the class nor the object has a way of its own to name its parts."""
    if frameless.usual is not None:
        usual: bool = frameless.usual(root, _WAYS, _USUAL)
        return usual
    kind = type(root)
    found = (
        kind.modules,
        kind.named_modules,
        kind.parameters,
        kind.named_parameters,
        kind.named_buffers,
        kind._named_members,
    )
    return found == _USUAL and root.__dict__.keys().isdisjoint(_WAYS)


def named_modules_of(root: nn.Module, *, once: bool = True) -> Named:
    """`root.named_modules()`; of modules that are in several places, once or in each."""
    quickly = frameless.named_modules_in and frameless.named_modules_in(root, _NAMED_MODULES, once)
    found: Named = quickly or []
    if quickly:
        return found
    seen: set[nn.Module] = set()
    waiting = [("", root)]
    while waiting:
        path, module = entry = waiting.pop()
        if module in seen:
            continue
        if type(module).named_modules is not _NAMED_MODULES or "named_modules" in module.__dict__:
            return list(root.named_modules(remove_duplicate=once))
        if once:
            seen.add(module)
        elif path.count(".") > sys.getrecursionlimit():  # it stands inside of itself
            return list(root.named_modules(remove_duplicate=False))
        found.append(entry)
        if module._modules:
            inner = [
                (f"{path}.{name}" if path else name, child)
                for name, child in module._modules.items()
                if child is not None
            ]
            waiting += inner[::-1]
    return found


def modules_of(root: nn.Module) -> list[nn.Module]:
    """`root.modules()`."""
    if not is_usual(root):
        return list(root.modules())
    quickly = frameless.modules_in and frameless.modules_in(root, _NAMED_MODULES)
    found: list[nn.Module] = quickly or []
    if quickly:
        return found
    seen: set[nn.Module] = set()
    waiting = [root]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        if type(module).named_modules is not _NAMED_MODULES or "named_modules" in module.__dict__:
            return list(root.modules())
        seen.add(module)
        found.append(module)
        if module._modules:
            waiting += [child for child in list(module._modules.values())[::-1] if child is not None]
    return found


def parameters_of(root: nn.Module) -> list[Tensor]:
    """`root.parameters()`."""
    return held_parameters(modules_of(root)) if is_usual(root) else list(root.parameters())


def named_parameters_of(root: nn.Module) -> list[tuple[str, Tensor]]:
    """`root.named_parameters()`."""
    if not is_usual(root):
        return list(root.named_parameters())
    return _all_named(named_modules_of(root), "_parameters", once=True)


def every_named_parameter(root: nn.Module) -> list[tuple[str, Tensor]]:
    """`root.named_parameters(remove_duplicate=False)`."""
    if not is_usual(root):
        return list(root.named_parameters(remove_duplicate=False))
    return _all_named(named_modules_of(root, once=False), "_parameters", once=False)


def own_parameters(module: nn.Module) -> list[Tensor]:
    """`module.parameters(recurse=False)`."""
    if not is_usual(module):
        return list(module.parameters(recurse=False))
    return held_parameters([module]) if module._parameters else []


def own_named_parameters(module: nn.Module) -> list[tuple[str, Tensor]]:
    """`module.named_parameters(recurse=False)`."""
    if not module._parameters:
        return []
    if not is_usual(module):
        return list(module.named_parameters(recurse=False))
    return _all_named([("", module)], "_parameters", once=True)


def named_buffers_of(root: nn.Module) -> list[tuple[str, Tensor]]:
    """`root.named_buffers()`."""
    if not is_usual(root):
        return list(root.named_buffers())
    return _all_named(named_modules_of(root), "_buffers", once=True)


def _all_named(modules: Named, kind: str, *, once: bool) -> list[tuple[str, Tensor]]:
    """What they hold in dicts of that name; what is held in several places, once or in each."""
    quickly: list[tuple[str, Tensor]] | None = frameless.held_in and frameless.held_in(modules, kind, once)
    if quickly is not None:
        return quickly
    found = [
        (f"{path}.{name}" if path else name, held)
        for path, module in modules
        for name, held in getattr(module, kind).items()
        if held is not None
    ]
    if not once:
        return found
    first: dict[int, tuple[str, Tensor]] = {}
    for one in found:
        first.setdefault(id(one[1]), one)
    return list(first.values())


def held_parameters(modules: list[nn.Module]) -> list[Tensor]:
    """The parameters of these modules themselves, each once."""
    quickly: list[Tensor] | None = frameless.held_in and frameless.held_in(modules, "_parameters", True)
    if quickly is not None:
        return quickly
    found: dict[int, Tensor] = {}
    for module in modules:
        for parameter in module._parameters.values():
            if parameter is not None:
                found.setdefault(id(parameter), parameter)
    return list(found.values())
