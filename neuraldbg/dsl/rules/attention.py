"""Attention and transformers. Sequences are (length, features)."""

from __future__ import annotations

from neuraldbg.dsl.graph import written
from neuraldbg.dsl.rules.use import Made, Use, rule

LONGEST_DROPPED = 4096  # positions: beyond, the weights of all pairs of them do not fit into memory


def heads_for(use: Use, width: int, *, default: int = 8) -> int:
    """The heads asked for, or the most below that divide the width."""
    heads = use.integer("num_heads", default=default)
    if width % heads:
        fitting = max(n for n in range(1, min(heads, width) + 1) if width % n == 0)
        use.warn(f"{heads} heads do not divide the {width} features of its input; {fitting} are taken")
        return fitting
    return heads


def check_width(use: Use, width: int) -> None:
    for name in ("d_model", "embed_dim"):
        given = use.params.get(name)
        if isinstance(given, int) and given != width:
            use.warn(f"{name}={given} does not match its {written(use.shape)} input; {width} is taken")


@rule("MultiHeadAttention")
def multi_head(use: Use) -> Made:
    length, width = use.shape
    heads = use.integer("num_heads", default=8)
    key = use.integer("key_dim", "head_dim", default=64)
    value, bias = use.integer("value_dim", default=key), use.flag("use_bias", default=True)
    memory = use.shapes[1] if len(use.shapes) > 1 else use.shape
    inner = heads * (2 * key + value)
    weights = width * heads * key + memory[-1] * heads * (key + value) + heads * value * width
    options = {
        "width": width,
        "memory": memory[-1],
        "heads": heads,
        "key": key,
        "value": value,
        "bias": bias,
        "dropout": use.rate("dropout", default=0.0),
        "causal": use.flag("use_causal_mask", "causal"),
    }
    scores = 2 * length * memory[0] * heads * (key + value)
    return Made("attention", use.shape, options, weights + bias * (inner + width), 2 * length * weights + scores)


@rule("Attention")
def attention(use: Use) -> Made:
    length, width = use.shape
    memory = use.shapes[1] if len(use.shapes) > 1 else use.shape
    shape = (length, memory[-1])
    if memory[-1] != width:
        use.warn(f"its inputs have {width} and {memory[-1]} features; the last {min(width, memory[-1])} are compared")
    options = {"causal": use.flag("causal", "use_causal_mask"), "width": min(width, memory[-1])}
    return Made("dot_attention", shape, options, flops=4 * length * memory[0] * width)


def _encoder_size(width: int, hidden: int) -> int:
    return 4 * width * width + 4 * width + 2 * width * hidden + hidden + width + 4 * width


def _options(use: Use, width: int) -> dict[str, object]:
    check_width(use, width)
    activation = use.activation() or "relu"
    if activation not in ("relu", "gelu"):
        use.warn(f"activation={activation} is not one of relu, gelu; relu is taken")
        activation = "relu"
    return {
        "width": width,
        "heads": heads_for(use, width),
        "hidden": use.integer("ff_dim", default=512),
        "dropout": use.rate("dropout", "rate", default=0.1),
        "layers": use.integer("num_layers", default=1),
        "nonlinearity": activation,
        "first": use.flag("norm_first"),
        "drops_weights": _drops_weights(use),
    }


def _drops_weights(use: Use) -> bool:
    """Whether dropout also takes away from the weights of the attention: for that all of them have to be kept."""
    longest = max(shape[0] for shape in use.shapes)
    if longest > LONGEST_DROPPED and use.rate("dropout", "rate", default=0.1) > 0:
        use.warn(f"dropout leaves the weights of its attention alone: those of {longest:,} positions would not fit")
        return False
    return True


@rule("TransformerEncoder")
def encoder(use: Use) -> Made:
    length, width = use.shape
    options = {**_options(use, width), "causal": use.flag("causal")}
    count = _encoder_size(width, int(str(options["hidden"]))) * int(str(options["layers"]))
    return Made("encoder", use.shape, options, count, 2 * length * count + 4 * length * length * width)


@rule("TransformerDecoder")
def decoder(use: Use) -> Made:
    length, width = use.shape
    options = _options(use, width)
    layers = int(str(options["layers"]))
    count = _encoder_size(width, int(str(options["hidden"]))) * layers
    if len(use.shapes) == 1:  # nothing to look at: a decoder by itself is an encoder that does not see ahead
        made = Made("encoder", use.shape, {**options, "causal": True}, count, 2 * length * count)
    else:
        count += (4 * width * width + 4 * width + 2 * width) * layers
        made = Made("decoder", use.shape, options, count, 2 * length * count + 8 * length * length * width)
    return made


@rule("Transformer")
def transformer(use: Use) -> Made:
    length, width = use.shape
    options = _options(use, width)
    layers = int(str(options["layers"]))
    encoders = use.integer("num_encoder_layers", default=layers)
    decoders = use.integer("num_decoder_layers", default=layers)
    one = _encoder_size(width, int(str(options["hidden"])))
    count = one * encoders + (one + 4 * width * width + 6 * width) * decoders + 4 * width
    options = {**options, "encoders": encoders, "decoders": decoders}
    return Made("transformer", use.shape, options, count, 2 * length * count)
