"""Modules that are called by `.forward()` and so never meet a hook: their class's forward is wrapped until we leave."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn

from neuraldbg.capture.torch.core import Core, cannot_look
from neuraldbg.capture.torch.dispatch import compiled
from neuraldbg.capture.torch.hooks import PassWatch
from neuraldbg.capture.torch.members import modules_of, own_parameters
from neuraldbg.capture.torch.patches import Patches

LOOKED_AFTER = frozenset((0, 1, 2, 3, 4, 6, 8, 12, 16, 20))  # updates
_Forward = Callable[..., Any]


class Bypass:
    """After an update: a module that owns a parameter with a gradient has run. If its hooks never fired, it was
    called directly, or compiled: then it stays as it is, since another forward would be compiled anew."""

    def __init__(self, core: Core, passes: PassWatch, patches: Patches) -> None:
        self.core = core
        self.passes = passes
        self.patches = patches
        self._wrapped: set[type] = set()
        self._look = core.guard.shield("direct calls")(self._look_for_suspects)

    def wrap_suspects(self, modules: Any) -> None:
        for module in modules:
            kind = type(module)
            if kind in self._wrapped or "forward" not in vars(kind) or kind.__module__.startswith("torch."):
                continue
            self._wrapped.add(kind)
            self.core.bypassed = True
            self.patches.replace(kind, "forward", self._observing(kind.forward))
            text = f"{kind.__name__}.forward() is called directly, not through torch's hooks: watched by its class now"
            self.core.recorder.fact("note", level="info", text=text)

    def after_update(self, step: int) -> None:
        if step in LOOKED_AFTER and self.core.looking and not compiled():
            self._look()

    def _look_for_suspects(self) -> None:
        suspects = []
        for root, _ in self.core.tree.readable():
            suspects += [
                module
                for module in modules_of(root)
                if id(module) not in self.passes.layers.fired
                and any(parameter.grad is not None for parameter in own_parameters(module))
            ]
        self.wrap_suspects(suspects)

    def _observing(self, forward: _Forward) -> _Forward:
        passes, core = self.passes, self.core

        @wraps(forward)
        def observed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if cannot_look() or not core.on:
                return forward(module, *args, **kwargs)
            stack = core.here.local.stack
            if stack and stack[-1][0] is module:
                return forward(module, *args, **kwargs)  # torch's own hooks are already watching this call
            passes.pre_hook(module, args)
            finished: tuple[Any, ...] = (None,)
            try:
                result = forward(module, *args, **kwargs)
                finished = (kwargs, result)
                return result
            finally:
                passes.post_hook(module, args, *finished)

        return observed
