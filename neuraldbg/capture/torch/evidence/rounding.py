"""Updates of half-precision weights: rounded away, or not finite although the gradient was."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.origin.values import not_finite
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.capture.torch.ungraded import ungraded

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

HALF = (torch.float16, torch.bfloat16)
KEPT_BYTES = 64 * 2**20
MOST_FACTS = 60
_COMPENSATED = ("comp", "kahan", "shift", "residual", "master", "fp32", "exp_avg_lo")

_Kept = list[tuple[int, weakref.ref[Tensor], Tensor, Tensor]]  # site, parameter, value before, where a gradient is


class Rounding:
    """On full steps. An optimizer that keeps what was rounded away (Kahan sums, master weights) is left alone."""

    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._kept: _Kept = []
        self._facts = MOST_FACTS
        self._broken = False
        self.core.take_part("update_begun", "rounded updates", self._begun, rarely=True)
        self.core.take_part("update_done", "rounded updates", self._done, rarely=True)

    def _begun(self, optimizer: Any, _: Any) -> None:
        self._kept = []
        if self.core.looking and self._facts and _moves(optimizer) and not _compensates(optimizer):
            self._keep(optimizer)

    @ungraded
    def _keep(self, optimizer: Any) -> None:
        room = KEPT_BYTES
        for parameter in owned(optimizer):
            gradient = parameter.grad
            if parameter.dtype not in HALF or gradient is None or parameter.device.type != "cpu":
                continue
            room -= parameter.numel() * parameter.element_size()
            site = self.core.tree.parameter_site.get(parameter)
            if room < 0 or site is None or gradient.layout != torch.strided or parameter.dim() < 2:
                continue
            self._kept.append((site, weakref.ref(parameter), parameter.detach().clone(), gradient.detach() != 0))

    def _done(self, optimizer: Any, _: Any) -> None:
        kept, self._kept = self._kept, []
        if kept:
            self._compare(optimizer, kept)

    @ungraded
    def _compare(self, optimizer: Any, kept: _Kept) -> None:
        moved = lost = 0
        worst: tuple[float, int] | None = None
        for site, ref, before, wanted in kept:
            parameter = ref()
            if parameter is None or parameter.shape != before.shape:
                continue
            if not self._broken and not_finite(parameter) and not not_finite(before):
                self._not_finite(optimizer, site, parameter)
            count = int(wanted.sum())
            same = int((wanted & (parameter.detach() == before)).sum())
            moved, lost = moved + count, lost + same
            if count and (worst is None or same / count > worst[0]):
                worst = (same / count, site)
        if moved and worst is not None:
            self._facts -= 1
            dtype = str(kept[0][2].dtype).removeprefix("torch.")
            self.core.recorder.fact(
                "rounded_update", wanted=moved, unchanged=lost, worst_share=worst[0], worst_site=worst[1], dtype=dtype
            )

    def _not_finite(self, optimizer: Any, site: int, parameter: Tensor) -> None:
        """The optimizer's own arithmetic overflowed: Adam's eps of 1e-8 is 0 in float16."""
        if parameter.grad is not None and not_finite(parameter.grad):
            return
        self._broken = True
        eps = optimizer.param_groups[0].get("eps")
        self.core.recorder.fact(
            "update_not_finite",
            parameter_site=site,
            dtype=str(parameter.dtype).removeprefix("torch."),
            optimizer=type(optimizer).__name__,
            eps=float(eps) if isinstance(eps, int | float) else None,
            source=self.core.recorder.frames.line(),
        )


def _moves(optimizer: Any) -> bool:
    rates = [group.get("lr") for group in optimizer.param_groups]
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def _compensates(optimizer: Any) -> bool:
    """Whether the optimizer's state holds a correction term or copies in float32."""
    for state in list(optimizer.state.values())[:4]:
        if isinstance(state, dict) and any(word in str(key).lower() for key in state for word in _COMPENSATED):
            return True
    return False
