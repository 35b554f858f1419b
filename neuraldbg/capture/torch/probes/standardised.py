"""Would the recorded batches be learned, with nothing else changed, if their inputs were standardised?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.probes.bench import Bench, Fact, Skip, finite, inputs_of
from neuraldbg.capture.torch.probes.overfit import trainable
from neuraldbg.capture.torch.probes.sample import Sample
from neuraldbg.capture.torch.probes.stage import Change, Stage, Weights
from neuraldbg.capture.torch.probes.trial import Trial, mean_loss

LARGE = 20.0  # typical size of a feature: below it nothing is asked
LARGEST = 300.0  # size of the largest one
APART = 300.0  # ratio of the deviations of two features
UPDATES = 150
SHARE = 0.35  # of the time that is left
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Scale = tuple[Tensor, Tensor]  # mean and deviation, in the shape of a batch of one


def standardised(bench: Bench) -> Fact:
    own = bench.specimen
    trainable(bench.samples, own.traces)
    scales = _scales(bench, own.samples)
    if not scales:
        raise Skip("the inputs are of an ordinary size")
    plain, scaled = bench.stage, StandardisedStage(own, scales=scales)
    initial = bool(own.initial)
    first = mean_loss(plain, own.samples, plain.weights(initial=initial))
    first_scaled = mean_loss(scaled, own.samples, plain.weights(initial=initial))
    final = mean_loss(plain, own.samples, plain.weights(initial=False))
    backwards = bench.samples.per_update.most_common(1)[0][0] if bench.samples.per_update else 1
    seconds = SHARE * bench.left_s / 2
    updates = max(20, min(UPDATES, own.traces[0].updates))
    arms = []
    for stage, before in ((plain, first), (scaled, first_scaled)):
        trial = Trial(stage, own.samples, own.traces, backwards=backwards, first=before)
        arms.append(trial.run(updates, bench.time.part(seconds)))
    return {
        **bench.about(own.samples[0], "initial" if initial else "final"),
        "from_initial": initial,
        "inputs": sorted(scales),
        "updates": min(arm.updates for arm in arms) if not any(arm.diverged for arm in arms) else arms[1].updates,
        "first": finite(first),
        "first_standardised": finite(first_scaled),
        "final": finite(final),
        "last": finite(arms[0].last),
        "last_standardised": finite(arms[1].last),
        "diverged": arms[0].diverged,
        "diverged_standardised": arms[1].diverged,
    }


@dataclass(eq=False)
class StandardisedStage(Stage):
    """Every recorded input that is out of scale is given as (x - mean) / deviation of its features."""

    scales: dict[int, Scale] = field(default_factory=dict)

    def loss(
        self,
        sample: Sample,
        weights: Weights,
        *,
        change: Change | None = None,  # noqa: ARG002  ours takes its place
        swapped: dict[int, Tensor] | None = None,
    ) -> tuple[Tensor, dict[int, list[Tensor]]]:
        return super().loss(sample, weights, change=self._scaled, swapped=swapped)

    def _scaled(self, place: int, value: Tensor) -> Tensor:
        scale = self.scales.get(place)
        return value if scale is None or not value.is_floating_point() else (value - scale[0]) / scale[1]


def _scales(bench: Bench, samples: list[Sample]) -> dict[int, Scale]:
    """Of the inputs that are far from unit scale, by place among the arguments of the pass."""
    values: dict[int, list[Tensor]] = {}
    convolving = any(isinstance(m, CONVOLUTIONS) for root in bench.specimen.roots for m in root.modules())
    for sample in samples:
        if len(sample.tape.used_passes) != 1:
            return {}
        for place, tensor in inputs_of(sample.tape.passes[sample.tape.used_passes[0]]).items():
            if tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel() > tensor.shape[0] - 1:
                values.setdefault(place, []).append(tensor)
    found = {place: _scale(several, convolving=convolving) for place, several in values.items()}
    return {place: scale for place, scale in found.items() if scale is not None}


@torch.no_grad()
def _scale(several: list[Tensor], *, convolving: bool) -> Scale | None:
    dims = several[0].dim()
    axis = 1 if dims == 2 or dims > 3 or convolving else dims - 1
    rows = torch.cat([t.movedim(axis, -1).reshape(-1, t.shape[axis]).double() for t in several])
    mean, std = rows.mean(0), rows.std(0, unbiased=False)
    varying = std > 1e-7 * mean.abs()
    if len(rows) < 4 or not bool(varying.any()) or not bool(rows.isfinite().all()):
        return None
    rms = rows.square().mean(0).sqrt()[varying]
    apart = float(std[varying].max() / std[varying].min())
    ordinary = float(rms.median()) < LARGE and float(rms.max()) < LARGEST and apart < APART
    if ordinary or not math.isfinite(apart):
        return None
    shape = [1] * dims
    shape[axis] = -1
    safe = torch.where(varying, std, torch.ones_like(std))
    kind = several[0].dtype
    return mean.reshape(shape).to(kind), safe.reshape(shape).to(kind)
