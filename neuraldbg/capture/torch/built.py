"""Modules that were made while they were watched, so that nobody has to search the whole process for one."""

from __future__ import annotations

from collections.abc import Collection
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.living import instances_of
from neuraldbg.capture.torch.core import Core, cannot_look
from neuraldbg.capture.torch.patches import Patches

_COPIED_BY = ("__setstate__", "__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__new__")


class BuiltModules:
    """Those with parameters or children. Who watches from the import of torch on has seen every one of them, but for
    those whose `__dict__` was filled from outside of their class."""

    def __init__(self, core: Core, patches: Patches) -> None:
        self.core = core
        self._known: IdentityTable[bool] = IdentityTable()
        self._from_the_start = bool(getattr(torch.__spec__, "_initializing", False))
        if not self._from_the_start:
            return
        self._met = core.guard.shield("modules being built")(self._meet)
        patches.handle(torch_module.register_module_module_registration_hook(self._registered))
        patches.handle(torch_module.register_module_parameter_registration_hook(self._registered))
        patches.replace(nn.Module, "__setstate__", self._restoring(nn.Module.__setstate__))

    def of(self, kinds: Collection[type]) -> list[Any]:
        """All that live and are exactly of these classes."""
        if self._from_the_start and all(map(_is_usual, kinds)):
            return [module for module, _ in self._known.items() if type(module) in kinds]
        return instances_of(tuple(kinds), exact=True)

    def _registered(self, parent: nn.Module, *_: Any) -> None:
        """Returns nothing: what a registration hook returns is registered instead."""
        if not self.core.closed and not cannot_look():
            self._met(parent)

    def _restoring(self, original: Any) -> Any:
        """A module that was copied or unpickled registers nothing."""

        @wraps(original)
        def __setstate__(module: nn.Module, state: Any) -> None:
            original(module, state)
            self._registered(module)

        return __setstate__

    def _meet(self, module: nn.Module) -> None:
        if module not in self._known:
            self._known[module] = True


def _is_usual(kind: type) -> bool:
    """Whether all ways to make one are known: by its constructor, by copying and by unpickling."""
    return all(getattr(kind, name, None) is getattr(nn.Module, name, None) for name in _COPIED_BY)
