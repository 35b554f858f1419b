"""BatchNorm and its like: how many values each channel sees, how fast the running statistics move, who freezes them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.tree import Layer

MOST_LAYERS = 256


@dataclass
class Seen:
    """What was seen of one normalisation layer."""

    site: int
    momentum: float | None
    tracks: bool
    training_looks: int = 0
    frozen_looks: int = 0  # the last ones in a row, in training mode although its whole block is frozen
    frozen_since: int | None = None
    fewest_values: int | None = None  # per channel, in training mode
    batch: int | None = None
    tracked: int | None = None  # batches its running statistics have seen


class NormLayers:
    """One fact `batchnorm` per layer, at the end and when it was first seen."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self._seen: dict[int, Seen] = {}
        self._fresh: set[int] = set()
        self.core.take_part("layer_run", "normalisation layers", self._layer)
        capture.passes.layers.tell_only(self._layer, lambda kind: issubclass(kind, _BatchNorm))
        self.core.take_part("pass_begun", "normalisation in evaluation", self._begun, rarely=True)
        self.core.take_part("ending", "normalisation layers", self._end)

    def _layer(self, module: _BatchNorm, layer: Layer, one: Pass, values: Any) -> None:
        if len(self._seen) > MOST_LAYERS:
            return
        seen = self._seen.get(layer.site)
        new = seen is None
        if seen is None:
            momentum = module.momentum
            seen = Seen(layer.site, None if momentum is None else float(momentum), bool(module.track_running_stats))
            self._seen[layer.site] = seen
        entered = next(tensors(values[0]), None)
        if module.training and one.grad and entered is not None and entered.dim() >= 2:
            seen.training_looks += 1
            size = int(entered.numel() // max(entered.shape[1], 1))
            seen.batch = int(entered.shape[0])
            seen.fewest_values = size if seen.fewest_values is None else min(seen.fewest_values, size)
            self._note_frozen(seen, frozen=_frozen_block(module, layer, one))
        seen.tracked = _tracked(module)
        if new:
            self._write(seen)

    def _note_frozen(self, seen: Seen, *, frozen: bool) -> None:
        if not frozen:
            seen.frozen_looks, seen.frozen_since = 0, None
            return
        seen.frozen_looks += 1
        if seen.frozen_since is None:
            seen.frozen_since = self.core.recorder.step

    def _begun(self, one: Pass, root: Any, *_: Any) -> None:
        """An evaluation whose normalisation has never seen a batch: mean 0, variance 1, count 0."""
        if one.grad or one.model.site in self._fresh or one.model.passes > 2 or not isinstance(root, nn.Module):
            return
        layers = [module for module in root.modules() if isinstance(module, _BatchNorm) and not module.training]
        if layers and all(_tracked(module) == 0 and _untouched(module) for module in layers):
            self._fresh.add(one.model.site)
            self.core.recorder.fact("batchnorm_fresh", model=one.model.site, layers=len(layers))

    def _write(self, seen: Seen) -> None:
        self.core.recorder.fact("batchnorm", **asdict(seen))

    def _end(self) -> None:
        for seen in self._seen.values():
            self._write(seen)


def _tracked(module: _BatchNorm) -> int | None:
    count = module.num_batches_tracked
    return int(count) if isinstance(count, Tensor) and count.device.type == "cpu" else None


@torch.no_grad()
def _untouched(module: _BatchNorm) -> bool:
    mean, var = module.running_mean, module.running_var
    if mean is None or var is None or mean.device.type != "cpu":
        return False
    return not bool(mean.any()) and bool((var == 1).all())


def _frozen_block(module: _BatchNorm, layer: Layer, one: Pass) -> bool:
    """Its own scale and shift are frozen, and so is everything else in the block it stands in."""
    root = one.model.ref()
    if root is None or module.weight is None or module.weight.requires_grad:
        return False
    parent = root.get_submodule(layer.path.rpartition(".")[0]) if layer.path else root
    return not any(parameter.requires_grad for parameter in parent.parameters())
