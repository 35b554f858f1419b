"""The weights of a PyTorch model in the Keras model of the same network: the same numbers, in the other's order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.dsl.graph import Graph, Step

Array = NDArray[Any]
_GATES = {"GRU": [1, 0, 2]}  # Keras: update, reset, new; torch: reset, update, new


def copy_weights(graph: Graph, source: Any, target: Any) -> None:
    """From a torch module into a keras model, step by step."""
    for step in graph.steps:
        for name, arrays in _of_step(step, source):
            layer = target.get_layer(name)
            have = [tuple(each.shape) for each in layer.weights]
            given = [array.shape for array in arrays]
            if have != given:
                raise ValueError(f"{name}: Keras has weights {have} and PyTorch {given}")
            layer.set_weights(arrays)


def _of_step(step: Step, source: Any) -> list[tuple[str, list[Array]]]:
    """Keras layers of a step and their arrays."""
    found: list[tuple[str, list[Array]]] = []
    if step.activation == "prelu":
        name = step.name if step.op == "activation" else f"{step.name}_prelu"
        found.append((name, [_array(getattr(source, name).weight).reshape((1,) * len(step.shape))]))
    many = _SEVERAL.get(step.op)
    if many is not None:
        return found + many(step, getattr(source, step.name))
    one = _ARRAYS.get(step.op)
    if one is not None:
        arrays = one(step.options, getattr(source, step.name))
        found += [(step.name, arrays)] if arrays else []
    return found


def _array(tensor: Any) -> Array:
    return np.asarray(tensor.detach().cpu().numpy())


def _linear(module: Any) -> list[Array]:
    return [_array(module.weight).T, *([] if module.bias is None else [_array(module.bias)])]


def _scaled(_: dict[str, Any], module: Any) -> list[Array]:
    return [] if module.weight is None else [_array(module.weight), _array(module.bias)]


def _moved(weight: Array) -> Array:
    """(out, in, *window) to (*window, in, out)."""
    return weight.transpose(*range(2, weight.ndim), 1, 0)


def _depthwise(weight: Array, channels: int) -> Array:
    """(channels x multiplier, 1, *window) to (*window, channels, multiplier)."""
    split = weight.reshape(channels, -1, *weight.shape[2:])
    return split.transpose(*range(2, split.ndim), 0, 1)


def _conv(o: dict[str, Any], module: Any) -> list[Array]:
    weight = _array(module.weight)
    by_channel = o["groups"] == o["channels"] > 1 and o["rank"] < 3
    kernel = _depthwise(weight, o["channels"]) if by_channel else _moved(weight)
    return [kernel, *([] if module.bias is None else [_array(module.bias)])]


def _conv_transpose(_: dict[str, Any], module: Any) -> list[Array]:
    return [_moved(_array(module.weight)), *([] if module.bias is None else [_array(module.bias)])]


def _separable(o: dict[str, Any], module: Any) -> list[Array]:
    spread, mix = module
    bias = [] if mix.bias is None else [_array(mix.bias)]
    return [_depthwise(_array(spread.weight), o["channels"]), _moved(_array(mix.weight)), *bias]


def _batch_norm(options: dict[str, Any], module: Any) -> list[Array]:
    return [*_scaled(options, module), _array(module.running_mean), _array(module.running_var)]


def _inception(_: dict[str, Any], module: Any) -> list[Array]:
    convolutions = [*module.towers, module.pooled]
    return [each for one in convolutions for each in (_moved(_array(one.weight)), _array(one.bias))]


def _heads(kernel: Array, bias: Array | None, heads: int) -> list[Array]:
    """A dense layer whose outputs are split into heads."""
    width = kernel.shape[1] // heads
    return [kernel.reshape(-1, heads, width), *([] if bias is None else [bias.reshape(heads, width)])]


def _attention_weights(parts: list[Any], out: Any, heads: int) -> list[Array]:
    """`parts` are the layers of query, key and value."""
    arrays: list[Array] = []
    for part in parts:
        kernel, *bias = _linear(part)
        arrays += _heads(kernel, bias[0] if bias else None, heads)
    kernel, *bias = _linear(out)
    return [*arrays, kernel.reshape(heads, -1, kernel.shape[1]), *bias]


def _attention(o: dict[str, Any], module: Any) -> list[Array]:
    return _attention_weights([module.query, module.key, module.value], module.out, o["heads"])


def _graph_attention(o: dict[str, Any], module: Any) -> list[Array]:
    return _attention_weights(list(module.parts), module.out, o["heads"])


def _joint_attention(module: Any, heads: int) -> list[Array]:
    """nn.MultiheadAttention keeps query, key and value in one matrix."""
    kernels = np.split(_array(module.in_proj_weight), 3)
    biases = np.split(_array(module.in_proj_bias), 3)
    arrays = [each for k, b in zip(kernels, biases, strict=True) for each in _heads(k.T, b, heads)]
    kernel, bias = _linear(module.out_proj)
    return [*arrays, kernel.reshape(heads, -1, kernel.shape[1]), bias]


def _coder(module: Any, heads: int) -> list[Array]:
    """One encoder or decoder layer, in the order the block of the same name makes them."""
    arrays = _joint_attention(module.self_attn, heads)
    norms = [module.norm1, module.norm2]
    if hasattr(module, "multihead_attn"):
        arrays += _joint_attention(module.multihead_attn, heads)
        norms.append(module.norm3)
    arrays += _linear(module.linear1) + _linear(module.linear2)
    return arrays + [each for norm in norms for each in _scaled({}, norm)]


def _coders(step: Step, module: Any, called: str = "") -> list[tuple[str, list[Array]]]:
    each = list(getattr(module, "layers", [module]))
    alone = len(each) == 1 and not called
    names = [step.name if alone else f"{step.name}{called}_{number}" for number in range(len(each))]
    return [(name, _coder(one, step.options["heads"])) for name, one in zip(names, each, strict=True)]


def _transformer(step: Step, module: Any) -> list[tuple[str, list[Array]]]:
    return [
        *_coders(step, module.encoder, "_encoder"),
        (f"{step.name}_encoder_norm", _scaled({}, module.encoder.norm)),
        *_coders(step, module.decoder, "_decoder"),
        (step.name, _scaled({}, module.decoder.norm)),
    ]


def _rnn(step: Step, module: Any) -> list[tuple[str, list[Array]]]:
    o = step.options
    found = []
    for number in range(o["layers"]):
        arrays: list[Array] = []
        for direction in ("", "_reverse") if o["both"] else ("",):
            arrays += _rnn_arrays(o, module, f"l{number}{direction}")
        found.append((step.name if o["layers"] == 1 else f"{step.name}_{number}", arrays))
    return found


def _rnn_arrays(o: dict[str, Any], module: Any, which: str) -> list[Array]:
    order = _GATES.get(o["kind"])

    def gates(name: str) -> Array:
        array = _array(getattr(module, f"{name}_{which}"))
        if order is None:
            return array
        parts = np.split(array, len(order))
        return np.concatenate([parts[place] for place in order])

    kernels = [gates("weight_ih").T, gates("weight_hh").T]
    if not o["bias"]:
        return kernels
    first, second = gates("bias_ih"), gates("bias_hh")
    return [*kernels, np.stack((first, second)) if o["kind"] == "GRU" else first + second]


_ARRAYS: dict[str, Callable[[dict[str, Any], Any], list[Array]]] = {
    "dense": lambda _, m: _linear(m),
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "separable_conv": _separable,
    "batch_norm": _batch_norm,
    "instance_norm": _scaled,
    "layer_norm": _scaled,
    "group_norm": _scaled,
    "embedding": lambda _, m: [_array(m.weight)],
    "attention": _attention,
    "graph_attention": _graph_attention,
    "graph_conv": lambda _, m: [_array(m.joined), *_linear(m.project)],
    "learned_positions": lambda _, m: [_array(m.table)],
    "squeeze": lambda _, m: _linear(m.squeeze) + _linear(m.excite),
    "inception": _inception,
    "capsules": lambda _, m: _linear(m.project),
    "conv_rnn": lambda _, m: [_moved(_array(m.gates.weight)), _array(m.gates.bias)],
}
_SEVERAL: dict[str, Callable[[Step, Any], list[tuple[str, list[Array]]]]] = {
    "rnn": _rnn,
    "encoder": _coders,
    "decoder": _coders,
    "transformer": _transformer,
}
