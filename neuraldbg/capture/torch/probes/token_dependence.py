"""On which positions of a padded sequence do the outputs depend: on the real ones or on the padding?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.probes.bench import Bench, Fact, Skip, inputs_of
from neuraldbg.capture.torch.probes.sample import Sample
from neuraldbg.capture.torch.probes.stage import seeded


def token_dependence(bench: Bench) -> Fact:
    for sample in reversed(bench.specimen.samples):
        found = _padded(bench, sample)
        if found is not None:
            return _measure(bench, sample, *found)
    raise Skip("no input looks like padded sequences of ids")


def _padded(bench: Bench, sample: Sample) -> tuple[Tensor, int, str] | None:
    """Ids of shape (N, T) whose rows end (or begin) with runs of one id, of different lengths."""
    for ids in inputs_of(bench.last_pass(sample)).values():
        if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 2 or min(ids.shape) < 2:
            continue
        for side, edge in (("right", ids[:, -1]), ("left", ids[:, 0])):
            pad = int(edge.mode().values)
            lengths = _run(ids if side == "left" else ids.flip(1), pad)
            if (
                int((lengths > 1).sum()) >= 2
                and int(lengths.max()) > int(lengths.min())
                and int(lengths.min()) < ids.shape[1]
            ):
                return ids, pad, side
    return None


def _run(ids: Tensor, pad: int) -> Tensor:
    """How many ids at the start of each row are the padding."""
    return (ids == pad).long().cumprod(1).sum(1)


def _measure(bench: Bench, sample: Sample, ids: Tensor, pad: int, side: str) -> Fact:
    one = bench.last_pass(sample)
    caught: list[tuple[nn.Module, Tensor]] = []

    def catch(module: nn.Module, args: Any, output: Any) -> Any:
        entered = args[0] if args and isinstance(args[0], Tensor) and isinstance(output, Tensor) else None
        if caught or entered is None or entered.shape != ids.shape or not torch.equal(entered, ids):
            return output
        leaf = output.detach().requires_grad_(True)
        caught.append((module, leaf))
        return leaf

    embeddings = [module for module in one.root.modules() if isinstance(module, nn.Embedding)]
    handles = [module.register_forward_hook(catch) for module in embeddings]
    try:
        bench.modes(sample)["eval"]()
        seeded(0)
        _, outputs = bench.stage.loss(sample, bench.stage.weights(initial=False))
    finally:
        for handle in handles:
            handle.remove()
    if not caught:
        raise Skip("no embedding takes the padded ids")
    module, leaf = caught[0]
    out = [t for t in outputs[sample.tape.used_passes[-1]] if t.requires_grad]
    if not out:
        raise Skip("the outputs do not depend on the embedding")
    (gradient,) = torch.autograd.grad([t.double().square().sum() for t in out], [leaf], allow_unused=True)
    per_position = torch.zeros(ids.shape) if gradient is None else gradient.norm(dim=-1)
    turned = ids if side == "left" else ids.flip(1)
    padding = torch.arange(ids.shape[1])[None] < _run(turned, pad)[:, None]
    padding = padding if side == "left" else padding.flip(1)
    layer = bench.core.tree.layers.get(module)
    return {**bench.about(sample, "final"), **_numbers(per_position, padding), "pad_id": pad, "side": side,
            "embedding_site": None if layer is None else layer.site,
            "embedding": None if layer is None else layer.path}  # fmt: skip


def _numbers(per_position: Tensor, padding: Tensor) -> Fact:
    real, padded = per_position[~padding], per_position[padding]
    mean_real, mean_padded = float(real.mean()), float(padded.mean())
    return {
        "pad_share": float(padding.float().mean()),
        "real_gradient": mean_real,
        "pad_gradient": mean_padded,
        "ratio": min(mean_padded / mean_real, 1e6) if mean_real > 0 else (1e6 if mean_padded > 0 else 0.0),
        "real_zero_share": float((real == 0).float().mean()),
        "pad_zero_share": float((padded == 0).float().mean()),
    }
