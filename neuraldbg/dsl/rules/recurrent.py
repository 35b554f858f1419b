"""Layers with a memory: over sequences of vectors, and over sequences of images."""

from __future__ import annotations

from neuraldbg.dsl.graph import size, written
from neuraldbg.dsl.rules.convolution import windows
from neuraldbg.dsl.rules.use import DoesNotFit, Made, Use, rule

GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}
_KINDS = tuple(GATES)


@rule(*_KINDS, *(f"{kind}Cell" for kind in _KINDS), *(f"{kind}DropoutWrapper" for kind in _KINDS))
def recurrent(use: Use) -> Made:
    kind = use.layer.type.removesuffix("Cell").removesuffix("DropoutWrapper")
    units, layers = use.integer("units"), use.integer("num_layers", default=1)
    length, features = use.shape
    both = 2 if use.flag("bidirectional") else 1
    sequences = use.flag("return_sequences")
    bias = use.flag("use_bias", default=True)
    per = GATES[kind]
    count, width = 0, features
    for _ in range(layers):
        count += both * per * (units * (width + units) + 2 * units * bias)
        width = units * both
    activation = use.activation() or "tanh"
    if activation != "tanh" and not (kind == "SimpleRNN" and activation == "relu"):
        use.warn(f"activation={activation} is not applied: {kind} uses tanh here")
        activation = "tanh"
    options = {
        "kind": kind,
        "features": features,
        "units": units,
        "layers": layers,
        "both": both == 2,
        "sequences": sequences,
        "dropout": use.rate("dropout", "rate", default=0.0),
        "bias": bias,
        "nonlinearity": activation,
    }
    if use.rate("recurrent_dropout", default=0.0):
        use.warn("recurrent_dropout is not applied")
    if use.flag("return_state"):
        use.warn("return_state: only the output is handed on")
    shape = (length, units * both) if sequences else (units * both,)
    return Made("rnn", shape, options, count, 2 * length * count)


@rule("ConvLSTM2D", "ConvGRU2D")
def conv_recurrent(use: Use) -> Made:
    if len(use.shape) != 4:
        raise DoesNotFit(f"it needs (time, height, width, channels) and its input is {written(use.shape)}")
    length, *image, channels = use.shape
    kind = "LSTM" if "LSTM" in use.layer.type else "GRU"
    filters, kernel = use.integer("filters"), use.sizes(2, "kernel_size", default=3)
    if use.sizes(2, "strides", default=1) != (1, 1):
        use.warn("strides are not applied")
    windows(use, tuple(image), kernel, (1, 1), (1, 1))
    if use.word("padding", default="valid") != "same":
        use.warn("padding 'same' is taken: the state keeps the size of the image")
    sequences = use.flag("return_sequences")
    weights = GATES[kind] * ((channels + filters) * filters * size(kernel) + filters)
    options = {"kind": kind, "channels": channels, "filters": filters, "kernel": kernel, "sequences": sequences}
    shape = (length, *image, filters) if sequences else (*image, filters)
    return Made("conv_rnn", shape, options, weights, 2 * length * size(tuple(image)) * weights)
