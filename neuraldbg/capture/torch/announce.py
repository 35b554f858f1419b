"""Tells functions of the user's own when a layer runs, gets its gradient, or an update is made. Works without a run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

Tell = Callable[..., None]  # (event, **values)


class Announcer:
    """Global hooks, from the first event that somebody wants on until `close`. Layers are named by their path in the
    module that was called first; what is handed over is detached."""

    def __init__(self, tell: Tell, wanted: Callable[[str], bool]) -> None:
        self._tell = tell
        self._wanted = wanted
        self._local = threading.local()
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._updates = 0
        self._followed = Followed()
        self._handles: list[Any] = [
            torch_module.register_module_forward_pre_hook(self._before),
            torch_module.register_module_forward_hook(self._after, always_call=True),
            torch_optimizer.register_optimizer_step_post_hook(self._stepped),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._followed.close()

    @property
    def _depth(self) -> int:
        return getattr(self._local, "depth", 0)

    def _before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self._depth and module not in self._known:
            self._known.add(module)
            for path, each in module.named_modules():
                self._names.setdefault(each, path or type(each).__name__)
        self._local.depth = self._depth + 1
        if self._wanted("before_layer") and _is_layer(module):
            self._tell("before_layer", layer_name=self._name(module), activations=_first(args), module=module)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._local.depth = max(self._depth - 1, 0)
        if output is None or not _is_layer(module):  # None: its forward raised
            return
        name = self._name(module)
        if self._wanted("after_layer"):
            self._tell("after_layer", layer_name=name, activations=_first(output), module=module)
        self._follow("before_backward", name, output)
        self._follow("after_backward", name, args if any(t.requires_grad for t in _tensors(args)) else output)

    def _follow(self, event: str, name: str, value: Any) -> None:
        """Tells when the gradient of a tensor arrives: that of the output before a layer's backward, of its input
        after it."""
        tensor = next((t for t in _tensors(value) if t.requires_grad), None) if self._wanted(event) else None
        if tensor is None or not torch.is_grad_enabled():
            return

        def arrived(gradient: Tensor) -> None:
            self._tell(event, layer_name=name, gradients=gradient.detach())

        self._followed.follow((event, name), tensor, arrived)

    def _stepped(self, *_: Any) -> None:
        step, self._updates = self._updates, self._updates + 1
        if self._wanted("after_step"):
            self._tell("after_step", step=step)

    def _name(self, module: nn.Module) -> str:
        return self._names.get(module) or type(module).__name__


class Followed:
    """Hooks on the gradients of tensors. One on a leaf (a learned prompt, an image that is optimised) would stay there
    and be called once more with every pass: the one before it goes first."""

    def __init__(self) -> None:
        self._on_leaves: dict[Hashable, Any] = {}

    def follow(self, what: Hashable, tensor: Tensor, arrived: Callable[[Tensor], None]) -> None:
        hook: Callable[..., Any] = tensor.register_hook
        if not tensor.is_leaf:
            hook(arrived)
            return
        before = self._on_leaves.pop(what, None)
        if before is not None:
            before.remove()
        self._on_leaves[what] = hook(arrived)

    def close(self) -> None:
        while self._on_leaves:
            self._on_leaves.popitem()[1].remove()


def _is_layer(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def first_tensor(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) else next(_tensors(value), None)


def _first(value: Any) -> Any:
    """The first tensor, apart from the graph; the value itself where there is none."""
    found = first_tensor(value)
    return value if found is None else found.detach()
