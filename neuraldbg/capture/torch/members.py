"""The modules, parameters and buffers of a model as torch's own iterators give them, in a tenth of the time.

A model is walked through a dozen times in a step that is looked at closely, and torch opens a generator for every
module inside of another. Nothing is kept from one walk to the next: users add, share and replace modules as they train.
"""

from __future__ import annotations

import sys

from torch import Tensor, nn

_WAYS = ("modules", "named_modules", "parameters", "named_parameters", "named_buffers", "_named_members")
_USUAL = tuple(getattr(nn.Module, name) for name in _WAYS)
_NAMED_MODULES = nn.Module.named_modules
Named = list[tuple[str, nn.Module]]


def is_usual(root: nn.Module) -> bool:
    """Whether neither the class nor the object has a way of its own to name its parts."""
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
    found: Named = []
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
    found: list[nn.Module] = []
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
    return _parameters_in(modules_of(root)) if is_usual(root) else list(root.parameters())


def named_parameters_of(root: nn.Module) -> list[tuple[str, Tensor]]:
    """`root.named_parameters()`."""
    if not is_usual(root):
        return list(root.named_parameters())
    found: dict[int, tuple[str, Tensor]] = {}
    for name, parameter in _all_named(named_modules_of(root)):
        found.setdefault(id(parameter), (name, parameter))
    return list(found.values())


def every_named_parameter(root: nn.Module) -> list[tuple[str, Tensor]]:
    """`root.named_parameters(remove_duplicate=False)`."""
    if not is_usual(root):
        return list(root.named_parameters(remove_duplicate=False))
    return _all_named(named_modules_of(root, once=False))


def own_parameters(module: nn.Module) -> list[Tensor]:
    """`module.parameters(recurse=False)`."""
    if not is_usual(module):
        return list(module.parameters(recurse=False))
    return _parameters_in([module]) if module._parameters else []


def own_named_parameters(module: nn.Module) -> list[tuple[str, Tensor]]:
    """`module.named_parameters(recurse=False)`."""
    if not module._parameters:
        return []
    if not is_usual(module):
        return list(module.named_parameters(recurse=False))
    found: dict[int, tuple[str, Tensor]] = {}
    for name, parameter in module._parameters.items():
        if parameter is not None:
            found.setdefault(id(parameter), (name, parameter))
    return list(found.values())


def named_buffers_of(root: nn.Module) -> list[tuple[str, Tensor]]:
    """`root.named_buffers()`."""
    if not is_usual(root):
        return list(root.named_buffers())
    found: dict[int, tuple[str, Tensor]] = {}
    for path, module in named_modules_of(root):
        if module._buffers:
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    found.setdefault(id(buffer), (f"{path}.{name}" if path else name, buffer))
    return list(found.values())


def _all_named(modules: Named) -> list[tuple[str, Tensor]]:
    return [
        (f"{path}.{name}" if path else name, parameter)
        for path, module in modules
        if module._parameters
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]


def _parameters_in(modules: list[nn.Module]) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    for module in modules:
        for parameter in module._parameters.values():
            if parameter is not None:
                found.setdefault(id(parameter), parameter)
    return list(found.values())
