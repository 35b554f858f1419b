"""Floating-point operations of one forward call, from shapes alone. Unknown module types have none (None), never a
guess."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def flops_of(module: nn.Module, entered: Tensor | None, left: Tensor) -> int | None:
    """Multiply and add count as two, biases not at all (as torch's own counter has it). None for modules whose work
    cannot be read off their shapes."""
    if isinstance(module, _TRANSPOSED):
        return None if entered is None else _conv_transpose(module, entered)
    for kinds, formula in _FORMULAS:
        if isinstance(module, kinds):
            return formula(module, left)
    return None


def _linear(module: Any, out: Tensor) -> int:
    return 2 * out.numel() * int(module.in_features)


def _conv(module: Any, out: Tensor) -> int:
    return int(2 * out.numel() * (module.in_channels // module.groups) * math.prod(module.kernel_size))


def _conv_transpose(module: Any, entered: Tensor) -> int:
    return int(2 * entered.numel() * (module.out_channels // module.groups) * math.prod(module.kernel_size))


def _recurrent(module: Any, out: Tensor) -> int | None:
    if getattr(module, "proj_size", 0):
        return None
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    directions = 2 if module.bidirectional else 1
    tokens = out.numel() // max(out.shape[-1], 1)
    hidden = module.hidden_size
    first = module.input_size + hidden
    later = (hidden * directions + hidden) * (module.num_layers - 1)
    return int(2 * tokens * directions * gates * hidden * (first + later))


def _per_element(cost: int) -> Callable[[Any, Tensor], int | None]:
    return lambda _, out: cost * out.numel()


def _pooling(module: Any, out: Tensor) -> int:
    size = module.kernel_size
    dimensions = max(out.dim() - 2, 1)
    return out.numel() * (math.prod(size) if isinstance(size, tuple) else int(size) ** dimensions)


_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_FORMULAS: list[tuple[tuple[type, ...], Callable[[Any, Tensor], int | None]]] = [
    ((nn.Linear,), _linear),
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
