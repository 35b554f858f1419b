"""Whose gradients an update applies: cleared since the last one or not, filled by which backward lines, or empty.

By value and not by counting calls: zero_grad on another optimizer, `.grad = None` by hand and a decay of old gradients
all show as what they are. Gradients on a device are not read: that would wait for it.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.stats import measurable
from neuraldbg.capture.torch.sweep import owned

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

FOLLOWED = 16  # optimizers
_PROBED = 4  # parameters of each whose gradients are looked at
_LARGEST = 2**20  # elements of a gradient that is
_WRITTEN_AT = (3, 6, 12, 20)
_NEVER_STEPPED_AT = (10, 50, 250)
_HEAD = 64  # elements of a parameter by which it is seen to move
Norms = tuple[float, ...]


@dataclass(eq=False)
class Flow:
    """The gradients of one optimizer. `content` = (line, updates so far) of every backward that is in them now."""

    updates: int = 0
    content: list[tuple[int, int]] | None = field(default_factory=list)  # None: not known
    last: Norms = ()
    altered: bool = False  # old gradients were scaled or changed by hand: deliberate
    kinds: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)
    lines: Counter[tuple[str, tuple[int, ...]]] = field(default_factory=Counter)
    reached: int = 0  # backwards that changed its gradients
    judged: tuple[str, tuple[int, ...]] | None = None
    inside: int = 0  # backwards during its own step (a closure)
    watched: tuple[weakref.ref[Tensor], Tensor] | None = None  # a parameter and its first values


class GradientFlow:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._updates = capture.updates
        self._flows: IdentityTable[Flow] = IdentityTable()
        self._before: dict[int, Norms] = {}
        self._followed = 0
        core = self.core
        core.take_part("backward_begun", "old gradients", self._backward_begun)
        core.take_part("backward_done", "new gradients", self._backward_done)
        core.take_part("update_begun", "gradients of an update", self._update_begun)
        core.take_part("update_done", "gradients after an update", self._update_done)
        core.take_part("ending", "gradients at the end", self._ending)
        self._source = -1

    def _flow(self, optimizer: Optimizer) -> Flow | None:
        flow = self._flows.get(optimizer)
        if flow is None and self._followed < FOLLOWED:
            self._followed += 1
            flow = self._flows[optimizer] = Flow()
        return flow

    def _all(self) -> list[tuple[Optimizer, Flow]]:
        found = []
        for table in (self._updates.optimizers, self._updates.unnamed):
            for optimizer, _ in table.items():
                flow = self._flow(optimizer)
                if flow is not None:
                    found.append((optimizer, flow))
        return found

    # -- backwards ---------------------------------------------------------------------------------------------------

    def _backward_begun(self, _: Any, source: int) -> None:
        self._source = source
        self._before.clear()
        if not self.core.sampling:
            for flow in self._flows.values():
                flow.content = None
            return
        for optimizer, flow in self._all():
            norms = _norms(optimizer)
            if norms is None:
                continue
            self._before[id(flow)] = norms
            if not any(norms):
                flow.content, flow.altered = [], False
            elif flow.content and norms != flow.last and any(made < flow.updates for _, made in flow.content):
                flow.altered = True
            flow.last = norms

    def _backward_done(self, _: Any) -> None:
        if not self.core.sampling:
            return
        for optimizer, flow in self._all():
            before = self._before.get(id(flow))
            norms = _norms(optimizer)
            if before is None or norms is None:
                flow.content = None
                continue
            if norms != before:
                flow.reached += 1
                if flow.watched is None and flow.updates == 0:
                    flow.watched = _first_values(optimizer)
                if flow.content is not None:
                    flow.content.append((self._source, flow.updates))
                    del flow.content[:-64]
                flow.inside += self.core.local.in_step is optimizer
                if flow.updates == 0 and flow.reached in _NEVER_STEPPED_AT:  # it may be gone at the end
                    self._write(self._updates.known(optimizer).site, flow)
            flow.last = norms

    # -- updates -----------------------------------------------------------------------------------------------------

    def _update_begun(self, optimizer: Optimizer, _: Any) -> None:
        flow = self._flow(optimizer)
        if flow is None:
            return
        flow.inside = 0
        flow.judged = self._judge(optimizer, flow) if self.core.sampling else None

    def _judge(self, optimizer: Optimizer, flow: Flow) -> tuple[str, tuple[int, ...]] | None:
        norms = _norms(optimizer)
        if norms is None:
            return None
        if not any(norms):
            return "empty", ()
        if not flow.content:
            return None
        lines = tuple(sorted({line for line, made in flow.content if made == flow.updates}))
        if all(made == flow.updates for _, made in flow.content):
            return "fresh", lines
        if flow.altered:
            return "altered", lines
        return ("stale" if lines else "repeated"), lines

    def _update_done(self, optimizer: Optimizer, known: Any) -> None:
        flow = self._flows.get(optimizer)
        if flow is None:
            return
        if flow.inside and self.core.sampling:
            flow.judged = self._judge(optimizer, flow)  # the closure made the gradients during the step
        if flow.judged is not None:
            kind, lines = flow.judged
            flow.kinds[kind] += 1
            new = kind not in flow.first
            flow.first.setdefault(kind, self.core.recorder.step)
            if len(flow.lines) < 32:
                flow.lines[kind, lines] += 1
            if (new and kind != "fresh") or sum(flow.kinds.values()) in _WRITTEN_AT:
                self._write(known.site, flow)
        flow.updates += 1
        if self.core.sampling:
            flow.last = _norms(optimizer) or ()
        else:
            flow.content = None

    def _write(self, site: int, flow: Flow) -> None:
        self.core.recorder.fact(
            "gradient_flow",
            optimizer=site,
            updates=flow.updates,
            reached=flow.reached,
            moved=_has_moved(flow.watched),
            kinds=dict(flow.kinds),
            first=flow.first,
            lines=[[kind, list(lines), count] for (kind, lines), count in flow.lines.most_common(16)],
        )

    def _ending(self) -> None:
        for optimizer, flow in self._flows.items():
            known = self._updates.optimizers.get(optimizer)
            if known is not None:
                self._write(known.site, flow)


@torch.no_grad()
def _norms(optimizer: Optimizer) -> Norms | None:
    """A number per looked-at gradient that changes when it does; 0 for None and zeros. None where none can be read."""
    gradients: list[Tensor | None] = []
    trainable = [p for p in owned(optimizer) if p.requires_grad and p.numel() <= _LARGEST]
    for parameter in _spread(trainable):
        gradients.append(parameter.grad)
    if not gradients or any(gradient is not None and not _readable(gradient) for gradient in gradients):
        return None
    return tuple(0.0 if gradient is None else _size(gradient) for gradient in gradients)


def _first_values(optimizer: Optimizer) -> tuple[weakref.ref[Tensor], Tensor] | None:
    for parameter in owned(optimizer):
        if parameter.grad is not None and _readable(parameter):
            return weakref.ref(parameter), parameter.detach().reshape(-1)[:_HEAD].clone()
    return None


def _has_moved(watched: tuple[weakref.ref[Tensor], Tensor] | None) -> bool | None:
    """None where nobody can tell."""
    parameter = None if watched is None else watched[0]()
    if watched is None or parameter is None or not _readable(parameter):
        return None
    return not torch.equal(parameter.detach().reshape(-1)[:_HEAD], watched[1])


def _size(gradient: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(gradient.detach()))
    return norm if math.isfinite(norm) else -1.0


def _readable(gradient: Tensor) -> bool:
    plain = not gradient.is_cuda and measurable(gradient) and gradient.layout == torch.strided
    return plain and (gradient.is_floating_point() or gradient.is_complex())


def _spread(parameters: list[Tensor]) -> list[Tensor]:
    """A few from the first to the last."""
    if len(parameters) <= _PROBED:
        return parameters
    return [parameters[round(k * (len(parameters) - 1) / (_PROBED - 1))] for k in range(_PROBED)]
