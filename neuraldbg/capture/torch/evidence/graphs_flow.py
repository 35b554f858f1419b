"""Whose gradients an update applies: cleared since the last one or not, filled by which backward lines, or empty.

By value and not by counting calls: zero_grad on another optimizer, `.grad = None` by hand and a decay of old gradients
all show as what they are. Nothing waits for a device: its numbers are judged in order when they arrive.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.kernels.host import measured_each
from neuraldbg.capture.torch.evidence.graphs_probes import Probes
from neuraldbg.capture.torch.stats import measurable, plain
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.capture.torch.ungraded import ungraded

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

FOLLOWED = 16  # optimizers
_WRITTEN_AT = (3, 4, 6, 12, 20)  # the optimizer may be gone at the end
_NEVER_STEPPED_AT = (10, 50, 250)
MOST_WAITING = 512  # moments whose numbers are on their way from a device
_HEAD = 64  # elements of a parameter by which it is seen to move
Norms = tuple[float, ...]


@dataclass(eq=False)
class Flow:
    """The gradients of one optimizer. `content` = (line, updates so far) of every backward that is in them now."""

    updates: int = 0  # of which we were told
    told: int = 0  # updates that the optimizer had had after the last of them
    untold: int = 0  # in between
    applied: int = 0  # of those we were told of, as far as numbers have arrived
    before: Norms | None = None  # when the backward under way began
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


@dataclass(eq=False)
class Reading:
    """The sizes of an optimizer's gradients at one moment; from a device they arrive later."""

    sizes: list[float | None]
    whole: bool = True  # False: some cannot be read

    @property
    def arrived(self) -> bool:
        return None not in self.sizes

    def norms(self) -> Norms | None:
        return tuple(size or 0.0 for size in self.sizes) if self.whole else None

    def take(self, at: int, row: Any) -> None:
        self.fill(at, row[5] if row[7] + row[8] == 0 else math.nan)

    def fill(self, at: int, size: float) -> None:
        self.sizes[at] = size if math.isfinite(size) else -1.0


Then = Callable[[Norms | None], None]
UNREAD = Reading([], whole=False)


class GradientFlow:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._updates = capture.updates
        self._flows: IdentityTable[Flow] = IdentityTable()
        self._waiting: deque[tuple[Reading, Then]] = deque()  # what happened, in order
        self._followed = 0
        self._probes = Probes()
        core = self.core
        core.take_part("backward_begun", "old gradients", self._backward_begun, rarely=True)
        core.take_part("backward_done", "new gradients", self._backward_done, rarely=True)
        core.take_part("update_begun", "gradients of an update", self._update_begun, rarely=True)
        core.take_part("update_done", "gradients after an update", self._update_done, rarely=True)
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

    # -- numbers that may still be on their way ------------------------------------------------------------------------

    def _when_read(self, reading: Reading, then: Then) -> None:
        """In the order of the moments, each as soon as its numbers are there: on the host that is now."""
        self._waiting.append((reading, then))
        if len(self._waiting) > MOST_WAITING:
            self._waiting.clear()
            self._forget()
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._waiting[0][0].arrived:
            reading, then = self._waiting.popleft()
            then(reading.norms())

    def _forget(self) -> None:
        for flow in self._flows.values():
            flow.content, flow.before = None, None

    @ungraded
    def _read(self, optimizer: Optimizer) -> Reading:
        """A number per looked-at gradient that changes when it does; 0 for None and zeros."""
        if not self.core.tree.alone():
            return UNREAD
        gradients = [parameter.grad for parameter in self._probes.of(optimizer)]
        if not gradients or any(gradient is not None and not has_values(gradient) for gradient in gradients):
            return UNREAD
        reading = Reading([0.0 if gradient is None else None for gradient in gradients])
        arrived = [(at, gradient) for at, gradient in enumerate(gradients) if gradient is not None]
        device, left = self.core.device, []
        for (at, gradient), row in zip(arrived, measured_each([gradient for _, gradient in arrived]), strict=True):
            if row is not None:
                reading.take(at, row)
            else:
                left.append((at, gradient))
        if device.stats_of_all([(gradient, partial(reading.take, at)) for at, gradient in left]):
            return reading
        for at, gradient in left:
            size = torch.linalg.vector_norm(plain(gradient, widen=False))
            if not device.scalar(size, partial(reading.fill, at)):
                return UNREAD
        return reading

    # -- backwards ---------------------------------------------------------------------------------------------------

    def _backward_begun(self, _: Any, source: int) -> None:
        self._source = source
        if not self.core.looking:
            self._when_read(UNREAD, lambda _: self._forget())
            return
        for optimizer, flow in self._all():
            self._when_read(self._read(optimizer), partial(_found_before, flow))

    def _backward_done(self, _: Any) -> None:
        if not self.core.looking:
            return
        for optimizer, flow in self._all():
            inside = self.core.here.local.in_step is optimizer
            if flow.watched is None and flow.updates == 0 and self.core.tree.alone():
                flow.watched = _first_values(optimizer)
            flow.inside += inside
            mine = weakref.ref(optimizer)
            self._when_read(self._read(optimizer), partial(self._reached, flow, mine, self._source))

    def _reached(self, flow: Flow, mine: weakref.ref[Optimizer], source: int, norms: Norms | None) -> None:
        if flow.before is None or norms is None:
            flow.content = None
            return
        if norms != flow.before:
            flow.reached += 1
            if flow.content is not None:
                flow.content.append((source, flow.applied))
                del flow.content[:-64]
            optimizer = mine()
            if optimizer is not None and flow.applied == 0 and flow.reached in _NEVER_STEPPED_AT:
                self._write(self._updates.known(optimizer).site, flow)  # it may be gone at the end
        flow.last = norms

    # -- updates -----------------------------------------------------------------------------------------------------

    def _update_begun(self, optimizer: Optimizer, _: Any) -> None:
        flow = self._flow(optimizer)
        if flow is None:
            return
        flow.inside = 0
        if self.core.looking:
            self._when_read(self._read(optimizer), partial(_judge, flow))
        else:
            self._when_read(UNREAD, partial(_judge, flow))

    def _update_done(self, optimizer: Optimizer, known: Any) -> None:
        flow = self._flows.get(optimizer)
        if flow is None:
            return
        flow.updates += 1
        if flow.updates > 1:
            flow.untold += max(known.updates - flow.told, 0)
        flow.told = known.updates + 1
        if not (self.core.looking or self._waiting):
            flow.applied += 1  # nothing was read, so nothing is known of what was applied, also by the others
            for each in self._flows.values():
                each.judged, each.content, each.last = None, None, ()
            return
        reading = self._read(optimizer) if self.core.looking else UNREAD
        made_inside, flow.inside = flow.inside > 0 and self.core.looking, 0
        done = partial(self._applied, flow, known.site, self.core.recorder.step, made_inside=made_inside)
        self._when_read(reading, done)

    def _applied(self, flow: Flow, site: int, step: int, norms: Norms | None, *, made_inside: bool) -> None:
        if made_inside:
            _judge(flow, norms)  # a closure made the gradients during the step
        if flow.judged is not None:
            kind, lines = flow.judged
            flow.kinds[kind] += 1
            new = kind not in flow.first
            flow.first.setdefault(kind, step)
            if len(flow.lines) < 32:
                flow.lines[kind, lines] += 1
            if (new and kind != "fresh") or sum(flow.kinds.values()) in _WRITTEN_AT:
                self._write(site, flow)
        flow.applied += 1
        flow.last = norms or ()
        if norms is None:
            flow.content = None

    def _write(self, site: int, flow: Flow) -> None:
        fact = {
            "optimizer": site,
            "updates": flow.applied + flow.untold,
            "reached": flow.reached,
            "kinds": dict(flow.kinds),
            "first": dict(flow.first),
            "lines": [[kind, list(lines), count] for (kind, lines), count in flow.lines.most_common(16)],
        }
        recorder = self.core.recorder
        moved = _has_moved(flow.watched)
        if moved is None or not self.core.device.scalar(
            moved, lambda value: recorder.fact("gradient_flow", moved=bool(value), **fact)
        ):
            recorder.fact("gradient_flow", moved=None, **fact)

    def _ending(self) -> None:
        self.core.device.finish_sync()
        self._go_on()
        for optimizer, flow in self._flows.items():
            known = self._updates.optimizers.get(optimizer)
            if known is not None:
                flow.untold += max(known.updates - flow.told, 0) if flow.updates else 0
                self._write(known.site, flow)


def _found_before(flow: Flow, norms: Norms | None) -> None:
    flow.before = norms
    if norms is None:
        return
    if not any(norms):
        flow.content, flow.altered = [], False
    elif flow.content and norms != flow.last and any(made < flow.applied for _, made in flow.content):
        flow.altered = True
    flow.last = norms


def _judge(flow: Flow, norms: Norms | None) -> None:
    flow.judged = None if norms is None else _what_is_applied(flow, norms)


def _what_is_applied(flow: Flow, norms: Norms) -> tuple[str, tuple[int, ...]] | None:
    if not any(norms):
        return "empty", ()
    if not flow.content:
        return None
    lines = tuple(sorted({line for line, made in flow.content if made == flow.applied}))
    if all(made == flow.applied for _, made in flow.content):
        return "fresh", lines
    if flow.altered:
        return "altered", lines
    return ("stale" if lines else "repeated"), lines


def _first_values(optimizer: Optimizer) -> tuple[weakref.ref[Tensor], Tensor] | None:
    for parameter in owned(optimizer):
        if parameter.grad is not None and _readable(parameter):
            return weakref.ref(parameter), parameter.detach().reshape(-1)[:_HEAD].clone()
    return None


@ungraded
def _has_moved(watched: tuple[weakref.ref[Tensor], Tensor] | None) -> Tensor | None:
    """Whether it did, as a tensor that may still be computed; None where nobody can tell."""
    parameter = None if watched is None else watched[0]()
    if watched is None or parameter is None or not _readable(parameter) or parameter.device != watched[1].device:
        return None
    return (parameter.detach().reshape(-1)[:_HEAD] != watched[1]).any()


def has_values(gradient: Tensor) -> bool:
    """Also sparse ones: of those the values that are there count, summed up or not."""
    return measurable(gradient) and (gradient.is_floating_point() or gradient.is_complex())


def _readable(parameter: Tensor) -> bool:
    return has_values(parameter) and parameter.layout == torch.strided
