"""Does the output of one sample change when another sample of the batch does?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from neuraldbg.capture.torch.probes.bench import Bench, Fact, Skip, inputs_of, rms
from neuraldbg.capture.torch.probes.mixing import Place, first_jump, listen
from neuraldbg.capture.torch.probes.sample import Sample
from neuraldbg.capture.torch.probes.stage import Weights, seeded

LEAKS = 1e-3
AMONG = 0.1  # over the number of samples: what is averaged over them reaches each by about one part in so many
SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Axes:
    entered: int
    left: int
    size: int


@dataclass(frozen=True, slots=True)
class Leak:
    ratio: float  # change of the others over change of the sample itself
    share: float  # of the others that changed
    own: float  # change of the sample itself over the spread of the outputs
    size: int = 1  # samples

    @property
    def leaks(self) -> bool:
        return self.ratio > min(LEAKS, AMONG / self.size) and self.share > SHARE


def cross_sample(bench: Bench) -> Fact:
    sample = max(bench.specimen.samples, key=lambda one: (_rows(bench, one), one.step))
    weights = bench.stage.weights(initial=False)
    modes = bench.modes(sample)
    modes["eval"]()
    out = _main_output(bench.outputs(sample, weights))
    possible = axes_of(sample, out)
    if not possible:
        raise Skip("no axis of the batch is found again in the outputs")
    axes, hint = possible[0], rows_are_samples(sample, out, possible[0].size)
    leak = leak_along(bench, sample, weights, axes)
    if leak.leaks and hint is None:
        for other in possible[1:]:
            along_other = leak_along(bench, sample, weights, other)
            if not along_other.leaks:
                axes, leak = other, along_other  # batches of this model lie along another axis
                break
    modes["norms_eval"]()
    in_training = leak_along(bench, sample, weights, axes)
    modes["eval"]()
    leaks = leak.leaks and in_training.leaks
    place = locate(bench, sample, weights, axes) if leaks else None
    one = bench.last_pass(sample)
    return {
        **bench.about(sample, "final"),
        "samples": axes.size,
        "batch_axis_in": axes.entered,
        "batch_axis_out": axes.left,
        "in_shape": [list(tensor.shape) for tensor in inputs_of(one).values()][:4],
        "out_shape": list(out.shape),
        "leak": leak.ratio,
        "leak_share": leak.share,
        "leak_train": in_training.ratio,
        "own": leak.own,
        "leaks": leaks,
        "own_axis_hint": hint,
        "given": place is not None and place.given,
        **bench.where(place, one),
    }


def _rows(bench: Bench, sample: Sample) -> int:
    sizes = [tensor.shape[0] for tensor in inputs_of(bench.last_pass(sample)).values() if tensor.dim() > 1]
    return sizes[0] if sizes else 0


def _main_output(outputs: list[Tensor]) -> Tensor:
    """The first tensor that could hold one row per sample."""
    for tensor in outputs:
        if tensor.dim() > 0 and tensor.dtype.is_floating_point and tensor.numel() > 1:
            return tensor
    raise Skip("the model puts out no tensor with a batch axis")


def axes_of(sample: Sample, out: Tensor) -> list[Axes]:
    """Axes of the inputs that are found again in the output, likeliest first."""
    first = inputs_of(sample.tape.passes[sample.tape.used_passes[0]])
    entered = next((tensor for tensor in first.values() if tensor.dim() > 0 and tensor.numel() > 1), None)
    if entered is None:
        return []
    pairs = [(0, 0), (1, 1), (1, 0), (0, 1)]
    return [
        Axes(a, b, entered.shape[a])
        for a, b in pairs
        if a < entered.dim() and b < out.dim() and entered.shape[a] == out.shape[b] and entered.shape[a] > 1
    ]


def rows_are_samples(sample: Sample, out: Tensor, size: int) -> str | None:
    """One label per row of the batch: then rows are samples, whatever the layers think."""
    for target in sample.tape.targets.values():
        if target.dim() == 1 and len(target) == size and out.dim() <= 2 and out.shape[0] == size:
            return "loss_target"
        if target.dim() == 2 and target.shape == out.shape and target.shape[1] == 1:
            return "loss_target"
    return None


def _replaced(axes: Axes, row: int, by: int, _: int, value: Tensor) -> Tensor:
    """The batch with one sample overwritten by another."""
    if value.dim() <= axes.entered or value.shape[axes.entered] != axes.size:
        return value
    value = value.clone()
    value.select(axes.entered, row).copy_(value.select(axes.entered, by))
    return value


def _rows_to_try(size: int) -> list[tuple[int, int]]:
    return list(islice(dict.fromkeys([(min(1, size - 1), size - 1), (size - 2, 0), (0, size // 2)]), 3))


def leak_along(bench: Bench, sample: Sample, weights: Weights, axes: Axes) -> Leak:
    """The worst of a few samples that are replaced, one at a time."""
    worst = Leak(0.0, 0.0, 0.0)
    base = _main_output(bench.outputs(sample, _copies(weights)))
    for row, by in _rows_to_try(axes.size):
        if row == by:
            continue
        change = partial(_replaced, axes, row, by)
        other = _main_output(bench.outputs(sample, _copies(weights), change))
        if other.shape != base.shape:
            continue
        moved = (other - base).movedim(axes.left, 0).reshape(axes.size, -1).double()
        scale = max(rms(base - base.mean()), 1e-12)
        own = rms(moved[row])
        rest = moved[[i for i in range(axes.size) if i != row]]
        changed = float((rest.abs().amax(1) > 1e-5 * scale).double().mean())
        ratio = min(rms(rest) / max(own, 1e-3 * scale), 1e3) if changed else 0.0
        if (ratio, own) > (worst.ratio, worst.own):
            worst = Leak(ratio, changed, own / scale, axes.size)
    return worst


def _copies(weights: Weights) -> Weights:
    return {number: tensor.clone() for number, tensor in weights.items()}


def locate(bench: Bench, sample: Sample, weights: Weights, axes: Axes) -> Place | None:
    """The first operation in which one sample's change reaches others."""
    root = bench.last_pass(sample).entry
    row, by = _rows_to_try(axes.size)[0]

    def run(changed: bool) -> None:
        seeded(0)
        change = partial(_replaced, axes, row, by) if changed else None
        bench.stage.loss(sample, _copies(weights), change=change)

    with torch.no_grad():
        base = listen(lambda: run(False), root, bench.core.recorder.frames)
        other = listen(lambda: run(True), root, None)
    return first_jump(base, other, root, 1.0 / axes.size)
