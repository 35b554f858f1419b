"""Calls that are known to change gradients between backward and step: which ones, and by what amounts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from neuraldbg.capture.torch.sweep import owned


def listed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = args[0] if args else kwargs.get("parameters")
    if isinstance(given, Tensor) or not isinstance(given, Iterable):
        return args, kwargs
    return ((list(given), *args[1:]), kwargs) if args else (args, {**kwargs, "parameters": list(given)})


def clipped(parameters: Any, *args: Any, **kwargs: Any) -> tuple[list[Any], tuple[Any, ...]]:
    held = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return held, (args, kwargs)


def zeroed(owner: Any, set_to_none: bool = True) -> tuple[list[Any], tuple[Any, ...]]:
    held = owned(owner) if isinstance(owner, Optimizer) else owner.parameters()
    return list(held), (set_to_none,)


def unscaled(
    _: Any, optimizer: Optimizer, inv_scale: Tensor, *__: Any, **___: Any
) -> tuple[list[Any], tuple[Any, ...]]:
    return owned(optimizer), (inv_scale.clone(),)
