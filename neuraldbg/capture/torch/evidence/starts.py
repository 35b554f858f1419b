"""How weights start: constant, with equal rows, far too large or too small for their width."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from neuraldbg.capture.torch.members import named_modules_of, own_named_parameters
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.stats import composed, measure

MOST_ELEMENTS = 2**22
MOST_FACTS = 512
LATER = 10  # updates after which units that started equal are looked at again
COPIED = 1e-3  # of the way a unit has come: units closer than that to each other have come it together
ROUNDING = 2e-6  # kernels add up in different orders
FEW = 8


class Starts:
    """A fact `start` for each parameter of a model, before its first training pass."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self._seen: set[int] = set()
        self._written = 0
        self._first_look = True  # is yet to come
        self._equal: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}  # units that started as copies of this one
        self.core.take_part("pass_begun", "first weights", self._begun, rarely=True)
        self.core.take_part("update_done", "first weights", self._updated, rarely=True)
        self.core.take_part("ending", "first weights", self._look_again)

    def _begun(self, one: Pass, root: Any, *_: Any) -> None:
        if one.model.site in self._seen or not one.grad or not isinstance(root, nn.Module):
            return
        self._seen.add(one.model.site)
        site_of = self.core.tree.parameter_site.get
        with torch.no_grad():
            for name, module in named_modules_of(root):
                for own, parameter in own_named_parameters(module) if module._parameters else ():
                    site = site_of(parameter)
                    if site is not None and _readable(parameter) and self._written < MOST_FACTS:
                        self._written += 1
                        self._write(site, own, name, module, parameter)

    def _updated(self, *_: Any) -> None:
        if self._equal and self._first_look and self.core.recorder.step >= LATER:
            self._first_look = False
            self._look_again()

    def _look_again(self) -> None:
        """Whether those units have become different since."""
        for site, (ref, start) in self._equal.items():
            parameter = ref()
            if parameter is None or self.core.recorder.step < LATER:
                continue
            with torch.no_grad():
                rows = parameter.detach().float().flatten(1)
                if rows.shape[1:] == start.shape:
                    moved = float((rows[0] - start).abs().max())
                    self.core.recorder.fact(
                        "rows_later", site=site, equal=_equal_rows(rows), moved=moved, different=_different(rows, moved)
                    )

    def _write(self, site: int, own: str, path: str, module: nn.Module, parameter: Tensor) -> None:
        values = parameter.detach()
        values = values if values.dtype is torch.float32 else values.float()
        shape = list(values.shape)
        mean, std, low, high, norm = _described(values)
        equal = _equal_rows(values)
        if equal and parameter.requires_grad:
            self._equal[site] = weakref.ref(parameter), values[0].flatten().clone()
        self.core.recorder.fact(
            "start",
            site=site,
            path=path,
            name=own,
            layer=type(module).__name__,
            shape=shape,
            trainable=parameter.requires_grad,
            mean=mean,
            std=std,
            low=low,
            high=high,
            gain=None if len(shape) < 2 else norm / math.sqrt(shape[0]),  # of torch's Linear 0.58, Xavier's 1
            equal_rows=equal,
        )


def _described(values: Tensor) -> tuple[float, ...]:
    """Mean, spread, smallest, largest, norm: of all values. One that is no number shows in them."""
    _, mean, std, low, high, norm, _, nans, infs, *_ = measure(values) or composed(values)
    if nans or infs:
        told = (values.mean(), values.std(unbiased=False), values.min(), values.max(), torch.linalg.vector_norm(values))
        return tuple(map(float, told))
    return mean, std, low, high, norm


def _readable(parameter: Any) -> bool:
    if is_lazy(parameter) or parameter.is_meta or not parameter.is_cpu:
        return False
    plain = parameter.layout is torch.strided and parameter.is_floating_point()
    return bool(plain and 0 < parameter.numel() <= MOST_ELEMENTS)


def _equal_rows(values: Tensor) -> bool | None:
    """Whether every unit starts as a copy of the first; None where there is only one."""
    if values.dim() < 2 or values.shape[0] < 2:
        return None
    return torch.equal(values[0], values[1]) and bool((values == values[:1]).all())


def _different(rows: Tensor, moved: float) -> int | None:
    """How many different units there are, up to rounding: one for each gate of an LSTM that started constant. None when
    there are more than a few."""
    slack = COPIED * moved + ROUNDING * float(rows.abs().max())
    left, found = rows, 0
    while len(left) and found < FEW:
        left = left[(left - left[0]).abs().amax(1) > slack]
        found += 1
    return found if not len(left) else None
