"""Floating-point operations of one forward call, from shapes alone. Unknown module types have none (None), never a
guess."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def flops_of(module: nn.Module, outputs: list[Tensor]) -> int | None:
    """Multiply and add count as two. None for modules whose work cannot be read off their shapes."""
    for kinds, formula in _FORMULAS:
        if isinstance(module, kinds):
            return formula(module, outputs[0])
    return None


def _linear(module: Any, out: Tensor) -> int:
    bias = out.numel() if module._parameters.get("bias") is not None else 0
    return 2 * out.numel() * int(module.in_features) + bias


def _conv(module: Any, out: Tensor) -> int:
    per_output = module.in_channels // module.groups * math.prod(module.kernel_size)
    bias = out.numel() if module._parameters.get("bias") is not None else 0
    return int(2 * out.numel() * per_output + bias)


def _conv_transpose(module: Any, out: Tensor) -> int:
    spatial_in = out.numel() // max(module.out_channels, 1) // max(math.prod(module.stride), 1)
    return int(
        2 * spatial_in * module.in_channels * module.out_channels // module.groups * math.prod(module.kernel_size)
    )


def _recurrent(module: Any, out: Tensor) -> int:
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    directions = 2 if module.bidirectional else 1
    tokens = out.numel() // max(out.shape[-1], 1)
    hidden = module.hidden_size
    first = module.input_size + hidden
    later = (hidden * directions + hidden) * (module.num_layers - 1)
    return int(2 * tokens * directions * gates * hidden * (first + later))


def _per_element(cost: int) -> Callable[[Any, Tensor], int]:
    return lambda _, out: cost * out.numel()


def _pooling(module: Any, out: Tensor) -> int:
    size = module.kernel_size
    dimensions = max(out.dim() - 2, 1)
    return out.numel() * (math.prod(size) if isinstance(size, tuple) else int(size) ** dimensions)


_FORMULAS: list[tuple[tuple[type, ...], Callable[[Any, Tensor], int]]] = [
    ((nn.Linear,), _linear),
    ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _conv_transpose),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), _conv),
    ((nn.RNNBase,), _recurrent),
    ((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), _pooling),
    (
        (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm),
        _per_element(5),
    ),
    ((nn.Softmax, nn.LogSoftmax, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus), _per_element(4)),
    ((nn.ReLU, nn.LeakyReLU, nn.ELU, nn.PReLU, nn.Dropout, nn.Dropout2d, nn.Hardtanh, nn.ReLU6), _per_element(1)),
    ((nn.Embedding, nn.Flatten, nn.Identity, nn.Unflatten), _per_element(0)),
]
