"""Rarer layers: squeeze-and-excitation, capsules, graphs, inception, a line of arithmetic, and those nobody knows."""

from __future__ import annotations

from neuraldbg.dsl.arithmetic import BadExpression, python_of
from neuraldbg.dsl.graph import size, written
from neuraldbg.dsl.rules.use import DoesNotFit, Made, Use, WrongArgument, rule


@rule("SqueezeExcitation")
def squeeze(use: Use) -> Made:
    if len(use.shape) < 2:
        raise DoesNotFit(f"it needs an image or a sequence and its input is {written(use.shape)}")
    channels = use.shape[-1]
    ratio = use.number("ratio", "reduction_ratio", "se_ratio", default=16)
    hidden = max(1, int(channels * ratio) if 0 < ratio < 1 else int(channels / max(ratio, 1)))
    count = 2 * channels * hidden + hidden + channels
    options = {"channels": channels, "hidden": hidden, "rank": len(use.shape) - 1}
    return Made("squeeze", use.shape, options, count, 2 * count + 2 * size(use.shape))


@rule("CapsuleLayer")
def capsules(use: Use) -> Made:
    number = use.integer("num_capsules", "capsules", default=10)
    width = use.integer("dim_capsule", "capsule_dim", default=16)
    features = size(use.shape)
    weights = features * number * width + number * width
    return Made(
        "capsules", (number, width), {"features": features, "number": number, "width": width}, weights, 2 * weights
    )


@rule("GraphConv")
def graph_conv(use: Use) -> Made:
    if len(use.shape) != 2:
        raise DoesNotFit(f"it needs (nodes, features) and its input is {written(use.shape)}")
    nodes, features = use.shape
    units = use.integer("units")
    use.warn("a .neural file holds no graph: which nodes are joined is learnt")
    options = {"nodes": nodes, "features": features, "units": units}
    count = features * units + units + nodes * nodes
    return Made("graph_conv", (nodes, units), options, count, 2 * nodes * (features + nodes) * units, use.activation())


@rule("GraphAttention")
def graph_attention(use: Use) -> Made:
    if len(use.shape) != 2:
        raise DoesNotFit(f"it needs (nodes, features) and its input is {written(use.shape)}")
    nodes, features = use.shape
    units, heads = use.integer("units"), use.integer("num_heads", "heads", default=1)
    use.warn("a .neural file holds no graph: every node attends to all")
    inner = units * heads
    count = 3 * (features * inner + inner) + inner * units + units
    options = {"width": features, "units": units, "heads": heads}
    return Made("graph_attention", (nodes, units), options, count, 2 * nodes * count, use.activation())


@rule("Inception")
def inception(use: Use) -> Made:
    if len(use.shape) != 3:
        raise DoesNotFit(f"it needs (height, width, channels) and its input is {written(use.shape)}")
    *image, channels = use.shape
    filters = use.integer("filters", default=32)
    kernels = (1, 3, 5)
    count = sum(channels * filters * k * k + filters for k in kernels) + channels * filters + filters
    options = {"channels": channels, "filters": filters}
    return Made("inception", (*image, 4 * filters), options, count, 2 * size(tuple(image)) * count)


@rule("Lambda")
def expression(use: Use) -> Made:
    text = use.params.get("function")
    if not isinstance(text, str):
        raise WrongArgument('Lambda needs an expression in x, as in Lambda("x * 2")')
    try:
        python = python_of(text)
    except BadExpression as error:
        raise WrongArgument(f"Lambda: {error}") from None
    return Made("lambda", use.shape, {"python": python}, flops=size(use.shape))


@rule("Custom", "DynamicLayer", "QuantumLayer")
def unknown(use: Use) -> Made:
    use.warn(f"nothing here knows {use.layer.written}: its input passes through unchanged")
    return Made("identity", use.shape)
