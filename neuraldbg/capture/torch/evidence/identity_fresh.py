"""Whether a parameter still has the values that torch drew when its layer was made."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from neuraldbg.capture.torch.stats import measurable

_FEWEST = 16  # elements below which a range says nothing


@torch.no_grad()
def freshness(module: nn.Module, parameter: Tensor) -> bool:
    """True only where the values lie as the layer's own reset_parameters() leaves them: values that were loaded, copied
    or trained do not fill exactly that range. Scales and shifts of norm layers (ones, zeros) say nothing: False."""
    if parameter.is_cuda or not measurable(parameter) or parameter.layout != torch.strided:
        return False
    if not parameter.is_floating_point() or parameter._version == 0:
        return False  # never written to: the values were given to the constructor
    values = parameter.detach().float()
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        rows = values if getattr(module, "padding_idx", None) is None else values[values.abs().sum(-1) > 0]
        return rows.numel() >= _FEWEST and abs(float(rows.std()) - 1) < 0.1 and abs(float(rows.mean())) < 0.15
    bound = _bound(module)
    return bound is not None and _fills(values, bound)


def _bound(module: nn.Module) -> float | None:
    """The half-width of the uniform distribution that torch draws weights and biases of this layer from."""
    if isinstance(module, nn.Linear):
        return 1 / math.sqrt(max(module.in_features, 1))
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return 1 / math.sqrt(max(module.hidden_size, 1))
    if isinstance(module, _ConvNd):
        width = module.out_channels if isinstance(module, _ConvTransposeNd) else module.in_channels
        return 1 / math.sqrt(max(width // module.groups * math.prod(module.kernel_size), 1))
    return None


def _fills(values: Tensor, bound: float) -> bool:
    largest = float(values.abs().max())
    if values.numel() < _FEWEST:
        return largest <= bound * 1.0001
    return 0.8 * bound <= largest <= bound * 1.0001 and abs(float(values.std()) * math.sqrt(3) / bound - 1) < 0.25
