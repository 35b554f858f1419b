"""The same batch in training mode and in evaluation mode, twice each."""

from __future__ import annotations

import torch
from torch import Tensor

from neuraldbg.capture.torch.probes.bench import Bench, Fact, Skip, finite, rms
from neuraldbg.capture.torch.probes.sample import Sample
from neuraldbg.capture.torch.probes.stage import BATCH_NORMS, Weights, dropout_of, seeded


def train_eval(bench: Bench) -> Fact:
    sample = bench.last
    weights = bench.stage.weights(initial=False)
    modes = bench.modes(sample)
    found = {}
    for name, mode, seed in (
        ("train", "train", 1),
        ("again", "train", 1),
        ("other", "train", 2),
        ("eval", "eval", 1),
        ("eval_again", "eval", 2),
        ("no_dropout", "no_dropout", 1),
        ("norms_eval", "norms_eval", 1),
    ):
        modes[mode]()
        found[name] = bench.outputs(sample, dict(_copied(weights)), seed=seed)
    if not any(tensor.dtype.is_floating_point for tensor in found["eval"]):
        raise Skip("the model puts out no floating numbers")
    modules = [module for root in bench.specimen.roots for module in root.modules()]
    dropouts = [p for module in modules if (p := dropout_of(module)) is not None]
    flags = {flag for number in sample.tape.used_passes for flag in sample.tape.passes[number].record.training}
    return {
        **bench.about(sample, "final"),
        "train_repeat": _apart(found["train"], found["again"]),
        "train_noise": _apart(found["train"], found["other"]),
        "eval_repeat": _apart(found["eval"], found["eval_again"]),
        "train_eval": _apart(found["train"], found["eval"]),
        "dropout_effect": _apart(found["train"], found["no_dropout"]),
        "norm_effect": _apart(found["train"], found["norms_eval"]),
        **_losses(bench, sample, weights),
        "dropouts": len(dropouts),
        "batchnorms": sum(isinstance(module, BATCH_NORMS) for module in modules),
        "largest_dropout": max(dropouts, default=None),
        "flags_mixed": len(flags) > 1,
    }


def _copied(weights: Weights) -> list[tuple[int, Tensor]]:
    """Every pass gets its own: BatchNorm writes into the buffers it is given."""
    return [(number, tensor.clone()) for number, tensor in weights.items()]


def _apart(one: list[Tensor], two: list[Tensor]) -> float | None:
    """Root mean square of the difference over that of the second."""
    pairs = [(a, b) for a, b in zip(one, two, strict=False) if a.shape == b.shape and a.dtype.is_floating_point]
    if not pairs:
        return None
    difference = torch.cat([(a - b).reshape(-1) for a, b in pairs])
    return finite(rms(difference) / max(rms(torch.cat([b.reshape(-1) for _, b in pairs])), 1e-12))


def _losses(bench: Bench, sample: Sample, weights: Weights) -> Fact:
    modes = bench.modes(sample)
    losses: Fact = {}
    for name, mode, seeds in (
        ("loss_train", "train", 3),
        ("loss_eval", "eval", 1),
        ("loss_no_dropout", "no_dropout", 1),
        ("loss_norm_eval", "norms_eval", 1),
    ):
        modes[mode]()
        values = []
        for seed in range(seeds):
            seeded(seed)
            with torch.no_grad():
                values.append(float(bench.stage.loss(sample, dict(_copied(weights)))[0]))
        losses[name] = finite(sum(values) / len(values))
    return losses
