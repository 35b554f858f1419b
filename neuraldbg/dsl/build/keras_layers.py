"""The Keras layer of a step, as the expression that makes it. Keras is channels last, as the language is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuraldbg.dsl.graph import Step
from neuraldbg.errors import BackendMissing

Options = dict[str, Any]
INLINE = frozenset("dense conv conv_transpose separable_conv".split())  # these take `activation=` themselves
BLOCKS = {  # op -> class of keras_blocks.py
    "encoder": "TransformerEncoder",
    "decoder": "TransformerDecoder",
    "dot_attention": "DotAttention",
    "positions": "PositionalEncoding",
    "learned_positions": "LearnedPositions",
    "squeeze": "SqueezeExcitation",
    "inception": "Inception",
    "capsules": "Capsules",
    "graph_conv": "GraphConv",
    "graph_attention": "GraphAttention",
    "conv_rnn": "ConvRecurrent",
}
_ACTIVATIONS = {"swish": "silu", "hard_swish": "hard_silu"}
_INITIALIZERS = {"xavier_uniform": "glorot_uniform", "xavier_normal": "glorot_normal", "normal": "random_normal"}
_INITIALIZERS |= {"uniform": "random_uniform"}
KNOWN_INITIALIZERS = frozenset(
    "glorot_uniform glorot_normal he_normal he_uniform lecun_normal lecun_uniform orthogonal zeros ones random_normal "
    "random_uniform truncated_normal".split()
)


def call(callee: str, /, *positional: object, **named: object) -> str:
    """A call as text; what is None is left out."""
    parts = [str(each) for each in positional]
    parts += [f"{key}={value}" for key, value in named.items() if value is not None]
    return f"{callee}({', '.join(parts)})"


def unless(value: object, default: object) -> object:
    return None if value == default else value


def _same(values: tuple[int, ...]) -> object:
    return values[0] if len(set(values)) == 1 else tuple(values)


def quoted(text: str) -> str:
    return f'"{text}"'


def activation_name(step: Step) -> str | None:
    """What `activation=` takes; None where it takes a layer of its own."""
    if step.activation is None or step.activation in ("leaky_relu", "prelu"):
        return None
    return quoted(_ACTIVATIONS.get(step.activation, step.activation))


def activation_layer(step: Step, name: str) -> str:
    if step.activation == "leaky_relu":
        alpha = step.layer.params.get("alpha")
        slope = alpha if isinstance(alpha, int | float) and not isinstance(alpha, bool) else 0.01
        return call("layers.LeakyReLU", negative_slope=slope, name=quoted(name))
    if step.activation == "prelu":
        start = "keras.initializers.Constant(0.25)"
        shared = list(range(1, len(step.shape) + 1))
        return call("layers.PReLU", alpha_initializer=start, shared_axes=shared, name=quoted(name))
    return call("layers.Activation", activation_name(step), name=quoted(name))


# -- what every layer may have -----------------------------------------------------------------------------------------


def common(step: Step, penalties: dict[str, tuple[float, float]]) -> Options:
    """activation, initializer, regularizer, trainable and name, where the file says so."""
    told: Options = {}
    if step.op in INLINE:
        told["activation"] = activation_name(step)
        told["kernel_initializer"] = _initializer(step, "kernel_initializer")
        told["kernel_regularizer"] = _regularizer(penalties.get(step.name))
        if step.op == "separable_conv":
            told.pop("kernel_initializer")
            told.pop("kernel_regularizer")
    if step.op == "embedding":
        told["embeddings_initializer"] = _initializer(step, "embeddings_initializer")
    told["trainable"] = False if step.layer.params.get("trainable") is False and step.parameters else None
    told["name"] = quoted(step.name)
    return told


def _initializer(step: Step, key: str) -> str | None:
    given = step.layer.params.get(key, step.layer.params.get("kernel_initializer"))
    if given is None or step.implied:
        return None
    name = str(getattr(given, "name", given))
    snake = "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))
    snake = _INITIALIZERS.get(snake, snake)
    return quoted(snake) if snake in KNOWN_INITIALIZERS else None


def _regularizer(amounts: tuple[float, float] | None) -> str | None:
    if amounts is None:
        return None
    l1, l2 = amounts
    if l1 and l2:
        return f"keras.regularizers.L1L2({l1}, {l2})"
    return f"keras.regularizers.L1({l1})" if l1 else f"keras.regularizers.L2({l2})"


# -- layers ------------------------------------------------------------------------------------------------------------


def _dense(o: Options, rest: Options) -> str:
    return call("layers.Dense", o["units"], use_bias=unless(o["bias"], True), **rest)


def padding_of(step: Step) -> str | None:
    """valid, same or causal; None where Keras has no word for it."""
    o = step.options
    if all(pair == (0, 0) for pair in o["pads"]):
        return "valid"
    if str(step.layer.params.get("padding")).lower() != "causal":
        return "same"
    return "causal" if o["rank"] == 1 and o.get("groups", 1) == 1 and step.op == "conv" else None


def _conv(o: Options, rest: Options) -> str:
    ones = (1,) * o["rank"]
    window = {
        "strides": None if o["strides"] == ones else _same(o["strides"]),
        "padding": unless(quoted(o["padding"]), '"valid"'),
        "dilation_rate": None if o["dilation"] == ones else _same(o["dilation"]),
        "use_bias": unless(o["bias"], True),
    }
    if o["groups"] == o["channels"] > 1 and o["rank"] < 3:  # TensorFlow cannot train other groups on a CPU
        rest = {key.replace("kernel_", "depthwise_"): value for key, value in rest.items()}
        many = unless(o["filters"] // o["channels"], 1)
        name = f"layers.DepthwiseConv{o['rank']}D"
        return call(name, _same(o["kernel"]), depth_multiplier=many, **window, **rest)
    name = f"layers.Conv{o['rank']}D"
    return call(name, o["filters"], _same(o["kernel"]), groups=unless(o["groups"], 1), **window, **rest)


def _separable(o: Options, rest: Options) -> str:
    return call(
        "layers.SeparableConv2D",
        o["filters"],
        _same(o["kernel"]),
        strides=unless(_same(o["strides"]), 1),
        padding=unless(quoted(o["padding"]), '"valid"'),
        dilation_rate=unless(_same(o["dilation"]), 1),
        depth_multiplier=unless(o["middle"] // o["channels"], 1),
        use_bias=unless(o["bias"], True),
        **rest,
    )


def _conv_transpose(o: Options, rest: Options) -> str:
    return call(
        f"layers.Conv{o['rank']}DTranspose",
        o["filters"],
        _same(o["kernel"]),
        strides=unless(_same(o["strides"]), 1),
        padding='"same"' if o["same"] else None,
        use_bias=unless(o["bias"], True),
        **rest,
    )


def _pool(o: Options, rest: Options) -> str:
    kind = "Max" if o["kind"] == "max" else "Average"
    strides = None if o["strides"] == o["pool"] else _same(o["strides"])
    padding = unless(quoted(o["padding"]), '"valid"')
    return call(f"layers.{kind}Pooling{o['rank']}D", _same(o["pool"]), strides=strides, padding=padding, **rest)


def _adaptive(o: Options, rest: Options) -> str:
    kind = "Max" if o["kind"] == "max" else "Average"
    return call(f"layers.Adaptive{kind}Pooling{o['rank']}D", _same(o["wanted"]), **rest)


def _upsample(o: Options, rest: Options) -> str:
    if o["how"] != "nearest" and (o["rank"] != 2 or o["how"] == "bicubic"):
        raise BackendMissing(f"UpSampling{o['rank']}D with interpolation {o['how']} is not the same in Keras")
    how = unless(quoted(o["how"]), '"nearest"')
    return call(f"layers.UpSampling{o['rank']}D", _same(o["factors"]), interpolation=how, **rest)


def _pad(o: Options, rest: Options) -> str:
    pads = o["pads"][0] if o["rank"] == 1 else tuple(o["pads"])
    return call(f"layers.ZeroPadding{o['rank']}D", pads, **rest)


def _dropout(o: Options, rest: Options) -> str:
    return call(f"layers.SpatialDropout{o['spatial']}D" if o["spatial"] else "layers.Dropout", o["rate"], **rest)


def _batch_norm(o: Options, rest: Options) -> str:
    plain = None if o["affine"] else False
    momentum, epsilon = unless(o["momentum"], 0.99), unless(o["epsilon"], 1e-3)
    return call("layers.BatchNormalization", momentum=momentum, epsilon=epsilon, center=plain, scale=plain, **rest)


def _instance_norm(o: Options, rest: Options) -> str:
    plain = None if o["affine"] else False
    return call("layers.GroupNormalization", -1, epsilon=o["epsilon"], center=plain, scale=plain, **rest)


def _group_norm(o: Options, rest: Options) -> str:
    return call("layers.GroupNormalization", o["groups"], epsilon=unless(o["epsilon"], 1e-3), **rest)


def _global_pool(o: Options, rest: Options) -> str:
    if not o["rank"]:
        return call("layers.Identity", **rest)
    kind = "Max" if o["kind"] == "max" else "Average"
    return call(f"layers.Global{kind}Pooling{o['rank']}D", keepdims=unless(o["keep"], False), **rest)


def rnn_layer(o: Options, sequences: bool, name: str) -> str:
    inner = call(
        f"layers.{o['kind']}",
        o["units"],
        activation=unless(quoted(o["nonlinearity"]), '"tanh"') if o["kind"] == "SimpleRNN" else None,
        return_sequences=unless(sequences, False),
        dropout=unless(o["dropout"], 0.0),
        use_bias=unless(o["bias"], True),
        name=None if o["both"] else name,
    )
    return call("layers.Bidirectional", inner, name=name) if o["both"] else inner


def coder_layer(kind: str, o: Options, name: str) -> str:
    return call(
        f"Transformer{kind}",
        o["width"],
        o["heads"],
        o["hidden"],
        dropout=unless(o["dropout"], 0.1),
        activation=unless(quoted(o["nonlinearity"]), '"relu"'),
        norm_first=unless(o["first"], False),
        causal=unless(o["causal"], kind == "Decoder"),
        drops_weights=unless(o["drops_weights"], True),
        name=name,
    )


def _attention(o: Options, rest: Options) -> str:
    value = unless(o["value"], o["key"])
    dropout, bias = unless(o["dropout"], 0.0), unless(o["bias"], True)
    name = "layers.MultiHeadAttention"
    return call(name, o["heads"], o["key"], value_dim=value, dropout=dropout, use_bias=bias, **rest)


LAYERS: dict[str, Callable[[Options, Options], str]] = {
    "dense": _dense,
    "conv": _conv,
    "separable_conv": _separable,
    "conv_transpose": _conv_transpose,
    "pool": _pool,
    "adaptive_pool": _adaptive,
    "upsample": _upsample,
    "pad": _pad,
    "dropout": _dropout,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "group_norm": _group_norm,
    "global_pool": _global_pool,
    "attention": _attention,
    "layer_norm": lambda o, r: call("layers.LayerNormalization", epsilon=unless(o["epsilon"], 1e-3), **r),
    "embedding": lambda o, r: call("layers.Embedding", o["words"], o["width"], **r),
    "noise": lambda o, r: call("layers.GaussianNoise", o["stddev"], **r),
    "flatten": lambda _, r: call("layers.Flatten", **r),
    "reshape": lambda o, r: call("layers.Reshape", o["shape"], **r),
    "repeat": lambda o, r: call("layers.RepeatVector", o["times"], **r),
    "identity": lambda _, r: call("layers.Identity", **r),
    "activity": lambda _, r: call("layers.Identity", **r),
    "dot_attention": lambda o, r: call("DotAttention", o["width"], causal=unless(o["causal"], False), **r),
    "positions": lambda o, r: call("PositionalEncoding", o["length"], o["width"], unless(o["dropout"], 0) or 0.0, **r),
    "learned_positions": lambda o, r: call("LearnedPositions", o["length"], o["width"], **r),
    "squeeze": lambda o, r: call("SqueezeExcitation", o["channels"], o["hidden"], **r),
    "inception": lambda o, r: call("Inception", o["filters"], **r),
    "capsules": lambda o, r: call("Capsules", o["features"], o["number"], o["width"], **r),
    "graph_conv": lambda o, r: call("GraphConv", o["nodes"], o["units"], **r),
    "graph_attention": lambda o, r: call("GraphAttention", o["units"], o["heads"], **r),
    "conv_rnn": lambda o, r: call("ConvRecurrent", quoted(o["kind"]), o["filters"], o["kernel"], o["sequences"], **r),
}


def layer_of(step: Step, penalties: dict[str, tuple[float, float]]) -> str:
    options = dict(step.options)
    if "pads" in options and step.op != "pad":
        options["padding"] = padding_of(step) or "valid"
    if step.op == "reshape":
        options["shape"] = tuple(step.shape)
    return LAYERS[step.op](options, common(step, penalties))
