"""Tells somebody of chosen layers of one model: what each hands out, and the gradient that comes back to it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from neuraldbg.capture.guard import Guard
from neuraldbg.capture.torch.announce import Followed, first_tensor
from neuraldbg.capture.torch.core import cannot_look, undisturbed
from neuraldbg.capture.torch.tree import unwrap

Wants = Callable[[str, bool, bool], bool]  # (name, forward, is a leaf)
Tell = Callable[[str, Tensor, bool], None]  # (name, value or gradient, forward)


class LayerHooks:
    """One global hook, there only while some layer is wanted. Which layers are is asked once for each, and again after
    `refresh`. What is handed over is detached."""

    def __init__(self, model: nn.Module, wants: Wants, tell: Tell) -> None:
        self._model = weakref.ref(unwrap(model)[0])
        self._wants = wants
        self._guard = Guard(undisturbed=undisturbed)
        self._tell = self._guard.shield("a layer for hooks", lambda name, *_: name)(tell)
        self._chosen: dict[int, tuple[weakref.ref[nn.Module], str, bool, bool]] = {}
        self._handle: Any = None
        self._followed = Followed()
        self._closed = False
        self.refresh()

    def refresh(self) -> None:
        model = self._model()
        chosen: dict[int, tuple[weakref.ref[nn.Module], str, bool, bool]] = {}
        for path, module in () if model is None or self._closed else model.named_modules():
            name, leaf = path or type(module).__name__, next(module.children(), None) is None
            forward, backward = self._wants(name, True, leaf), self._wants(name, False, leaf)
            if forward or backward:
                chosen[id(module)] = (weakref.ref(module), name, forward, backward)
        self._chosen = chosen
        if chosen and self._handle is None:
            self._handle = torch_module.register_module_forward_hook(self._after)
        elif not chosen and self._handle is not None:
            self._handle.remove()
            self._handle = None

    def close(self) -> None:
        self._closed = True
        self._followed.close()
        self.refresh()

    def _after(self, module: nn.Module, _: Any, output: Any) -> None:
        known = self._chosen.get(id(module))
        if known is None or cannot_look():
            return
        ref, name, forward, backward = known
        if ref() is not module:
            return
        tensor = first_tensor(output)
        if tensor is None:
            return
        if forward:
            self._tell(name, tensor.detach(), True)
        if backward and tensor.requires_grad and torch.is_grad_enabled():
            self._follow(name, tensor)

    def _follow(self, name: str, tensor: Tensor) -> None:
        tell = self._tell

        def arrived(gradient: Tensor) -> None:
            if not self._closed:
                tell(name, gradient.detach(), False)

        self._followed.follow(name, tensor, arrived)
