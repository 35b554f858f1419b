"""A cheap look at the loss and the gradients before each update; at the first NaN or Inf, the search for its origin."""

from __future__ import annotations

import math
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.kernels import host
from neuraldbg.capture.kernels.host import all_finite
from neuraldbg.capture.torch.core import now_ns
from neuraldbg.capture.torch.origin.answer import Answer, from_chain
from neuraldbg.capture.torch.origin.batchfile import save_batch
from neuraldbg.capture.torch.origin.graph import Path, factor_of, hold, steep_places
from neuraldbg.capture.torch.origin.lines import FIRST_UPDATES, LossLines
from neuraldbg.capture.torch.origin.localiser import Localiser
from neuraldbg.capture.torch.origin.search import Held, Search
from neuraldbg.capture.torch.origin.values import not_finite
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.stats import measurable, plain
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.capture.torch.ungraded import ungraded
from neuraldbg.errors import StoppedOnNaN

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

SEARCHES = 2  # the first, and one more when that one did not find the operation
NEAR = 4  # parameters among which a small one is looked for when the first is large
HANDY = 2**13  # elements
GROWN = 100.0  # weights that have grown so much since the start diverge: whatever overflows then is a consequence
LOOKED_AT = 64  # of those whose gradients are looked at
ARMED_UPDATES = 50  # after which an armed search gives up


class OriginWatch:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = core = capture.core
        self.capture = capture
        self.lines = LossLines(core)
        self.search = Search(core, capture.passes, self.lines)
        self.left = SEARCHES
        self.stop = capture.options.stop_on_nan
        self._places: dict[int, list[tuple[str, Path]]] = {}  # line of a backward -> steep places of its loss
        self._scaled: dict[int, bool] = {}  # the same lines: whether the script multiplies its loss
        self._held: Held = []
        self._factor: float | None = None
        self._loss_bad_at = -1
        self._skips = False
        self._graph_begun = False  # a pass with a graph since the last backward
        self._probes: IdentityTable[list[weakref.ref[Tensor]]] = IdentityTable()
        self._start: IdentityTable[float] = IdentityTable()  # parameter -> norm before its first update
        self._arm_at = capture.options.arm_step
        self._mode: Localiser | None = None
        for moment, notice in (
            ("batch", self._batch),
            ("pass_begun", self._pass_begun),
            ("pass_ended", self._pass_ended),
            ("backward_begun", self._backward_begun),
            ("backward_elsewhere", self._backward_begun),
            ("backward_done", self._backward_done),
            ("update_begun", self._update_begun),
            ("update_done", self._update_done),
            ("ending", self._ending),
        ):
            early = moment in ("pass_begun", "pass_ended") and self._arm_at is None  # lines are learnt at first
            rarely = moment in ("backward_begun", "backward_done") or (moment == "update_done" and self._arm_at is None)
            core.take_part(moment, "the origin of NaN", notice, early=early, rarely=rarely)

    # -- moments ------------------------------------------------------------------------------------------------------

    def _batch(self, _: int, batch: Any) -> None:
        if self.left:
            self.search.batch_seen(batch)

    def _pass_begun(self, *_: Any) -> None:
        if self.lines.is_open:
            self.lines.close()
        if self._arm_at == 0:
            self._arm()

    def _pass_ended(self, one: Pass, *_: Any) -> None:
        self._graph_begun = self._graph_begun or one.grad
        if self._graph_begun and self.core.recorder.step < FIRST_UPDATES:
            self.lines.open()

    def _backward_begun(self, loss: Tensor | None, source: int) -> None:
        if self.lines.is_open:
            self.lines.close()
        self._graph_begun = False
        if self._held and self.capture.backward.since_update == 0:
            self._held.clear()  # of an update that a GradScaler left out
        if loss is None or (not self.left and not self.stop):
            return
        early = self.core.recorder.step < FIRST_UPDATES
        if early:
            self.lines.learn(loss, source)
        if early or source not in self._places:
            self._places[source] = steep_places(loss)
            self._factor = factor_of(loss)
            self._scaled[source] = self._factor is not None
        else:
            self._factor = factor_of(loss) if self._scaled[source] else None
        places = self._places[source]
        smooth = self.capture.backward.smooth
        if places or self._factor is not None:
            smooth.clear()  # what is known of this backward is not to be said of the next one
        if places:
            self._held += hold(loss, places)
        elif not early and not self._scaled[source] and self.capture.passes.count:
            smooth.add(source)
        if (loss.is_cuda or not math.isfinite(self.core.recorder.latest.get("loss", 0.0))) and self._loss_is_bad(loss):
            self._loss_bad_at = self.core.recorder.step
            self._find(lambda: self._behind_loss(loss, source), "the loss is not finite", loss)

    def _loss_is_bad(self, loss: Tensor) -> bool:
        if loss.is_cuda:
            return self._waits and not_finite(loss)
        return loss.device.type == "cpu" and not loss.is_complex() and loss.numel() > 0

    @property
    def _waits(self) -> bool:
        """Whether the user asked for something that needs the device's answer at once."""
        return self.stop or self._mode is not None

    def _backward_done(self, _: Tensor | None) -> None:
        updates, backward = self.capture.updates, self.capture.backward
        unclaimed = not len(updates.optimizers) and not len(updates.unnamed)
        overdue = not unclaimed and backward.overdue()
        if self.left and (unclaimed or (overdue and backward.since_update <= backward.most + LOOKED_AT)):
            first = next((p for _, p in self.core.tree.trainable() if p.grad is not None), None)
            if first is not None and not first.is_cuda and not_finite(first.grad):
                self._updates_skipped() if overdue else self._gradients_bad()
        if unclaimed or overdue:
            self._held.clear()

    def _update_begun(self, optimizer: Any, _: Any) -> None:
        if (self.left or self.stop) and getattr(optimizer, "found_inf", None) is None:
            probes = self._probes.get(optimizer) or self._choose(optimizer)
            fine = all_finite is not None and all_finite(probes)  # 4 us where nothing is wrong
            if not fine and self._any_bad(optimizer, probes):
                self._gradients_bad()
            elif self.core.budget.watching:
                self._norm_says(optimizer)
            if not math.isfinite(self.core.recorder.latest.get("loss", 0.0)):
                self._late()
        if self._held:
            self._held.clear()

    def _update_done(self, *_: Any) -> None:
        if self._mode is not None:
            self._mode.forget()
            if self.core.recorder.step > (self._arm_at or 0) + ARMED_UPDATES:
                self._disarm()
        elif self._arm_at is not None and self.core.recorder.step + 1 == self._arm_at:
            self._arm()
        if not self.capture.passes.count:
            self.lines.open()

    def _ending(self) -> None:
        self.lines.close()
        self._disarm()
        self._held.clear()

    # -- a cheap look -------------------------------------------------------------------------------------------------

    def _any_bad(self, optimizer: Any, probes: list[weakref.ref[Tensor]]) -> bool:
        for ref in probes:
            parameter = ref()
            gradient = None if parameter is None else parameter.grad
            if gradient is None:
                self._probes.pop(optimizer)
            elif (not gradient.is_cuda or self._waits) and _sum_is_bad(gradient):
                return True
        return False

    def _choose(self, optimizer: Any) -> list[weakref.ref[Tensor]]:
        """The first and the last parameter: a NaN flows back to everything before it, and models are written down
        either way round. Large ones (embeddings) give way to a small neighbour."""
        self._measure_start(optimizer)
        all_of_it = [p for p in owned(optimizer) if p.grad is not None and measurable(p.grad)]
        chosen = [_handy(end) for end in (all_of_it[:NEAR], all_of_it[: -NEAR - 1 : -1]) if end]
        probes = self._probes[optimizer] = [weakref.ref(p) for p in {id(p): p for p in chosen}.values()]
        return probes

    @ungraded
    def _measure_start(self, optimizer: Any) -> None:
        """Once per optimizer: how large its weights are before the first update."""
        for parameter in owned(optimizer):
            if parameter.dim() > 1 and parameter.device.type == "cpu" and parameter not in self._start:
                self._start[parameter] = _norm(parameter)

    @ungraded
    def _growth(self) -> float | None:
        """By how much the weights have grown since then, all together; None when they are not finite any more."""
        pairs = [(_norm(parameter), before) for parameter, before in self._start.items()]
        now, before = (math.sqrt(sum(pair[side] ** 2 for pair in pairs)) for side in (0, 1))
        return now / before if before > 0 and math.isfinite(now) else None

    def _large(self) -> bool:
        """Weights that began at almost nothing may grow a hundredfold and still be small."""
        pairs = [(_norm(parameter), parameter.numel()) for parameter, _ in self._start.items()]
        return any(norm > math.sqrt(count) for norm, count in pairs if count)

    def _norm_says(self, optimizer: Any) -> None:
        """Where all gradients were looked at anyway, their norm has just been taken."""
        if not math.isfinite(self.core.recorder.latest.get("grad_norm", 0.0)):
            bad = [p for p in owned(optimizer) if p.grad is not None and not p.is_cuda and not_finite(p.grad)]
            if bad:
                self._gradients_bad()

    def _late(self) -> None:
        """On a device the loss of an earlier step arrives now: its passes are gone."""
        if self.left and self._loss_bad_at < 0 and not self._waits:
            self._find(lambda: Answer("loss", "late"), "the loss is not finite", None)

    # -- the search ---------------------------------------------------------------------------------------------------

    def _updates_skipped(self) -> None:
        """Bad gradients, and backwards without an update: the script looks at them itself and leaves updates out. Its
        own business, so nothing stops here, and the searches are kept for later."""
        if self._skips or self.capture.backward.by_scaler or self._loss_bad_at == self.core.recorder.step:
            return
        self._skips = True
        left, stop, self.stop = self.left, self.stop, False
        try:
            self._gradients_bad()
        finally:
            self.left, self.stop = left, stop

    def _gradients_bad(self) -> None:
        if self._loss_bad_at == self.core.recorder.step:
            return  # said already
        self._find(self._behind_gradients, "a gradient is not finite", None)

    def _behind_loss(self, loss: Tensor, source: int) -> Answer:
        event = None if self._mode is None else self._mode.made(loss)
        if self._mode is not None and event is not None:
            return from_chain(self._mode.chain_to(event), "armed", self.core.recorder)
        return self.search.behind_loss(loss, source)

    def _behind_gradients(self) -> Answer:
        if self._mode is not None:
            for _, parameter in self.core.tree.trainable():
                event = self._mode.made(parameter.grad)
                if event is not None and not_finite(parameter.grad):
                    return from_chain(self._mode.chain_to(event), "armed", self.core.recorder)
        return self.search.behind_gradients(self._held, self.capture.backward.source)

    def _find(self, look: Any, what: str, loss: Tensor | None) -> None:
        core = self.core
        step = core.recorder.step
        place = None
        if self.left:
            self.left -= 1
            self.search.step_s = (core.budget.bare_ns or 0.0) / 1e9
            began, began_ns = time.perf_counter(), now_ns()
            answer = look()
            place = self._write(answer, time.perf_counter() - began, loss)
            if answer.sure and answer.where != "parameter":
                self.left = 0
            if self._mode is not None and answer.method == "armed":
                self._disarm()
            core.budget.set_aside(now_ns() - began_ns)
        if self.stop and not self._answered(what, step, place):
            raise StoppedOnNaN(what, step, place)

    def _answered(self, what: str, step: int, place: str | None) -> bool:
        """Where somebody sits at the terminal the run is held instead, once, before the update; whoever goes on wants
        to. Elsewhere it ends: a job that waits for a curl line all night is not what was asked for."""
        stops = self.core.stops
        if stops is None or not stops.gate.attended():
            return False
        self.stop = False
        stops.hold(str(StoppedOnNaN(what, step, place)))
        return True

    def _write(self, answer: Answer, seconds: float, loss: Tensor | None) -> str | None:
        recorder = self.core.recorder
        growth, large = self._growth(), self._large()
        saved = save_batch(self.core, self.capture.passes, self.search.batches)
        value = None if loss is None or loss.is_cuda else str(recorder.latest.get("loss"))
        fields = answer.fields(recorder)
        fields |= {
            "update": recorder.step,
            "loss": value,
            "loss_factor": self._factor,
            "growth": growth,
            "large": large,
            "diverging": growth is not None and growth > GROWN and large,
            "backward": self.core.backwards,
            "update_skipped": self._skips and self.capture.backward.overdue(),
            "not_replayed": self.search.refused,
            "backward_source": recorder.line_of_source(self.capture.backward.source),
            "saved_batch": saved,
            "seconds": seconds,
        }
        recorder.fact("origin", **fields)
        at = f" in {answer.source}" if answer.source else ""
        return f"by {answer.op}{at}" if answer.op else None

    # -- armed --------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """From here on every operation of this thread is watched, also the user's own between passes."""
        if self._mode is not None or not self.left:
            return
        self._mode = Localiser(self.core.recorder.frames, self._running)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._arm_at = max(self._arm_at or 0, 0)

    def _running(self) -> int | None:
        stack = self.core.here.local.stack
        layer = self.core.tree.layers.get(stack[-1][0]) if stack else None
        return None if layer is None else layer.site

    def _disarm(self) -> None:
        mode, self._mode, self._arm_at = self._mode, None, None
        if mode is None:
            return
        mode.active = False
        depth = torch._C._len_torch_dispatch_stack()
        if depth and torch._C._get_dispatch_stack_at(depth - 1) is mode:
            mode.__exit__(None, None, None)


def _handy(parameters: list[Tensor]) -> Tensor:
    first = parameters[0]
    return first if first.numel() <= HANDY else min(parameters, key=Tensor.numel)


def _norm(parameter: Tensor) -> float:
    row = host.measured(parameter) if parameter.numel() else None
    if row is not None:
        return row[5] if not row[7] + row[8] else math.nan
    return float(torch.linalg.vector_norm(parameter.detach(), dtype=torch.float64))


def _sum_is_bad(gradient: Tensor) -> bool:
    row = host.measured(gradient)
    if row is not None:
        return row[7] + row[8] > 0
    values = gradient.detach() if gradient.layout == torch.strided else plain(gradient, widen=False)
    return not math.isfinite(float(values.sum())) and not_finite(gradient)
