"""Backward calls: the loss, what it is made of, whether old gradients were cleared, and how long it took."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.budget import FIRST_IN_FULL
from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.core import Core, cannot_look, compiler, now_ns, traced_by_dynamo, tracing
from neuraldbg.capture.torch.device import item
from neuraldbg.capture.torch.hooks import PassWatch
from neuraldbg.capture.torch.loss import LossAnatomy, anatomy_of
from neuraldbg.capture.torch.stats import digest_of, measurable, plain
from neuraldbg.records import Call, Kind, Phase, SiteKind

_PLAIN = (torch.float32, torch.float64)
LOSS_LINES = 16  # lines of the script that call backward and get a series of their own
_LARGE = 2**26  # elements on a device above which the inputs of a loss are measured now and then only
_NOW_AND_THEN = 16
SPIKE = 3.0  # times the usual loss
_SMOOTH = 0.3
OVERDUE = 2  # backwards more than there were before any update: one is late
INSIDE = (
    "a backward runs inside of another (checkpointing with use_reentrant=True): gradients and backward times of the "
    "layers inside are not seen, and their time counts for the layer before; with use_reentrant=False they are"
)
_PROBED = 8  # parameters whose old gradient is looked at when a backward begins


class BackwardWatch:
    def __init__(self, core: Core, passes: PassWatch) -> None:
        self.core = core
        self.passes = passes
        self.since_update = 0
        self.ended_ns = 0  # when the last one did
        self.before_backward: list[Callable[[], None]] = []
        self._usual = 0.0  # loss
        self.stands_out = False  # it is no number, or far above the others: everybody is told
        self.closely = True  # everybody is told when one is done
        self.most = 0  # of them before an update, so far
        self.source = -1  # line of the last one
        self.smooth: set[int] = set()  # lines of whose losses nothing is kept for a search
        self.by_scaler = False  # torch's GradScaler made the last loss larger
        self.unscaled: IdentityTable[Tensor] = IdentityTable()  # scaled loss -> the loss itself
        self._loss_site: int | None = None
        self._on_device = False
        self._lines: dict[int, str] = {}  # source id -> name of its loss series
        self._known: dict[int, tuple[Any, ...]] = {}
        self._entered = core.guard.shield("backward")(self._enter)
        self._left = core.guard.shield("backward")(self._leave)
        self._noted_inside = core.guard.shield("backwards inside of another")(self._note_inside)
        self._inside_said = False

    # -- the patched functions --------------------------------------------------------------------------------------

    def wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            core = self.core
            if traced_by_dynamo() or compiler._is_compiling_flag or tracing() is not None or not core.on:
                return original(tensors, *args, **kwargs)
            if core.any_backward and core.recomputing():
                self._noted_inside()
                return original(tensors, *args, **kwargs)
            began = self._entered(tensors, now_ns())
            core.here.local.in_backward += 1
            core.any_backward += 1
            try:
                result = original(tensors, *args, **kwargs)
            finally:
                ended = now_ns()
                self._over()
            late = self.since_update >= self.most + OVERDUE  # as `overdue`, once this one is counted
            if late or self.closely or core.budget.full or core.clock.on or core.heard.backward_done:
                self._left(tensors, began, ended)
            else:
                self.ended_ns = ended
                core.backwards += 1
                self.since_update += 1
                core.own_ns += now_ns() - ended
            return result

        return backward

    def _note_inside(self) -> None:
        """A backward inside of a backward: checkpointing of the reentrant kind repeats a forward there, and carries the
        gradients on by itself."""
        if not self._inside_said:
            self._inside_said = True
            self.core.recorder.note("info", INSIDE)

    def overdue(self) -> bool:
        """Whether an update is."""
        return self.since_update > self.most + OVERDUE

    def wrap_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            core = self.core
            if cannot_look() or not core.on or core.recomputing():
                return original(outputs, *args, **kwargs)
            core.recorder.call(Call.AUTOGRAD_GRAD, source=core.recorder.source())
            core.here.local.in_backward += 1
            core.any_backward += 1
            try:
                return original(outputs, *args, **kwargs)
            finally:
                self._over()

        return grad

    def wrap_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """GradScaler.scale: the loss is what went in, not the scaled one that backward is called on."""

        @wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if self.core.on and not cannot_look() and isinstance(scaled, Tensor) and isinstance(outputs, Tensor):
                self.unscaled[scaled] = outputs.detach()
            return scaled

        return scale

    def _over(self) -> None:
        core = self.core
        core.here.local.in_backward -= 1
        core.any_backward -= 1
        layers = self.passes.layers
        if layers.quick.one is not None or layers.last_backward[0] is not None:
            layers.backward_ended()

    # -- a backward -------------------------------------------------------------------------------------------------

    @property
    def loss_site(self) -> int:
        if self._loss_site is None:
            self._loss_site = self.core.recorder.add_site("loss", SiteKind.LOSS)
        return self._loss_site

    def _enter(self, tensors: Any, start: int) -> tuple[int, int]:
        core = self.core
        if core.clock.on:
            core.clock.backward_began(start)
        for check in self.before_backward:
            check()
        if self.since_update == 0 and core.looking:
            self._look_for_old_gradients()
        source = self.source = core.recorder.source(3)
        loss = tensors if isinstance(tensors, Tensor) else _loss_of(tensors)
        site = self.loss_site if self._loss_site is None else self._loss_site
        core.recorder.call(Call.BACKWARD, site, source=source)
        heard = core.heard
        if loss is not None:
            self._record_loss(loss, source)
            if core.looking or (core.statistics and source not in self._known):
                self._record_anatomy(loss, source)
            value = abs(core.recorder.latest.get("loss", 1.0))
            self.stands_out = not value <= SPIKE * self._usual
            if self.stands_out or value == 0.0 or core.backwards >= core.look_at:
                heard, core.look_at = core.moments, math.inf  # who waits for another one says so
            if heard is core.moments and value < math.inf:
                self._usual += _SMOOTH * (value - self._usual)
        try:
            core.tell(heard.backward_begun, loss, source)
        finally:  # also after Ctrl-C
            core.graph = None
        if heard is not core.moments and (source not in self.smooth or loss is None or not loss.is_cpu):
            core.tell(core.moments.backward_elsewhere, loss, source)
        end = now_ns()
        core.own_ns += end - start
        return end, core.own_ns

    def _leave(self, tensors: Any, began: tuple[int, int] | None, end: int) -> None:
        core = self.core
        if core.clock.on:
            core.clock.backward_ended(end)
        self.ended_ns = end
        core.backwards += 1
        self.since_update += 1
        loss = tensors if isinstance(tensors, Tensor) else _loss_of(tensors)
        if began is not None and core.budget.full and not (loss is not None and loss.is_cuda):
            core.recorder.span(self.loss_site, Phase.BACKWARD, (began[0], end - began[0] - core.ours_since(began[1])))
        unusual = self.closely or self.overdue()
        core.tell((core.moments if unusual else core.heard).backward_done, loss)
        core.own_ns += now_ns() - end

    def _record_loss(self, loss: Tensor, source: int) -> None:
        recorder = self.core.recorder
        step = recorder.step
        name = self._lines.get(source)
        if name is None and len(self._lines) < LOSS_LINES:
            name = self._lines[source] = f"loss.{len(self._lines)}"
        self.by_scaler = False
        if len(self.unscaled):
            itself = self.unscaled.get(loss)
            self.by_scaler = itself is not None
            loss = loss if itself is None else itself
        if type(loss) is Tensor and loss.is_cpu and loss.numel() == 1 and loss.dtype in _PLAIN:
            value = item(loss)
            recorder.scalar("loss", value, step=step)
            if name is not None:
                recorder.scalar(name, value, step=step)
            return
        self._record_later(loss, name)

    def _record_later(self, loss: Tensor, name: str | None) -> None:
        recorder = self.core.recorder
        step = recorder.step
        if loss.is_cuda and not self._on_device:
            self._on_device = True
            recorder.fact("on_device", device=loss.device.type)
        if loss.is_complex():
            return

        def deliver(value: float) -> None:
            recorder.scalar("loss", value, step=step)
            if name is not None:
                recorder.scalar(name, value, step=step)

        value = loss if loss.numel() == 1 else loss.detach().float().mean()
        self.core.device.scalar(value, deliver)

    def _record_anatomy(self, loss: Tensor, source: int) -> None:
        anatomy = anatomy_of(loss, passes_seen=self.passes.count > 0)
        signature = (*anatomy.kinds, anatomy.in_model, anatomy.reduction)
        recorder = self.core.recorder
        if self._known.get(source) != signature:
            self._known[source] = signature
            recorder.fact(
                "loss",
                kinds=anatomy.kinds,
                anatomy=anatomy.text,
                source_id=source,
                series=self._lines.get(source),
                source=recorder.frames.line(5),
                in_model=anatomy.in_model,
                reduction=anatomy.reduction,
                terms=[[term.kind, term.fed_by, term.reduction] for term in anatomy.terms[:16]],
                passes=sorted(anatomy.passes)[:64],
            )
        if self.core.looking:
            self._loss_inputs(anatomy)

    def _loss_inputs(self, anatomy: LossAnatomy) -> None:
        """What went into the loss functions: predictions and targets."""
        recorder = self.core.recorder
        step = recorder.step
        for slot, term in enumerate(anatomy.terms[:4]):
            for kind, tensor in ((Kind.INPUT, term.inputs), (Kind.TARGET, term.target)):
                if tensor is None or (tensor.is_cuda and tensor.numel() > _LARGE and _is_late(step)):
                    continue
                where = (kind, Phase.FORWARD, slot, -1)
                digest = digest_of(tensor) if tensor.numel() <= 65_536 else 0

                def deliver(measured: Any, where: Any = where, digest: int = digest) -> None:
                    recorder.stats(self.loss_site, where, (*measured[:-1], digest), step=step)

                self.core.measure(tensor, self.loss_site, deliver)

    def _look_for_old_gradients(self) -> None:
        """After an update a backward should find no gradient, or zeros: the value is better evidence than counting
        calls."""
        core = self.core
        if core.backwards == 0:
            return
        left = [p.grad for _, p in core.tree.trainable() if p.grad is not None and measurable(p.grad)]
        probed = sorted(left, key=Tensor.numel)[:_PROBED]
        if not probed:
            return
        recorder, step = core.recorder, core.recorder.step
        share = torch.stack(
            [plain(gradient, widen=False).ne(0).any() for gradient in probed if gradient.device == probed[0].device]
        )

        def deliver(value: float) -> None:
            recorder.call(Call.GRAD_STALE, value=value, aux=float(len(share)), at_step=step)

        core.device.scalar(share.float().mean(), deliver)


def _is_late(step: int) -> bool:
    """Logits of a language model are the largest tensor of its step, and were measured as the model's output."""
    return step >= FIRST_IN_FULL and step % _NOW_AND_THEN != 0


def _loss_of(tensors: Any) -> Tensor | None:
    """Of several tensors that a backward starts from, the first."""
    if isinstance(tensors, Sequence) and tensors and isinstance(tensors[0], Tensor):
        return tensors[0]
    return None
