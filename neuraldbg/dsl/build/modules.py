"""The PyTorch module of a step, as the expression that makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuraldbg.dsl.graph import Step

Options = dict[str, Any]


def _same(values: tuple[int, ...]) -> str:
    """`(3, 3)` is written 3."""
    return str(values[0]) if len(set(values)) == 1 else str(tuple(values))


def _call(name: str, *positional: object, **named: object) -> str:
    parts = [str(each) for each in positional]
    parts += [f"{key}={value}" for key, value in named.items() if value is not None]
    return f"{name}({', '.join(parts)})"


def _unless(value: object, default: object) -> object:
    return None if value == default else value


def _dense(o: Options) -> str:
    return _call("nn.Linear", o["features"], o["units"], bias=_unless(o["bias"], True))


def symmetric(pads: list[tuple[int, int]]) -> bool:
    return all(before == after for before, after in pads)


def _conv(o: Options) -> str:
    ones = (1,) * o["rank"]
    padding = tuple(before for before, _ in o["pads"]) if symmetric(o["pads"]) else (0,) * o["rank"]
    return _call(
        f"nn.Conv{o['rank']}d",
        o["channels"],
        o["filters"],
        _same(o["kernel"]),
        stride=None if o["strides"] == ones else _same(o["strides"]),
        padding=None if not any(padding) else _same(padding),
        dilation=None if o["dilation"] == ones else _same(o["dilation"]),
        groups=_unless(o["groups"], 1),
        bias=_unless(o["bias"], True),
    )


def _conv_transpose(o: Options) -> str:
    return _call(
        f"nn.ConvTranspose{o['rank']}d",
        o["channels"],
        o["filters"],
        _same(o["kernel"]),
        stride=None if set(o["strides"]) == {1} else _same(o["strides"]),
        padding=None if not any(o["trim"]) else _same(o["trim"]),
        output_padding=None if not any(o["extra"]) else _same(o["extra"]),
        bias=_unless(o["bias"], True),
    )


def _separable(o: Options) -> str:
    spread = _conv({**o, "filters": o["middle"], "groups": o["channels"], "bias": False})
    mix = _call("nn.Conv2d", o["middle"], o["filters"], 1, bias=_unless(o["bias"], True))
    return f"nn.Sequential({spread}, {mix})"


def _pool(o: Options) -> str:
    plain = symmetric(o["pads"])
    padding = tuple(before for before, _ in o["pads"]) if plain else (0,) * o["rank"]
    return _call(
        f"nn.{'Max' if o['kind'] == 'max' else 'Avg'}Pool{o['rank']}d",
        _same(o["pool"]),
        stride=None if o["strides"] == o["pool"] else _same(o["strides"]),
        padding=None if not any(padding) else _same(padding),
        count_include_pad=False if o["kind"] == "average" and any(padding) else None,
    )


def _adaptive(o: Options) -> str:
    return _call(f"nn.Adaptive{'Max' if o['kind'] == 'max' else 'Avg'}Pool{o['rank']}d", _same(o["wanted"]))


def _upsample(o: Options) -> str:
    mode = {"bilinear": "linear", "nearest": "nearest", "bicubic": "bicubic"}[o["how"]]
    if mode == "linear" and o["rank"] > 1:
        mode = "bilinear" if o["rank"] == 2 else "trilinear"
    factor = _same(o["factors"])
    return _call("nn.Upsample", scale_factor=factor, mode=_unless(repr(mode), "'nearest'"))


def _dropout(o: Options) -> str:
    return _call(f"nn.Dropout{o['spatial']}d" if o["spatial"] else "nn.Dropout", o["rate"])


def _norm(name: str) -> Callable[[Options], str]:
    def write(o: Options) -> str:
        return _call(
            f"nn.{name}{max(o['rank'], 1)}d",
            o["channels"],
            eps=_unless(o["epsilon"], 1e-5),
            momentum=_unless(round(1 - o["momentum"], 10), 0.1) if name == "BatchNorm" else None,
            affine=True if name == "InstanceNorm" and o["affine"] else _unless(o["affine"], name == "BatchNorm"),
        )

    return write


def _layer_norm(o: Options) -> str:
    return _call("nn.LayerNorm", o["channels"], eps=_unless(o["epsilon"], 1e-5))


def _group_norm(o: Options) -> str:
    return _call("nn.GroupNorm", o["groups"], o["channels"], eps=_unless(o["epsilon"], 1e-5))


def _embedding(o: Options) -> str:
    return _call("nn.Embedding", o["words"], o["width"], padding_idx=0 if o["padding"] else None)


def _rnn(o: Options) -> str:
    return _call(
        f"nn.{'RNN' if o['kind'] == 'SimpleRNN' else o['kind']}",
        o["features"],
        o["units"],
        num_layers=_unless(o["layers"], 1),
        batch_first=True,
        nonlinearity=_unless(repr(o["nonlinearity"]), "'tanh'") if o["kind"] == "SimpleRNN" else None,
        dropout=_unless(o["dropout"], 0.0) if o["layers"] > 1 else None,
        bidirectional=_unless(o["both"], False),
        bias=_unless(o["bias"], True),
    )


def _encoder_layer(o: Options, kind: str) -> str:
    return _call(
        f"nn.Transformer{kind}Layer",
        o["width"],
        o["heads"],
        o["hidden"],
        dropout=_unless(o["dropout"], 0.1),
        activation=_unless(repr(o["nonlinearity"]), "'relu'"),
        batch_first=True,
        norm_first=_unless(o["first"], False),
    )


def _encoder(o: Options) -> str:
    one = _encoder_layer(o, "Encoder")
    return one if o["layers"] == 1 else f"nn.TransformerEncoder({one}, {o['layers']}, enable_nested_tensor=False)"


def _decoder(o: Options) -> str:
    one = _encoder_layer(o, "Decoder")
    return one if o["layers"] == 1 else f"nn.TransformerDecoder({one}, {o['layers']})"


def _transformer(o: Options) -> str:
    return _call(
        "nn.Transformer",
        o["width"],
        o["heads"],
        o["encoders"],
        o["decoders"],
        o["hidden"],
        _unless(o["dropout"], None),
        repr(o["nonlinearity"]),
        batch_first=True,
    )


def _attention(o: Options) -> str:
    parts = (o["width"], o["memory"], o["heads"], o["key"], o["value"], o["dropout"], o["bias"])
    return _call("MultiHeadAttention", *parts)


def _conv_rnn(o: Options) -> str:
    return _call("ConvRecurrent", repr(o["kind"]), o["channels"], o["filters"], o["kernel"], o["sequences"])


MODULES: dict[str, Callable[[Options], str]] = {
    "dense": _dense,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "separable_conv": _separable,
    "pool": _pool,
    "adaptive_pool": _adaptive,
    "upsample": _upsample,
    "dropout": _dropout,
    "batch_norm": _norm("BatchNorm"),
    "instance_norm": _norm("InstanceNorm"),
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "embedding": _embedding,
    "rnn": _rnn,
    "encoder": _encoder,
    "decoder": _decoder,
    "transformer": _transformer,
    "attention": _attention,
    "conv_rnn": _conv_rnn,
    "flatten": lambda _: "nn.Flatten()",
    "identity": lambda _: "nn.Identity()",
    "positions": lambda o: _call("PositionalEncoding", o["length"], o["width"], _unless(o["dropout"], 0.0) or 0.0),
    "learned_positions": lambda o: _call("LearnedPositions", o["length"], o["width"]),
    "noise": lambda o: _call("GaussianNoise", o["stddev"]),
    "squeeze": lambda o: _call("SqueezeExcitation", o["channels"], o["hidden"]),
    "inception": lambda o: _call("Inception", o["channels"], o["filters"]),
    "capsules": lambda o: _call("Capsules", o["features"], o["number"], o["width"]),
    "graph_conv": lambda o: _call("GraphConv", o["nodes"], o["features"], o["units"]),
    "graph_attention": lambda o: _call("GraphAttention", o["width"], o["units"], o["heads"]),
}
BLOCKS = {  # op -> class of blocks.py
    "attention": "MultiHeadAttention",
    "conv_rnn": "ConvRecurrent",
    "positions": "PositionalEncoding",
    "learned_positions": "LearnedPositions",
    "noise": "GaussianNoise",
    "squeeze": "SqueezeExcitation",
    "inception": "Inception",
    "capsules": "Capsules",
    "graph_conv": "GraphConv",
    "graph_attention": "GraphAttention",
}
_ACTIVATIONS = {
    "relu": "nn.ReLU()",
    "sigmoid": "nn.Sigmoid()",
    "tanh": "nn.Tanh()",
    "gelu": "nn.GELU()",
    "elu": "nn.ELU()",
    "selu": "nn.SELU()",
    "prelu": "nn.PReLU()",
    "swish": "nn.SiLU()",
    "softplus": "nn.Softplus()",
    "softsign": "nn.Softsign()",
    "hard_sigmoid": "nn.Hardsigmoid()",
    "hard_swish": "nn.Hardswish()",
    "mish": "nn.Mish()",
    "relu6": "nn.ReLU6()",
    "exponential": "Exponential()",
}


def activation(name: str, axis: int, alpha: object = None) -> str:
    """`axis` is that of the channels."""
    if name in ("softmax", "log_softmax"):
        return f"nn.{'Softmax' if name == 'softmax' else 'LogSoftmax'}(dim={axis})"
    if name == "leaky_relu":
        slope = alpha if isinstance(alpha, int | float) and not isinstance(alpha, bool) else None
        return _call("nn.LeakyReLU", *([slope] if slope is not None else []))
    return _ACTIVATIONS[name]


def module_of(step: Step) -> str | None:
    """None for a step that is plain arithmetic."""
    write = MODULES.get(step.op)
    return None if write is None or (step.op == "flatten" and step.implied) else write(step.options)


_INITIALIZERS = {
    "glorot_uniform": "nn.init.xavier_uniform_({w})",
    "xavier_uniform": "nn.init.xavier_uniform_({w})",
    "glorot_normal": "nn.init.xavier_normal_({w})",
    "xavier_normal": "nn.init.xavier_normal_({w})",
    "he_normal": "nn.init.kaiming_normal_({w}, nonlinearity='relu')",
    "he_uniform": "nn.init.kaiming_uniform_({w}, nonlinearity='relu')",
    "lecun_normal": "nn.init.kaiming_normal_({w}, nonlinearity='linear')",
    "lecun_uniform": "nn.init.kaiming_uniform_({w}, nonlinearity='linear')",
    "orthogonal": "nn.init.orthogonal_({w})",
    "zeros": "nn.init.zeros_({w})",
    "ones": "nn.init.ones_({w})",
    "random_normal": "nn.init.normal_({w}, std=0.05)",
    "normal": "nn.init.normal_({w}, std=0.05)",
    "random_uniform": "nn.init.uniform_({w}, -0.05, 0.05)",
    "uniform": "nn.init.uniform_({w}, -0.05, 0.05)",
    "truncated_normal": "nn.init.trunc_normal_({w}, std=0.05)",
}


def initializer(step: Step) -> str | None:
    """How the weights start, where the file says so and it is known."""
    given = step.layer.params.get("kernel_initializer", step.layer.params.get("embeddings_initializer"))
    if given is None or step.implied or step.op not in ("dense", "conv", "conv_transpose", "embedding"):
        return None
    name = str(getattr(given, "name", given))
    snake = "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))
    write = _INITIALIZERS.get(snake)
    return None if write is None else write.format(w=f"self.{step.name}.weight")
