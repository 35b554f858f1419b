"""A short training on recorded batches with the run's own optimizer, or with one thing about it changed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from neuraldbg.capture.torch.probes.bench import Allowance
from neuraldbg.capture.torch.probes.sample import OptimizerTrace, Sample
from neuraldbg.capture.torch.probes.stage import Stage, Weights, as_recorded, seeded, without_dropout

BLOWN_UP = 1e3  # times the first loss
CURVE = 16
PERMUTATIONS = 8


@dataclass(frozen=True, slots=True)
class Change:
    """What an arm does differently from the run."""

    rate: float = 1.0
    momentum: float | None = None
    weight_decay: float | None = None
    clip: float | None = None  # a bound on the norm where the run has none
    unclipped: bool = False
    warm_up: int = 0  # updates
    loss_factor: float = 1.0
    thawed: bool = False  # parameters with requires_grad=False learn as well
    joined: int = 1  # batches whose gradients are averaged before each update
    quiet: bool = False  # no dropout


@dataclass(eq=False)
class Arm:
    first: float = math.nan
    last: float = math.nan
    lowest: float = math.nan
    updates: int = 0
    diverged: bool = False
    swings: float = 0.0
    seconds: float = 0.0  # of the updates alone
    moved: float = math.nan  # size of the first update over that of the weights, in the median of weight tensors
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: Weights = field(default_factory=dict)

    def as_fact(self) -> dict[str, Any]:
        stride = max(1, math.ceil(len(self.losses) / CURVE))
        curve = [sum(part) / len(part) for part in _parts(self.losses, stride)]
        return {
            "first": _finite(self.first),
            "last": _finite(self.last),
            "min": _finite(self.lowest),
            "updates": self.updates,
            "diverged": self.diverged,
            "swings": self.swings,
            "curve": [_finite(value) for value in curve],
        }


def _parts(values: list[float], stride: int) -> list[list[float]]:
    return [values[start : start + stride] for start in range(0, len(values), stride)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) and abs(value) < 1e300 else None


@dataclass(eq=False)
class Trial:
    """One arm. `backwards` = how many the run sums up before an update: their gradients add."""

    stage: Stage
    samples: list[Sample]
    traces: list[OptimizerTrace]
    change: Change = Change()
    backwards: int = 1
    first: float = math.nan  # mean loss over the samples before any update
    at_update: int = 0  # of the run: where in its learning rates the arm begins

    def run(self, updates: int, time_left: Allowance, *, start: Weights | None = None) -> Arm:
        weights = start or self.stage.weights(initial=bool(self.stage.specimen.initial))
        leaves = self._leaves(weights)
        optimizers = [self._optimizer(trace, leaves) for trace in self.traces]
        arm = Arm(first=self.first, weights=weights)
        seeded(0)
        began = time.thread_time()
        for update in range(updates):
            loss = self._gradients(weights, leaves, update, arm)
            if not math.isfinite(loss) or abs(loss) > BLOWN_UP * max(abs(self.first), 1e-3):
                arm.diverged = True
                break
            before = {} if arm.updates else _weights(leaves)
            for trace, optimizer in zip(self.traces, optimizers, strict=True):
                self._step(trace, optimizer, update)
            arm.moved = _moved(leaves, before) if before else arm.moved
            arm.updates += 1
            if time_left.left_s <= 0 and update >= 3:
                break
        arm.seconds = time.thread_time() - began
        self._sum_up(arm)
        return arm

    def _leaves(self, weights: Weights) -> dict[int, Tensor]:
        """Trainable stand-ins for the parameters, put among the weights."""
        found = {}
        for parameter in self.stage.parameters():
            learns = parameter.requires_grad or (self.change.thawed and parameter.is_floating_point())
            leaf = weights[id(parameter)].requires_grad_(learns)
            if learns:
                found[id(parameter)] = leaf
        return found

    def _optimizer(self, trace: OptimizerTrace, leaves: dict[int, Tensor]) -> Optimizer:
        groups: list[dict[str, Any]] = []
        for options, ids in zip(trace.options, trace.parameters, strict=True):
            mine = [leaves[number] for number in ids if number in leaves]
            if mine:
                groups.append({**options, **self._changed(options), "params": mine})
        if self.change.thawed and groups and trace is self.traces[0]:
            known = {number for one in self.traces for ids in one.parameters for number in ids}
            groups[0]["params"] += [leaf for number, leaf in leaves.items() if number not in known]
        make: Any = trace.kind
        optimizer: Optimizer = make(groups)
        return optimizer

    def _changed(self, options: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"fused": None, "foreach": None} if "foreach" in options else {}
        found = {name: value for name, value in found.items() if name in options}
        if self.change.weight_decay is not None and "weight_decay" in options:
            found["weight_decay"] = self.change.weight_decay
        if self.change.momentum is not None and "momentum" in options:
            found["momentum"] = self.change.momentum
        if self.change.momentum is not None and "betas" in options:
            found["betas"] = (self.change.momentum, options["betas"][1])
        if isinstance(options.get("lr"), Tensor):
            found["lr"] = float(options["lr"])
        return found

    def _gradients(self, weights: Weights, leaves: dict[int, Tensor], update: int, arm: Arm) -> float:
        joined = max(1, self.change.joined)
        total: list[Tensor | None] = [None] * len(leaves)
        value = 0.0
        for part in range(joined):
            sample = self.samples[(update * joined + part) % len(self.samples)]
            (without_dropout if self.change.quiet else as_recorded)(sample)
            loss, _ = self.stage.loss(sample, weights)
            value += float(loss.detach()) / joined
            scaled = loss * (self.backwards * self.change.loss_factor / joined)
            found = torch.autograd.grad(scaled, list(leaves.values()), allow_unused=True)
            total = [_plus(a, b) for a, b in zip(total, found, strict=True)]
        arm.losses.append(value)
        for leaf, gradient in zip(leaves.values(), total, strict=True):
            leaf.grad = gradient
        self._clip(leaves.values(), arm)
        return value

    def _clip(self, leaves: Iterable[Tensor], arm: Arm) -> None:
        found = [leaf for leaf in leaves if leaf.grad is not None and leaf.grad.layout == torch.strided]
        if not found:
            return
        clip = next((trace.clip for trace in self.traces if trace.clip is not None), None)
        limit = math.inf
        if clip is not None and not self.change.unclipped and clip[0] == "clip_grad_norm_":
            limit = clip[1]
        if self.change.clip is not None:
            limit = min(limit, self.change.clip)
        arm.norms.append(float(clip_grad_norm_(found, limit)))
        if clip is not None and not self.change.unclipped and clip[0] == "clip_grad_value_":
            clip_grad_value_(found, clip[1])

    def _step(self, trace: OptimizerTrace, optimizer: Optimizer, update: int) -> None:
        rates = trace.rates[min(self.at_update + update, len(trace.rates) - 1)] if trace.rates else ()
        warm = min(1.0, (update + 1) / self.change.warm_up) if self.change.warm_up else 1.0
        for group, rate in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = rate * self.change.rate * warm
        optimizer.step()

    def _sum_up(self, arm: Arm) -> None:
        for tensor in arm.weights.values():
            tensor.requires_grad_(False)
        window = len(self.samples)
        cycles = [sum(part) / len(part) for part in _parts(arm.losses, window) if len(part) == window]
        last = mean_loss(self.stage, self.samples, arm.weights, quiet=self.change.quiet)
        arm.last = last if not arm.diverged else math.nan
        known = [value for value in (*cycles, arm.last) if math.isfinite(value)]
        arm.lowest = min(known, default=math.nan)
        pairs = list(zip(arm.losses, arm.losses[window:], strict=False))
        arm.swings = sum(later > before for before, later in pairs) / len(pairs) if pairs else 0.0


def _weights(leaves: dict[int, Tensor]) -> dict[int, Tensor]:
    return {number: leaf.detach().clone() for number, leaf in leaves.items() if leaf.dim() > 1}


def _moved(leaves: dict[int, Tensor], before: dict[int, Tensor]) -> float:
    with torch.no_grad():
        shares = sorted(float((leaves[number] - old).norm() / old.norm()) for number, old in before.items())
    known = [share for share in shares if math.isfinite(share)]
    return known[len(known) // 2] if known else math.nan


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def mean_loss(stage: Stage, samples: list[Sample], weights: Weights, *, quiet: bool = False) -> float:
    """Over the samples, with the training flags of the run; nothing is learned and no buffer of `weights` moves."""
    seeded(1)
    total = 0.0
    for sample in samples:
        (without_dropout if quiet else as_recorded)(sample)
        with torch.no_grad():
            copies = {number: tensor.clone() for number, tensor in weights.items()}
            total += float(stage.loss(sample, copies)[0])
    return total / len(samples)


def shuffled_loss(stage: Stage, sample: Sample, weights: Weights) -> tuple[float, float]:
    """Mean and deviation of the loss over random pairings of a sample's inputs and labels."""
    ((place, target),) = sample.tape.targets.items()
    generator = torch.Generator().manual_seed(0)
    losses = []
    as_recorded(sample)
    for _ in range(PERMUTATIONS):
        order = torch.randperm(len(target), generator=generator).to(target.device)
        seeded(1)
        with torch.no_grad():
            copies = {number: tensor.clone() for number, tensor in weights.items()}
            losses.append(float(stage.loss(sample, copies, swapped={place: target[order]})[0]))
    mean = sum(losses) / len(losses)
    return mean, math.sqrt(sum((loss - mean) ** 2 for loss in losses) / len(losses))
