"""The layers of the language: their names, the order of their positional arguments, and the arguments they know."""

from __future__ import annotations

from functools import cache
from typing import Final

from neuraldbg.errors import nearest

DIMENSIONS: Final = (1, 2, 3)


def _each(pattern: str, arguments: str, dimensions: tuple[int, ...] = DIMENSIONS) -> dict[str, str]:
    return {pattern.format(n=n): arguments for n in dimensions}


_RECURRENT: Final = (
    "units | activation recurrent_activation return_sequences return_state dropout recurrent_dropout num_layers "
    "bidirectional stateful use_bias go_backwards"
)
# canonical name -> "positional arguments in order | further arguments"
_LAYERS: Final[dict[str, str]] = {
    "Dense": "units activation use_bias |",
    "Output": "units activation | use_bias",
    "Flatten": "| data_format",
    "Reshape": "target_shape |",
    "Dropout": "rate | noise_shape",
    **_each("SpatialDropout{n}D", "rate |"),
    "GaussianNoise": "stddev |",
    "ActivityRegularization": "l1 l2 |",
    "L1": "l1 |",
    "L2": "l2 |",
    "L1L2": "l1 l2 |",
    **_each("Conv{n}D", "filters kernel_size activation strides padding | dilation_rate groups use_bias data_format"),
    **_each(
        "Conv{n}DTranspose",
        "filters kernel_size activation | strides padding output_padding dilation_rate use_bias data_format",
    ),
    "DepthwiseConv2D": "kernel_size activation | filters strides padding depth_multiplier dilation_rate use_bias",
    "SeparableConv2D": "filters kernel_size activation | strides padding depth_multiplier dilation_rate use_bias",
    **_each("MaxPooling{n}D", "pool_size strides padding | data_format"),
    **_each("AveragePooling{n}D", "pool_size strides padding | data_format"),
    **_each("GlobalMaxPooling{n}D", "| keepdims data_format"),
    **_each("GlobalAveragePooling{n}D", "| keepdims data_format"),
    **_each("AdaptiveMaxPooling{n}D", "output_size | data_format"),
    **_each("AdaptiveAveragePooling{n}D", "output_size | data_format"),
    **_each("UpSampling{n}D", "size | interpolation data_format"),
    **_each("ZeroPadding{n}D", "padding | data_format"),
    "RepeatVector": "n |",
    "BatchNormalization": "| axis momentum epsilon center scale",
    "LayerNormalization": "epsilon | axis center scale",
    "InstanceNormalization": "| axis epsilon center scale",
    "GroupNormalization": "groups | axis epsilon center scale",
    "Activation": "activation | alpha",
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _RECURRENT),
    **{f"{kind}Cell": "units | activation dropout recurrent_dropout use_bias" for kind in ("LSTM", "GRU", "SimpleRNN")},
    **{
        f"{kind}DropoutWrapper": "units dropout | return_sequences activation rate recurrent_dropout"
        for kind in ("LSTM", "GRU", "SimpleRNN")
    },
    "Bidirectional": "layer | merge_mode",
    "TimeDistributed": "layer |",
    "ConvLSTM2D": "filters kernel_size | strides padding return_sequences activation dropout recurrent_dropout",
    "ConvGRU2D": "filters kernel_size | strides padding return_sequences activation dropout recurrent_dropout",
    "Embedding": "input_dim output_dim input_length | mask_zero embeddings_initializer embeddings_regularizer "
    "vocab_size embed_dim embedding_dim",
    "PositionalEncoding": "max_len d_model | max_length dropout encoding_type trainable sequence_length",
    "MultiHeadAttention": "num_heads key_dim | value_dim dropout use_bias mode use_causal_mask causal d_model "
    "embed_dim output_shape attention_axes head_dim inputs",
    "Attention": "| use_scale dropout mode units causal use_causal_mask score_mode inputs",
    "Transformer": "num_heads ff_dim | num_layers dropout activation d_model num_encoder_layers num_decoder_layers",
    "TransformerEncoder": "num_heads ff_dim dropout | num_layers activation use_attention_mask mask d_model causal "
    "rate key_dim embed_dim norm_first",
    "TransformerDecoder": "num_heads ff_dim dropout | num_layers activation use_attention_mask mask d_model causal "
    "use_causal_mask rate key_dim embed_dim norm_first cross_attention inputs",
    **dict.fromkeys(("Add", "Subtract", "Multiply", "Average", "Maximum"), "| inputs layers operands"),
    "Concatenate": "| axis inputs layers operands",
    "Dot": "| axes normalize inputs layers operands",
    "ResidualConnection": "| projection",
    "Inception": "filters |",
    "CapsuleLayer": "num_capsules dim_capsule | capsule_dim capsules routings routing_iterations",
    "SqueezeExcitation": "ratio | reduction_ratio filters se_ratio",
    "GraphConv": "units activation | use_bias",
    "GraphAttention": "units num_heads activation | heads dropout",
    "QuantumLayer": "n_qubits n_layers |",
    "DynamicLayer": "|",
    "Lambda": "function |",
    "CustomShape": "layer target_shape | shape",
}
ANYWHERE: Final = frozenset(
    "name dtype trainable seed kernel_initializer bias_initializer kernel_regularizer bias_regularizer "
    "activity_regularizer kernel_constraint bias_constraint recurrent_initializer recurrent_regularizer input_shape "
    "gamma_initializer beta_initializer weights device".split()
)
_ALIASES: Final[dict[str, str]] = {
    "linear": "Dense",
    "fullyconnected": "Dense",
    "fc": "Dense",
    "rnn": "SimpleRNN",
    "batchnorm": "BatchNormalization",
    "batchnorm1d": "BatchNormalization",
    "batchnorm2d": "BatchNormalization",
    "layernorm": "LayerNormalization",
    "instancenorm": "InstanceNormalization",
    "groupnorm": "GroupNormalization",
    "residual": "ResidualConnection",
    "concat": "Concatenate",
    "sub": "Subtract",
    "capsule": "CapsuleLayer",
    "quantum": "QuantumLayer",
    "dynamic": "DynamicLayer",
    "selfattention": "MultiHeadAttention",
    "multiheadattentionlayer": "MultiHeadAttention",
    "transformerblock": "TransformerEncoder",
    "transformerencoderlayer": "TransformerEncoder",
    "transformerdecoderlayer": "TransformerDecoder",
    "positionalembedding": "PositionalEncoding",
    "graphconvolution": "GraphConv",
    "squeezeandexcitation": "SqueezeExcitation",
    "seblock": "SqueezeExcitation",
    **{f"maxpool{n}d": f"MaxPooling{n}D" for n in DIMENSIONS},
    **{f"avgpool{n}d": f"AveragePooling{n}D" for n in DIMENSIONS},
    **{f"globalavgpool{n}d": f"GlobalAveragePooling{n}D" for n in DIMENSIONS},
    **{f"globalmaxpool{n}d": f"GlobalMaxPooling{n}D" for n in DIMENSIONS},
    **{f"convolution{n}d": f"Conv{n}D" for n in DIMENSIONS},
    **{f"convtranspose{n}d": f"Conv{n}DTranspose" for n in DIMENSIONS},
}
ACTIVATION_LAYERS: Final = {
    "relu": "relu",
    "leakyrelu": "leaky_relu",
    "prelu": "prelu",
    "elu": "elu",
    "selu": "selu",
    "gelu": "gelu",
    "softmax": "softmax",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "swish": "swish",
    "silu": "swish",
    "softplus": "softplus",
    "mish": "mish",
}
MERGES: Final = frozenset({"Add", "Subtract", "Multiply", "Average", "Maximum", "Concatenate", "Dot"})
CUSTOM: Final = "Custom"  # any XxxLayer that nobody here knows
_BY_LOWER: Final = {name.lower(): name for name in _LAYERS}


def canonical(name: str) -> str | None:
    """The layer a name means, in any case; None where there is none."""
    lower = name.lower()
    found = _BY_LOWER.get(lower) or _ALIASES.get(lower) or _ALIASES.get(lower.replace("_", ""))
    if found is None and lower in ACTIVATION_LAYERS:
        return "Activation"
    return found or _BY_LOWER.get(lower.replace("_", ""))


def is_custom(name: str) -> bool:
    return name.lower().endswith("layer")


@cache
def positional(layer: str) -> tuple[str, ...]:
    return tuple(_LAYERS.get(layer, "|").split("|")[0].split())


@cache
def known_arguments(layer: str) -> frozenset[str]:
    return frozenset(_LAYERS.get(layer, "|").replace("|", " ").split()) | ANYWHERE


def names() -> list[str]:
    return list(_LAYERS)


def near_layers(name: str, macros: list[str]) -> list[str]:
    return nearest(name, [*macros, *_LAYERS], 2)
