"""Do outputs at earlier positions of a sequence change when later ones of the input do?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.probes.bench import Bench, Fact, Skip, inputs_of, rms
from neuraldbg.capture.torch.probes.mixing import Place, first_jump, listen
from neuraldbg.capture.torch.probes.sample import Sample
from neuraldbg.capture.torch.probes.stage import Change, Weights, seeded

SHIFTS = range(5)
MATCH = 0.9
MOST_ELEMENTS = 2**22  # of what a layer puts out and is compared


def future_token(bench: Bench) -> Fact:
    sample = bench.last
    weights = bench.stage.weights(initial=False)
    bench.modes(sample)["eval"]()
    place, sequence = _sequence_of(sample)
    reading = _Reading(bench, sample, weights, sequence)
    out = reading.outputs(None)
    if out is None:
        raise Skip("the outputs have no position for each position of the input")
    length = sequence.shape[1]
    cuts = sorted({length // 2, length - 1, max(1, length // 4)})
    leaks = [_leak(reading, place, cut) for cut in cuts]
    leaking = [cut for cut, leak in zip(cuts, leaks, strict=True) if leak > 1e-3]
    where = None
    if leaking:
        where = _locate(bench, sample, weights, (place, sequence))
    shift, match = target_shift(sequence, sample)
    return {
        **bench.about(sample, "final"),
        "time_axis": 1,
        "length": length,
        "tested": len(cuts),
        "leak": max(leaks),
        "leak_share": len(leaking) / len(cuts),
        "leaks": len(leaking) > len(cuts) / 2,
        "input_kind": "floats" if sequence.dtype.is_floating_point else "ids",
        "target_shift": shift,
        "target_shift_match": match,
        "out_shape": list(out.shape),
        **bench.where(where, bench.last_pass(sample)),
    }


def _sequence_of(sample: Sample) -> tuple[int, Tensor]:
    """The input of shape (N, T) of ids or (N, T, F) of numbers that is asked to be continued: of several the one that
    the targets (or another input, where the model computes its loss itself) are, moved by one; else the first."""
    found = []
    for place, tensor in inputs_of(sample.tape.passes[sample.tape.used_passes[-1]]).items():
        ids = not tensor.dtype.is_floating_point and tensor.dtype != torch.bool and tensor.dim() == 2
        floats = tensor.dtype.is_floating_point and tensor.dim() == 3
        if (ids or floats) and tensor.shape[0] > 1 and tensor.shape[1] > 2:
            found.append((place, tensor))
    if not found:
        raise Skip("the model takes no sequences")
    tokens = [(place, tensor) for place, tensor in found if tensor.dim() == 2 and _varies(tensor)]
    if len(tokens) < 2:
        return (tokens or found)[0]
    targets = [one for one in sample.tape.targets.values() if not one.dtype.is_floating_point]
    return max(tokens, key=lambda one: _continued(one[1], [*targets, *(t for p, t in tokens if p != one[0])]) > MATCH)


def _varies(ids: Tensor) -> bool:
    """No mask: more than ones and zeros."""
    return ids.numel() > 0 and int(ids.max()) - int(ids.min()) > 1


def _continued(ids: Tensor, others: list[Tensor]) -> float:
    rows = [one.reshape(len(ids), -1) for one in others if one.numel() % len(ids) == 0 and one.numel() >= 2 * len(ids)]
    return max((_match(ids, one, 1) for one in rows), default=0.0)


def _per_position(outputs: list[Tensor], sequence: Tensor) -> Tensor | None:
    rows, length = sequence.shape[:2]
    for out in outputs:
        if not out.dtype.is_floating_point:
            continue
        if out.dim() >= 2 and out.shape[:2] == (rows, length):
            return out
        if out.dim() == 2 and out.shape[0] == rows * length:
            return out.reshape(rows, length, -1)
        if out.dim() == 3 and out.shape[0] == rows and out.shape[2] == length and out.shape[1] != length:
            return out.transpose(1, 2)
    return None


def _later(place: int, cut: int, at: int, value: Tensor) -> Tensor:
    """The input with positions from `cut` on taken from the next sequence of the batch."""
    if at != place:
        return value
    value = value.clone()
    value[:, cut:] = value.roll(1, 0)[:, cut:]
    return value


@dataclass(eq=False)
class _Reading:
    """What a model says of each position. One that puts out its loss is read at the last of its layers that has a
    position for each of the input."""

    bench: Bench
    sample: Sample
    weights: Weights
    sequence: Tensor
    inside: str | None = None  # path of that layer

    def outputs(self, change: Change | None) -> Tensor | None:
        if self.inside is None:
            found = _per_position(self.bench.outputs(self.sample, self.weights, change), self.sequence)
            if found is not None:
                return found
        return self._of_a_layer(change)

    def _of_a_layer(self, change: Change | None) -> Tensor | None:
        entry = self.bench.last_pass(self.sample).entry
        last: dict[str, Tensor] = {}

        def keep(path: str, value: Any) -> None:
            found = _per_position([one for one in tensors(value) if one.numel() <= MOST_ELEMENTS], self.sequence)
            if found is not None:
                last.pop(path, None)  # the order is that of the last calls
                last[path] = found.detach().clone()

        handles = [
            module.register_forward_hook(lambda _, __, value, path=path: keep(path, value))
            for path, module in entry.named_modules()
            if path and self.inside in (None, path)
        ]
        try:
            self.bench.outputs(self.sample, self.weights, change)
        finally:
            for handle in handles:
                handle.remove()
        if self.inside is None and last:
            self.inside = list(last)[-1]
        return last.get(self.inside or "")


def _leak(reading: _Reading, place: int, cut: int) -> float:
    base, other = reading.outputs(None), reading.outputs(partial(_later, place, cut))
    if base is None or other is None or base.shape != other.shape:
        return 0.0
    moved = other - base
    scale = max(rms(base - base.mean()), 1e-12)
    before, after = rms(moved[:, :cut]), rms(moved[:, cut:])
    return min(before / max(after, 1e-3 * scale), 1e3) if before > 1e-5 * scale else 0.0


def _locate(bench: Bench, sample: Sample, weights: Weights, what: tuple[int, Tensor]) -> Place | None:
    """The first operation of which more changes than the share of later positions."""
    place, sequence = what
    root = bench.last_pass(sample).entry
    length = sequence.shape[1]
    last_only = partial(_later, place, length - 1)

    def run(changed: bool) -> None:
        seeded(0)
        bench.stage.loss(sample, weights, change=last_only if changed else None)

    with torch.no_grad():
        base = listen(lambda: run(False), root, bench.core.recorder.frames)
        other = listen(lambda: run(True), root, None)
    return first_jump(base, other, root, 1.0 / length)


def target_shift(ids: Tensor, sample: Sample) -> tuple[int | None, float | None]:
    """By how many positions the targets are the input ids moved."""
    if ids.dtype.is_floating_point:
        return None, None
    for target in sample.tape.targets.values():
        if target.dtype.is_floating_point or target.numel() % ids.shape[0] or target.numel() < ids.shape[0] * 2:
            continue
        rows = target.reshape(ids.shape[0], -1)
        best = max(((_match(ids, rows, shift), -shift) for shift in SHIFTS), default=(0.0, 0))
        if best[0] > MATCH:
            return -best[1], best[0]
        return None, best[0]
    return None, None


def _match(ids: Tensor, target: Tensor, shift: int) -> float:
    width = min(ids.shape[1] - shift, target.shape[1])
    if width < 2:
        return 0.0
    wanted, given = target[:, :width], ids[:, shift : shift + width]
    counted = wanted >= 0
    return float((wanted == given)[counted].float().mean()) if counted.any() else 0.0
