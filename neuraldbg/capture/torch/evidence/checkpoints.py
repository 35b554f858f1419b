"""States that are saved and loaded: what a load matched, whether it copied anything, what of a file was never read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neuraldbg.capture.torch.core import cannot_look

MOST_FACTS = 64
MOST_SAVES = 256
MOST_TENSORS = 512  # of a state that are compared with their targets
NAMED = 3


class Checkpoints:
    """Facts `state_loaded` (each load of a module or optimizer), `state_taken` (an optimizer's state was asked for),
    `checkpoint_read` (what torch.load returned) and `checkpoint_saved` (a state or model that torch.save wrote)."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self.updates = capture.updates
        self._written = 0
        self._saves = 0
        self._shared = 0
        self.core.take_part("loading", "states about to be loaded", self._loading)
        self.core.take_part("loaded", "loaded states", self._loaded)
        shield = self.core.guard.shield("checkpoints")
        capture.patches.replace(torch, "load", self._noted(torch.load, shield(self._read)))
        capture.patches.replace(torch, "save", self._noted(torch.save, shield(self._saved)))
        taken = self._noted(Optimizer.state_dict, shield(self._taken))
        capture.patches.replace(Optimizer, "state_dict", taken)

    def _noted(self, original: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.core.on and not cannot_look():
                note(result, *args)
            return result

        return call

    def _fact(self, type: str, **fields: Any) -> None:
        self._written += 1
        if self._written <= MOST_FACTS:
            recorder = self.core.recorder
            recorder.fact(type, line=recorder.frames.line(3), **fields)

    def _loading(self, owner: Any, state: Any) -> None:
        """Before the copy: tensors of the state that live where the module's own tensors live."""
        self._shared = 0
        if not isinstance(owner, nn.Module) or not isinstance(state, Mapping):
            return
        own = {name: tensor.data_ptr() for name, tensor in _tensors_of(owner) if tensor.numel()}
        given = islice(((name, value) for name, value in state.items() if isinstance(value, Tensor)), MOST_TENSORS)
        self._shared = sum(own.get(name) == value.data_ptr() for name, value in given if _has_pointer(value))

    def _loaded(self, owner: Any, state: Any, result: Any, _: int) -> None:
        if isinstance(owner, Optimizer):
            known = self.updates.optimizers.get(owner)
            self._fact("state_loaded", owner="optimizer", site=None if known is None else known.site)
        elif isinstance(owner, nn.Module) and isinstance(state, Mapping):
            layer = self.core.tree.layers.get(owner)
            missing, unexpected = (
                list(getattr(result, "missing_keys", ())),
                list(getattr(result, "unexpected_keys", ())),
            )
            names = self.core.recorder.frames.names_of(owner)
            self._fact(
                "state_loaded",
                owner="module",
                site=None if layer is None else layer.site,
                model=None if layer is None else layer.model.site,
                name=names[0] if names else type(owner).__name__,
                keys=sum(isinstance(value, Tensor) for value in state.values()),
                own_keys=sum(1 for _ in _tensors_of(owner)),
                shared=self._shared,
                missing=len(missing),
                unexpected=len(unexpected),
                missing_names=missing[:NAMED],
                unexpected_names=[str(name) for name in unexpected[:NAMED]],
            )

    def _read(self, result: Any, *_: Any) -> None:
        states, weights, bare = _states_in(result)
        if states or weights or bare:
            self._fact("checkpoint_read", optimizer_keys=states, module_keys=weights, is_weights=bare)

    def _saved(self, _: Any, saved: Any = None, file: Any = None, *__: Any) -> None:
        recorder = self.core.recorder
        if any(_states_in(saved)) or is_optimizer_state(saved) or isinstance(saved, nn.Module):
            self._saves += 1
            if self._saves <= MOST_SAVES:
                name = os.path.basename(file) if isinstance(file, str | os.PathLike) else None
                recorder.fact("checkpoint_saved", file=name, line=recorder.frames.line(3))

    def _taken(self, result: Any, optimizer: Any = None, *_: Any) -> None:
        known = self.updates.optimizers.get(optimizer)
        if known is not None and is_optimizer_state(result):
            full = bool(result["state"])
            self._fact("state_taken", site=known.site, updates=known.updates, has_state=full)


def _states_in(saved: Any) -> tuple[list[str], list[str], bool]:
    """Keys of optimizers' states and of modules' states, and whether it is itself one of a module."""
    if not isinstance(saved, Mapping):
        return [], [], False
    entries = list(islice(saved.items(), 64))
    states = [str(name) for name, value in entries if is_optimizer_state(value)]
    weights = [str(name) for name, value in entries if _is_module_state(value)]
    return states, weights, _is_module_state(saved)


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _has_pointer(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta


def is_optimizer_state(value: Any) -> bool:
    return isinstance(value, Mapping) and "param_groups" in value and "state" in value


def _is_module_state(value: Any) -> bool:
    """A mapping of dotted names to tensors."""
    if not isinstance(value, Mapping) or not value:
        return False
    some = list(islice(value.items(), 8))
    return all(isinstance(name, str) and isinstance(each, Tensor) for name, each in some)
