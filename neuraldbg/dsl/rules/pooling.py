"""Pooling: windows, whole inputs, and to a given size."""

from __future__ import annotations

from neuraldbg.dsl.graph import size
from neuraldbg.dsl.rules.convolution import need_rank, rank_of, windows
from neuraldbg.dsl.rules.use import DoesNotFit, Made, Use, rule

_ALL = (1, 2, 3)


def _kind(layer: str) -> str:
    return "max" if "Max" in layer else "average"


@rule(*(f"{kind}Pooling{n}D" for kind in ("Max", "Average") for n in _ALL))
def pooling(use: Use) -> Made:
    rank = rank_of(use.layer.type)
    sizes, channels = need_rank(use, rank)
    pool = use.sizes(rank, "pool_size", default=2)
    strides = use.sizes(rank, "strides", "stride", default=pool)
    out, pads = windows(use, sizes, pool, strides, (1,) * rank)
    options = {"rank": rank, "kind": _kind(use.layer.type), "pool": pool, "strides": strides, "pads": pads}
    return Made("pool", (*out, channels), options, flops=size(out) * channels * size(pool))


@rule(*(f"Global{kind}Pooling{n}D" for kind in ("Max", "Average") for n in _ALL))
def global_pooling(use: Use) -> Made:
    rank = len(use.shape) - 1
    keep = use.flag("keepdims")
    shape = (*((1,) * rank if keep else ()), use.shape[-1])
    options = {"rank": rank, "kind": _kind(use.layer.type), "keep": keep}
    return Made("global_pool", shape, options, flops=size(use.shape))


@rule(*(f"Adaptive{kind}Pooling{n}D" for kind in ("Max", "Average") for n in _ALL))
def adaptive_pooling(use: Use) -> Made:
    rank = rank_of(use.layer.type)
    sizes, channels = need_rank(use, rank)
    wanted = use.sizes(rank, "output_size", default=1)
    if any(want > have for want, have in zip(wanted, sizes, strict=True)):
        raise DoesNotFit(f"it cannot make {'x'.join(map(str, wanted))} of a smaller input")
    if not any(have % want for want, have in zip(wanted, sizes, strict=True)):  # windows of one size, side by side
        pool = tuple(have // want for want, have in zip(wanted, sizes, strict=True))
        same = {"rank": rank, "kind": _kind(use.layer.type), "pool": pool, "strides": pool, "pads": [(0, 0)] * rank}
        return Made("pool", (*wanted, channels), same, flops=size(use.shape))
    options = {"rank": rank, "kind": _kind(use.layer.type), "wanted": wanted}
    return Made("adaptive_pool", (*wanted, channels), options, flops=size(use.shape))
