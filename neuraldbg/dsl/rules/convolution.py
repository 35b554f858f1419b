"""Convolutions in one, two and three dimensions, with the padding of Keras."""

from __future__ import annotations

from typing import Any

from neuraldbg.dsl.graph import Shape, size, written
from neuraldbg.dsl.rules.use import DoesNotFit, Made, Use, rule

NUMBERS = {1: "one", 2: "two", 3: "three"}


def rank_of(layer: str) -> int:
    return next(int(letter) for letter in layer if letter.isdigit())


def need_rank(use: Use, rank: int) -> tuple[Shape, int]:
    """Sizes and channels of an input with `rank` dimensions and channels."""
    if len(use.shape) != rank + 1:
        what = {1: "(length, channels)", 2: "(height, width, channels)", 3: "(depth, height, width, channels)"}[rank]
        raise DoesNotFit(f"it needs {what} and its input is {written(use.shape)}")
    return use.shape[:-1], use.shape[-1]


def kernel_of(use: Use, rank: int) -> Shape:
    if use.params.get("kernel_size") is None:
        use.warn("kernel_size is not given: 3 is taken")
    return use.sizes(rank, "kernel_size", default=3)


def windows(use: Use, sizes: Shape, kernel: Shape, strides: Shape, dilation: Shape) -> tuple[Shape, list[Any]]:
    """Output sizes, and the padding (before, after) of every dimension."""
    padding = use.one_of("padding", ("valid", "same", "causal"), "valid")
    out, pads = [], []
    for length, window, stride, gap in zip(sizes, kernel, strides, dilation, strict=True):
        reach = (window - 1) * gap + 1
        if padding == "valid":
            if reach > length:
                shown = f"{written(kernel)} does not fit the {written(sizes)} input"
                raise DoesNotFit(f"kernel {shown}" if "Conv" in use.layer.type else f"pool {shown}")
            out.append((length - reach) // stride + 1)
            pads.append((0, 0))
        else:
            count = -(-length // stride)
            total = max((count - 1) * stride + reach - length, 0)
            out.append(count)
            pads.append((total, 0) if padding == "causal" else (total // 2, total - total // 2))
    return tuple(out), pads


@rule("Conv1D", "Conv2D", "Conv3D")
def convolution(use: Use) -> Made:
    rank = rank_of(use.layer.type)
    sizes, channels = need_rank(use, rank)
    filters, kernel = use.integer("filters"), kernel_of(use, rank)
    strides, dilation = use.sizes(rank, "strides", "stride", default=1), use.sizes(rank, "dilation_rate", default=1)
    groups = use.integer("groups", default=1)
    if channels % groups or filters % groups:
        raise DoesNotFit(f"{channels} channels and {filters} filters cannot be put into {groups} groups")
    return _convolved(use, (sizes, channels), filters, groups, (kernel, strides, dilation))


def _convolved(
    use: Use, given: tuple[Shape, int], filters: int, groups: int, window: tuple[Shape, Shape, Shape]
) -> Made:
    """`given` = sizes and channels of the input; `window` = kernel, strides and dilation."""
    (sizes, channels), (kernel, strides, dilation) = given, window
    bias = use.flag("use_bias", default=True)
    out, pads = windows(use, sizes, kernel, strides, dilation)
    weights = size(kernel) * (channels // groups) * filters
    options = {
        "rank": len(sizes),
        "channels": channels,
        "filters": filters,
        "kernel": kernel,
        "strides": strides,
        "dilation": dilation,
        "groups": groups,
        "pads": pads,
        "bias": bias,
    }
    flops = size(out) * (2 * weights + bias * filters)
    return Made("conv", (*out, filters), options, weights + bias * filters, flops, use.activation())


@rule("DepthwiseConv2D")
def depthwise(use: Use) -> Made:
    sizes, channels = need_rank(use, 2)
    multiplier = use.integer("depth_multiplier", default=1)
    asked = use.integer("filters", default=channels * multiplier)
    if asked % channels == 0:
        multiplier = asked // channels
    else:
        use.warn(f"filters={asked} is no multiple of the {channels} channels; it has {channels * multiplier}")
    return _spread(use, sizes, channels, multiplier)


def _spread(use: Use, sizes: Shape, channels: int, multiplier: int) -> Made:
    window = (kernel_of(use, 2), use.sizes(2, "strides", default=1), use.sizes(2, "dilation_rate", default=1))
    return _convolved(use, (sizes, channels), channels * multiplier, channels, window)


@rule("SeparableConv2D")
def separable(use: Use) -> Made:
    sizes, channels = need_rank(use, 2)
    spread = _spread(use, sizes, channels, use.integer("depth_multiplier", default=1))
    filters, bias = use.integer("filters"), use.flag("use_bias", default=True)
    middle = spread.shape[-1]
    options = {**spread.options, "middle": middle, "filters": filters, "bias": bias}
    depth_weights = size(spread.options["kernel"]) * middle
    parameters = depth_weights + middle * filters + bias * filters
    flops = size(spread.shape[:-1]) * 2 * (depth_weights + middle * filters)
    return Made("separable_conv", (*spread.shape[:-1], filters), options, parameters, flops, use.activation())


@rule("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
def transposed(use: Use) -> Made:
    rank = rank_of(use.layer.type)
    sizes, channels = need_rank(use, rank)
    filters, kernel = use.integer("filters"), kernel_of(use, rank)
    strides, bias = use.sizes(rank, "strides", "stride", default=1), use.flag("use_bias", default=True)
    same = use.one_of("padding", ("valid", "same"), "valid") == "same"
    trim, extra, crop, out = [], [], [], []
    for length, window, stride in zip(sizes, kernel, strides, strict=True):
        excess = window - stride
        cut = max(excess, 0) if same else 0  # Keras takes the odd one off the end
        trim.append(cut // 2)
        crop.append(cut % 2)
        extra.append(max(-excess, 0))
        out.append((length - 1) * stride - cut + window + extra[-1])
    weights = size(kernel) * channels * filters
    options = {
        "rank": rank,
        "channels": channels,
        "filters": filters,
        "kernel": kernel,
        "strides": strides,
        "same": same,
        "trim": tuple(trim),
        "extra": tuple(extra),
        "crop": tuple(crop),
        "bias": bias,
    }
    flops = size(sizes) * 2 * weights + size(tuple(out)) * bias * filters
    return Made("conv_transpose", (*out, filters), options, weights + bias * filters, flops, use.activation())


@rule("UpSampling1D", "UpSampling2D", "UpSampling3D")
def upsampling(use: Use) -> Made:
    rank = rank_of(use.layer.type)
    sizes, channels = need_rank(use, rank)
    factors = use.sizes(rank, "size", default=2)
    how = use.one_of("interpolation", ("nearest", "bilinear", "bicubic"), "nearest")
    out = tuple(a * b for a, b in zip(sizes, factors, strict=True))
    return Made("upsample", (*out, channels), {"rank": rank, "factors": factors, "how": how})


@rule("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D")
def zero_padding(use: Use) -> Made:
    rank = rank_of(use.layer.type)
    sizes, channels = need_rank(use, rank)
    given = use.params.get("padding", 1)
    pairs = [given] * rank if isinstance(given, int) else list(given) if isinstance(given, tuple | list) else [1] * rank
    pads = [(each, each) if isinstance(each, int) else tuple(each) for each in pairs]
    if len(pads) != rank or any(len(p) != 2 or not all(isinstance(v, int) and v >= 0 for v in p) for p in pads):
        raise DoesNotFit(f"padding needs {rank} numbers or pairs of numbers")
    out = tuple(length + sum(pad) for length, pad in zip(sizes, pads, strict=True))
    return Made("pad", (*out, channels), {"rank": rank, "pads": pads})
