"""Dense layers, dropout, normalisation, activations, embeddings, and what only changes a shape."""

from __future__ import annotations

from typing import Any

from neuraldbg.dsl.graph import size, written
from neuraldbg.dsl.model import Reference
from neuraldbg.dsl.rules.use import DoesNotFit, Made, Use, WrongArgument, rule


@rule("Dense", "Output")
def dense(use: Use) -> Made:
    units, bias = use.integer("units"), use.flag("use_bias", default=True)
    features = use.shape[-1]
    positions = size(use.shape[:-1])
    return Made(
        "dense",
        (*use.shape[:-1], units),
        {"features": features, "units": units, "bias": bias},
        parameters=features * units + bias * units,
        flops=positions * units * (2 * features + bias),
        activation=use.activation(),
    )


@rule("Flatten")
def flatten(use: Use) -> Made:
    return Made("flatten", (size(use.shape),))


@rule("Reshape")
def reshape(use: Use) -> Made:
    return Made("reshape", target_shape(use, use.params.get("target_shape")))


@rule("CustomShape")
def custom_shape(use: Use) -> Made:
    return Made("reshape", target_shape(use, use.params.get("target_shape", use.params.get("shape"))))


def target_shape(use: Use, given: Any) -> tuple[int, ...]:
    if isinstance(given, int) and not isinstance(given, bool):
        given = (given,)
    if not isinstance(given, tuple | list) or not given:
        raise WrongArgument(f"{use.layer.type} needs a target_shape, as in (7, 7, 64)")
    dims = list(given)
    if dims and dims[0] is None:
        dims = dims[1:]
    for dim in dims:
        if isinstance(dim, Reference):
            raise WrongArgument(f"{dim.text!r} is not defined: the sizes of target_shape are numbers")
        if isinstance(dim, bool) or not isinstance(dim, int) or (dim <= 0 and dim != -1):
            raise WrongArgument(f"{dim!r} cannot be a size in target_shape")
    total, known = size(use.shape), size(tuple(d for d in dims if d != -1))
    if dims.count(-1) == 1 and known and total % known == 0:
        dims[dims.index(-1)] = total // known
    if -1 in dims or size(tuple(dims)) != total:
        raise DoesNotFit(f"{written(tuple(dims))} does not hold the {total:,} values of its {written(use.shape)} input")
    return tuple(dims)


@rule("RepeatVector")
def repeat_vector(use: Use) -> Made:
    times = use.integer("n")
    if len(use.shape) != 1:
        raise DoesNotFit(f"it repeats a vector, and its input is {written(use.shape)}")
    return Made("repeat", (times, *use.shape), {"times": times})


@rule("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D")
def dropout(use: Use) -> Made:
    rate = use.rate("rate", default=None)
    if rate == 1:
        use.warn("rate=1 drops everything")
    spatial = use.layer.type.startswith("Spatial")
    rank = int(use.layer.type[-2]) if spatial else 0
    if spatial and len(use.shape) != rank + 1:
        use.warn(f"its input is {written(use.shape)}: plain dropout is taken")
        rank = 0
    return Made("dropout", use.shape, {"rate": rate, "spatial": rank})


@rule("GaussianNoise")
def noise(use: Use) -> Made:
    return Made("noise", use.shape, {"stddev": use.number("stddev", default=0.1)})


@rule("ActivityRegularization", "L1", "L2", "L1L2")
def regularization(use: Use) -> Made:
    first = use.number("l1", default=0.0 if use.layer.type != "L1" else 0.01)
    second = use.number("l2", default=0.0 if use.layer.type != "L2" else 0.01)
    return Made("activity", use.shape, {"l1": first, "l2": second})


@rule("BatchNormalization", "InstanceNormalization")
def batch_norm(use: Use) -> Made:
    channels = use.shape[-1]
    kind = "batch_norm" if use.layer.type == "BatchNormalization" else "instance_norm"
    if kind == "instance_norm" and size(use.shape[:-1]) < 2:
        raise DoesNotFit(f"its {written(use.shape)} input has nothing to average over")
    affine = use.flag("scale", default=True) or use.flag("center", default=True)
    options = {
        "channels": channels,
        "rank": len(use.shape) - 1,
        "epsilon": use.number("epsilon", default=1e-3 if kind == "batch_norm" else 1e-5),
        "momentum": use.number("momentum", default=0.9),
        "affine": affine,
    }
    return Made(kind, use.shape, options, parameters=2 * channels * affine, flops=4 * size(use.shape))


@rule("LayerNormalization")
def layer_norm(use: Use) -> Made:
    channels = use.shape[-1]
    options = {"channels": channels, "epsilon": use.number("epsilon", default=1e-3)}
    return Made("layer_norm", use.shape, options, parameters=2 * channels, flops=8 * size(use.shape))


@rule("GroupNormalization")
def group_norm(use: Use) -> Made:
    channels, groups = use.shape[-1], use.integer("groups", default=min(32, use.shape[-1]))
    if channels % groups:
        raise DoesNotFit(f"{channels} channels cannot be put into {groups} groups")
    options = {"channels": channels, "groups": groups, "epsilon": use.number("epsilon", default=1e-3)}
    return Made("group_norm", use.shape, options, parameters=2 * channels, flops=8 * size(use.shape))


@rule("Activation")
def activation(use: Use) -> Made:
    return Made("activation", use.shape, activation=use.activation(), flops=size(use.shape))


@rule("Embedding")
def embedding(use: Use) -> Made:
    words = use.integer("input_dim", "vocab_size")
    width = use.integer("output_dim", "embed_dim", "embedding_dim")
    padding = use.flag("mask_zero")
    return Made("embedding", (*use.shape, width), {"words": words, "width": width, "padding": padding}, words * width)


@rule("PositionalEncoding")
def positional_encoding(use: Use) -> Made:
    length, width = use.shape[-2], use.shape[-1]
    given = use.params.get("d_model")
    if isinstance(given, int) and given != width:
        use.warn(f"d_model={given} does not match its {written(use.shape)} input; {width} is taken")
    options = {"length": length, "width": width, "dropout": use.rate("dropout", default=0.0)}
    learned = use.word("encoding_type") in ("learned", "learnable", "trainable") or use.flag("trainable")
    if learned:
        return Made("learned_positions", use.shape, options, parameters=length * width)
    return Made("positions", use.shape, options, flops=size(use.shape))
