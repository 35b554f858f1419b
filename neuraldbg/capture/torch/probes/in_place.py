"""Does it matter that modules work in place? The same batch with `inplace=False` must give the same outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.probes.bench import Bench, Fact, Skip, rms
from neuraldbg.capture.torch.probes.sample import Sample
from neuraldbg.capture.torch.probes.stage import Weights

APART = 1e-4  # relative: more than rounding
MOST_MODULES = 64


def in_place(bench: Bench) -> Fact:
    modules = [
        (name, module, root)
        for root in bench.specimen.roots
        for name, module in root.named_modules()
        if getattr(module, "inplace", None) is True
    ]
    if not modules:
        raise Skip("no module works in place")
    sample = bench.last
    weights = bench.stage.weights(initial=False)
    bench.modes(sample)["eval"]()
    usual = _outputs(bench, sample, weights)
    apart = _apart(_with(bench, sample, weights, [module for _, module, _ in modules]), usual)
    guilty: tuple[str, nn.Module, nn.Module] | None = None
    if apart > APART:
        for name, module, root in modules[:MOST_MODULES]:
            if _apart(_with(bench, sample, weights, [module]), usual) > APART:
                guilty = (name, module, root)
                break
    return {
        **bench.about(sample, "final"),
        "modules": len(modules),
        "difference": apart,
        "layer": None if guilty is None else guilty[0],
        "layer_class": None if guilty is None else type(guilty[1]).__name__,
        "layer_site": None if guilty is None else _site(bench, guilty[1]),
    }


def _site(bench: Bench, module: nn.Module) -> int | None:
    layer = bench.core.tree.layers.get(module)
    return None if layer is None else int(layer.site)


def _with(bench: Bench, sample: Sample, weights: Weights, modules: list[Any]) -> list[Tensor]:
    """The outputs with some modules working on tensors of their own."""
    for module in modules:
        module.inplace = False
    try:
        return _outputs(bench, sample, weights)
    finally:
        for module in modules:
            module.inplace = True


def _outputs(bench: Bench, sample: Sample, weights: Weights) -> list[Tensor]:
    own = {number: tensor.clone() for number, tensor in weights.items()}
    return [tensor for tensor in bench.outputs(sample, own, seed=1) if tensor.dtype.is_floating_point]


def _apart(one: list[Tensor], two: list[Tensor]) -> float:
    pairs = [(a, b) for a, b in zip(one, two, strict=False) if a.shape == b.shape]
    if not pairs:
        return 0.0
    difference = torch.cat([(a - b).reshape(-1) for a, b in pairs])
    return float(rms(difference) / max(rms(torch.cat([b.reshape(-1) for _, b in pairs])), 1e-12))
