"""Our own tensor work, which no gradient is wanted of."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
_graded, _grade = torch.is_grad_enabled, torch._C._set_grad_enabled


def ungraded(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.no_grad()` around a function that is called at every step, in a third of the calls."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _graded():
            return function(*args, **kwargs)
        _grade(False)
        try:
            return function(*args, **kwargs)
        finally:
            _grade(True)

    return call
