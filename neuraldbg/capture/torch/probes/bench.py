"""What every experiment is given: the stage, the batches, the time that is left, and names for places."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.nested import map_leaves
from neuraldbg.capture.torch.passes import KeptTensor
from neuraldbg.capture.torch.probes.loss_replay import TapedPass
from neuraldbg.capture.torch.probes.mixing import Place
from neuraldbg.capture.torch.probes.sample import Sample, Samples, Specimen
from neuraldbg.capture.torch.probes.stage import Change, Stage, Weights, as_recorded, flags_of, seeded

Fact = dict[str, Any]


class Skip(Exception):
    """An experiment that has nothing to say here, and why."""


class Allowance:
    """Seconds of this thread's own work, within a limit on the clock: a busy machine gives less of them."""

    def __init__(self, seconds: float, most: float) -> None:
        self._began = time.thread_time()
        self._work = self._began + seconds
        self._clock_began = time.monotonic()
        self._clock = self._clock_began + most

    @property
    def left_s(self) -> float:
        return min(self._work - time.thread_time(), self._clock - time.monotonic())

    def raise_to(self, seconds: float) -> None:
        """Allow for more work since the beginning, and twice as much on the clock of a busy machine."""
        self._work = max(self._work, self._began + seconds)
        self._clock = max(self._clock, self._clock_began + 2 * seconds)

    def part(self, seconds: float) -> Allowance:
        """A share of it, not more than is left."""
        left = self._clock - time.monotonic()
        return Allowance(min(seconds, self.left_s), min(2 * max(seconds, 0.0), left))


@dataclass(eq=False)
class Bench:
    core: Core
    samples: Samples
    specimen: Specimen
    stage: Stage
    time: Allowance

    @property
    def left_s(self) -> float:
        return self.time.left_s

    @property
    def last(self) -> Sample:
        return self.specimen.samples[-1]

    def last_pass(self, sample: Sample) -> TapedPass:
        return sample.tape.passes[sample.tape.used_passes[-1]]

    def about(self, sample: Sample, state: str) -> Fact:
        model = self.core.tree.models.get(self.last_pass(sample).root)
        return {
            "model": None if model is None else model.name,
            "model_site": None if model is None else model.site,
            "at_step": sample.step,
            "state": state,
        }

    def outputs(self, sample: Sample, weights: Weights, change: Change | None = None, *, seed: int = 0) -> list[Tensor]:
        """What the last pass of a sample puts out, without a graph, with fixed random numbers."""
        seeded(seed)
        with torch.no_grad():
            _, outputs = self.stage.loss(sample, weights, change=change)
        return [tensor.detach().clone() for tensor in outputs[sample.tape.used_passes[-1]]]

    def modes(self, sample: Sample) -> dict[str, Callable[[], None]]:
        """Ways to set the training flags, by name."""
        roots = self.specimen.roots

        def all_eval() -> None:
            for root in roots:
                flags_of(root, training=False)

        def norms_in_eval() -> None:
            as_recorded(sample)
            for root in roots:
                flags_of(root, training=None, norms=False)

        def dropouts_in_eval() -> None:
            as_recorded(sample)
            for root in roots:
                flags_of(root, training=None, dropouts=False)

        return {
            "eval": all_eval,
            "train": lambda: as_recorded(sample),
            "norms_eval": norms_in_eval,
            "no_dropout": dropouts_in_eval,
        }

    def where(self, place: Place | None, one: TapedPass) -> Fact:
        """A place in the model as fields of a fact."""
        empty = dict.fromkeys(("layer_site", "layer", "layer_class", "op", "op_dim", "source", "share_in", "share_out"))
        if place is None:
            return empty
        module = None if place.layer is None else one.entry.get_submodule(place.layer)
        layer = None if module is None else self.core.tree.layers.get(module)
        return {
            "layer_site": None if layer is None else layer.site,
            "layer": place.layer if layer is None else layer.path,
            "layer_class": place.kind,
            "op": place.operation.strip("_"),
            "op_dim": place.dim,
            "source": place.source,
            "share_in": place.before,
            "share_out": place.after,
        }


def inputs_of(one: TapedPass) -> dict[int, Tensor]:
    """The recorded tensors among a pass's arguments, by place; those computed from earlier passes are left out."""
    found: dict[int, Tensor] = {}
    place = -1

    def look(kept: KeptTensor) -> KeptTensor:
        nonlocal place
        place += 1
        if place not in one.inputs:
            found[place] = kept.tensor
        return kept

    map_leaves((_plain(one.record.args), _plain(one.record.kwargs)), KeptTensor, look)
    return found


def _plain(value: Any) -> Any:
    """Named tuples as tuples: only their leaves are wanted here."""
    items = getattr(value, "items", None)
    if type(value).__name__ == "NamedItems":
        return tuple(_plain(item) for item in items or ())
    if isinstance(value, tuple | list):
        return type(value)(_plain(item) for item in value) if type(value) in (tuple, list) else value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0


def finite(value: float | None) -> float | None:
    """Facts hold finite numbers or null."""
    return value if value is not None and -1e300 < value < 1e300 else None
