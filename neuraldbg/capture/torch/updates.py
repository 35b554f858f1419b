"""Updates, the time axis of a run: optimizer steps, skipped ones, and parameters moved by hand."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.resources import device_bytes, rss_bytes
from neuraldbg.capture.torch.backward import BackwardWatch
from neuraldbg.capture.torch.by_hand import ByHand
from neuraldbg.capture.torch.core import (
    ALONE_LOOKS,
    ENOUGH_LOOKS,
    PREPARED,
    Core,
    cannot_look,
    now_ns,
    traced_by_dynamo,
)
from neuraldbg.capture.torch.hooks import PassWatch
from neuraldbg.capture.torch.sweep import Sweep, owned
from neuraldbg.capture.torch.tree import REBUILT_APART
from neuraldbg.records import Call, Phase, SiteKind

_LOOKS = 3  # backwards in which the name of an optimizer that has not stepped is looked for


@dataclass(eq=False)
class Known:
    """An optimizer that was created or has stepped."""

    site: int
    name: str
    updates: int = 0
    groups: int = 0
    unknown: int = 0  # parameters of models that have not been called yet
    looks: int = 0  # updates of which evidence was gathered


class UpdateWatch:
    def __init__(self, core: Core, passes: PassWatch, backward: BackwardWatch) -> None:
        self.core = core
        self.passes = passes
        self.backward = backward
        self.sweep = Sweep(core, passes.quick)
        self.optimizers: IdentityTable[Known] = IdentityTable()
        self.unnamed: IdentityTable[list[int]] = IdentityTable()  # created, no name found yet -> times looked
        self.stepped = 0
        self._alike: dict[tuple[str, str | None], list[Known]] = {}
        self.cleared = False  # gradients were set to zero or None since the last update
        self.accumulation: Counter[int] = Counter()  # backwards per update -> updates
        self.step_started: int | None = None  # the first step begins with its first pass
        self.on_update: list[Callable[[int], None]] = []
        self.now_and_then: list[Callable[[int], None]] = []  # after some of the updates
        self.before_update: list[Callable[[], None]] = []
        kind = lambda optimizer, *_: type(optimizer).__name__  # noqa: E731
        self._began = core.guard.shield("starts of updates", kind)(self._before)
        self._ended = core.guard.shield("updates", kind)(self._after)
        shield = core.guard.shield("optimizers")
        self._introduced, self._introduced_named = shield(self._introduce_all), shield(self._introduce_named)
        core.unseen = self._some_are_unseen
        self.by_hand = ByHand(core, self)
        self._attends = False
        self.attend()

    # -- optimizers --------------------------------------------------------------------------------------------------

    def created(self, optimizer: Optimizer) -> None:
        core, recorder = self.core, self.core.recorder
        if recorder.step and not self.passes.kept() and not core.any_backward:
            core.foreseen = recorder.step
            if core.budget.foresee() or core.budget.full:
                core.step_begins()
        if core.budget.full and core.statistics:
            self.sweep.earlier.prepare(owned(optimizer), PREPARED)
        self.unnamed[optimizer] = [0]
        self.attend()
        for notice in self.core.moments.optimizer_created:
            notice(optimizer)

    def _introduce_named(self) -> None:
        for optimizer, looked in list(self.unnamed.items()):
            looked[0] += 1
            names = self.core.recorder.frames.names_of(optimizer) if looked[0] <= _LOOKS else []
            if names:
                self.known(optimizer, names)

    def _introduce_all(self) -> None:
        for optimizer, _ in list(self.unnamed.items()):
            self.known(optimizer)

    def known(self, optimizer: Optimizer, names: list[str] | None = None) -> Known:
        one = self.optimizers.get(optimizer)
        if one is None or one.groups != len(optimizer.param_groups):
            one = self._introduce(optimizer, one, names)
        return one

    def _introduce(self, optimizer: Optimizer, one: Known | None, names: list[str] | None = None) -> Known:
        """Write down what an optimizer is and which parameters it owns; again when it got a new group."""
        recorder = self.core.recorder
        source = recorder.frames.line()
        kind = type(optimizer).__name__
        again = self._alike.get((kind, source), [])
        rebuilt = one is None and len(again) >= REBUILT_APART
        if rebuilt:
            one = self.optimizers[optimizer] = again[-1]  # a loop that makes its optimizer anew: one site is enough
            self.unnamed.pop(optimizer)
        if one is None:
            name = self.core.tree.unique_name(optimizer, kind.lower(), names=names)
            site = recorder.add_site(name, SiteKind.OPTIMIZER, op=kind, source=source)
            one = self.optimizers[optimizer] = Known(site, name)
            self.unnamed.pop(optimizer)
            self._alike.setdefault((kind, source), []).append(one)
            self.core.budget.newcomer()
        one.groups = len(optimizer.param_groups)
        tree = self.core.tree
        mine = owned(optimizer)
        sites = [tree.parameter_site.get(parameter) for parameter in mine]
        one.unknown = sum(site is None for site in sites)
        if rebuilt:
            return one
        recorder.fact(
            "optimizer",
            **{"class": kind},
            site=one.site,
            name=one.name,
            groups=[_hyper(group) for group in optimizer.param_groups],
            parameter_sites=[site for site in sites if site is not None],
            unknown_parameters=one.unknown,
            source=source,
        )
        return one

    def _watched(self, optimizer: Optimizer) -> bool:
        """With one model given, only optimizers that move its parameters count."""
        tree = self.core.tree
        if tree.only is None:
            return True
        model = tree.only()
        if model is None:
            return False
        if model not in tree.models:
            tree.walk(tree.top(model))
        return any(parameter in tree.parameter_site for parameter in owned(optimizer))

    def pre_hook(self, optimizer: Optimizer, *_: Any) -> None:
        core = self.core
        if traced_by_dynamo() or not core.on:
            return
        begin = now_ns()
        local = core.here.local
        if local.in_step is not None and _is_running(local.in_step):
            return  # an optimizer that steps another one inside its own step
        local.in_step = optimizer
        local.stack.clear()  # a KeyboardInterrupt inside a forward leaves entries behind
        local.own_pass = None
        if self.passes.hooks.displaced:
            self.passes.hooks.come_back()
        self._began(optimizer, begin)

    def post_hook(self, optimizer: Optimizer, *_: Any) -> None:
        core = self.core
        if traced_by_dynamo() or not core.on:
            return
        end = now_ns()
        local = core.here.local
        if local.in_step is not optimizer:
            return
        local.in_step = None
        before = core.recorder.step
        with core.lock:
            self._ended(optimizer, end)
        stops = core.stops
        if stops is not None and core.recorder.step != before:
            if stops.gate.active or core.heard is core.moments:
                stops.tell_lost()
            if stops.gate.active:
                stops.update_done()

    def _before(self, optimizer: Optimizer, begin: int) -> None:
        core = self.core
        if core.clock.on:
            core.clock.update_began(begin)
        local = core.here.local
        local.kept = None
        if core.tree.only is not None and not self._watched(optimizer):
            return
        known = self.optimizers.get(optimizer)
        if known is None or known.groups != len(optimizer.param_groups):
            known = self.known(optimizer)
        one = local.known = known
        if one.unknown and one.updates < 3:
            self._introduce(optimizer, one)  # its model has been called meanwhile
        if core.budget.watching and core.statistics:
            if core.budget.full:
                local.kept = self.sweep.before(owned(optimizer), norm_too=True)
            else:
                self.sweep.watch_norm(owned(optimizer))
        if core.looking:
            one.looks += 1
            self.sweep.note_missing(one.site, owned(optimizer))
        for notice in self.before_update:
            notice()
        core.tell(core.heard.update_begun, optimizer, one)
        local.step_start = now_ns()
        core.own_ns += local.step_start - begin
        local.own_before = core.own_ns

    def _after(self, optimizer: Optimizer, end: int) -> None:
        core = self.core
        if core.clock.on:
            core.clock.update_ended(end)
        if core.tree.only is not None and not self._watched(optimizer):
            return
        local = core.here.local
        one, local.known = local.known or self.known(optimizer), None
        lr = optimizer.param_groups[0].get("lr")
        lr = lr if type(lr) is float else _number(lr)
        duration = end - local.step_start - (core.own_ns - local.own_before if core.trainers < 2 else 0)
        core.recorder.call(Call.STEP, one.site, value=lr, source=core.recorder.source(3), duration_ns=duration)
        if core.budget.full and not _on_device(optimizer):
            core.recorder.span(one.site, Phase.UPDATE, (local.step_start, duration))
        alone = len(self.optimizers) == 1
        core.recorder.scalar("lr" if alone or one is self._first() else f"lr.{one.name}", lr)
        if local.kept is not None:
            self.sweep.after(local.kept)
            local.kept = None
        core.tell(core.heard.update_done, optimizer, one)
        one.updates += 1
        self.stepped += 1
        self.backward.closely = self.by_hand.seen
        if self.by_hand.before:
            self.by_hand.before.clear()
        core.own_ns += now_ns() - end
        self.update_done(len(self.optimizers))

    def _some_are_unseen(self) -> bool:
        """The generator of a GAN may step once in six updates, and one that never steps is looked for."""
        alone = len(self.optimizers) == 1 and self.core.budget.began == 0
        enough = ALONE_LOOKS if alone else ENOUGH_LOOKS
        return len(self.unnamed) > 0 or any(one.looks < enough for one in self.optimizers.values())

    def _first(self) -> Known | None:
        return next(iter(self.optimizers.values()), None)

    def scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """GradScaler.step: when the optimizer behind it did not step, the update was skipped."""

        @wraps(original)
        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            core = self.core
            if cannot_look() or not core.on:
                return original(scaler, optimizer, *args, **kwargs)
            before = self.stepped
            result = original(scaler, optimizer, *args, **kwargs)
            if self.stepped == before:
                self._skipped(scaler, optimizer)
            return result

        def skipped(scaler: Any, optimizer: Optimizer) -> None:
            self.core.recorder.call(
                Call.STEP_SKIPPED, self.known(optimizer).site, source=self.core.recorder.source(3), value=_scale(scaler)
            )
            self.backward.since_update = 0

        self._skipped = self.core.guard.shield("scaler")(skipped)
        return step

    # -- the end of a step -------------------------------------------------------------------------------------------

    def update_done(self, optimizers: int) -> None:
        """Close the books on one update and open the next step."""
        core = self.core
        begin = now_ns()
        recorder = core.recorder
        if self.step_started is not None:
            recorder.scalar("step_time_s", (begin - self.step_started - core.own_ns) / 1e9)  # less what is ours
        started = self.step_started or begin
        if core.looking:
            self._resources()
        backwards, self.backward.since_update = self.backward.since_update, 0
        if backwards:
            self.accumulation[backwards] += 1
            if backwards > self.backward.most:
                self.backward.most = backwards
        self.cleared = False
        for notice in self.on_update:
            notice(recorder.step)
        if core.heard is core.moments:
            for notice in self.now_and_then:
                notice(recorder.step)
        self.passes.update_done(optimizers)
        recorder.step += 1
        if core.device.used:
            core.device.poll()
            core.device.send()
        end = now_ns()
        core.own_ns += end - begin
        loss = recorder.latest.get("loss", 0.0)
        if loss - loss != 0.0 or core.budget.loss_is_bad:
            core.budget.loss_told(loss)
        wall = end - started  # of a first step whose passes nobody sees, because they are compiled, unknown
        core.budget.step_done(wall_ns=wall, own_ns=min(core.own_ns, wall))
        if self.passes.quick.one is not None and not (core.budget.full or core.budget.last_was_full):
            self.passes.quick.rest()  # by now the other network of a GAN has had its backward too
        core.own_ns = 0
        if recorder.step >= core.told_again or core.budget.full or core.budget.last_was_full:
            core.step_begins()
        self.step_started = end

    def _resources(self) -> None:
        for name, used in (("rss_bytes", rss_bytes()), ("device_bytes", device_bytes())):
            if used is not None:
                self.core.recorder.scalar(name, float(used))

    def attend(self) -> None:
        """There is something to look at when a pass or a backward begins."""
        if not self._attends:
            self._attends = True
            self.passes.before_pass = [self._pass_begins, *self.passes.before_pass]
            self.backward.before_backward = [self._backward_begins, *self.backward.before_backward]

    def _rest(self) -> None:
        """By new lists: the old ones are being walked through."""
        if not (self.by_hand.before or len(self.unnamed) or self.step_started is None):
            self._attends = False
            self.passes.before_pass = [check for check in self.passes.before_pass if check != self._pass_begins]
            checks = self.backward.before_backward
            self.backward.before_backward = [check for check in checks if check != self._backward_begins]

    def _pass_begins(self) -> None:
        self.by_hand.look()
        if self.step_started is None:
            self.step_started = now_ns()
        self._rest()

    def _backward_begins(self) -> None:
        self.by_hand.look()
        if len(self.unnamed):  # the user's variables are in sight, also that of an optimizer that will never step
            self._introduced_named()

    def finish(self) -> None:
        """At the end: the last manual update has no pass or backward after it; optimizers that never stepped are
        named too."""
        self.by_hand.look()
        self._introduced()
        self.write_accumulation()

    def write_accumulation(self) -> None:
        """Backwards per update, as most updates had them (a GAN's two networks differ)."""
        if self.accumulation:
            most, _ = self.accumulation.most_common(1)[0]
            seen = {str(count): updates for count, updates in self.accumulation.most_common(8)}
            self.core.recorder.fact("accumulation", backwards_per_update=most, updates_by_backwards=seen)


def _is_running(optimizer: Optimizer) -> bool:
    """Whether a step of this optimizer is still on the stack; one that raised is not, and nobody told us."""
    frame: Any = sys._getframe(2)
    frame = frame.f_back  # the frame that called this hook is the new step
    while frame is not None:
        if frame.f_code.co_name == "wrapper" and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False


def _on_device(optimizer: Optimizer) -> bool:
    return any(group["params"] and group["params"][0].is_cuda for group in optimizer.param_groups)


def _number(value: Any) -> float:
    if isinstance(value, Tensor):
        return float(value) if value.device.type == "cpu" else float("nan")
    return float(value) if isinstance(value, int | float) else float("nan")


def _scale(scaler: Any) -> float:
    scale = getattr(scaler, "_scale", None)
    return _number(scale) if scale is not None else float("nan")


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {
        key: value for key, value in group.items() if isinstance(value, bool | int | float | str) or value is None
    }
    if isinstance(group.get("betas"), tuple):
        plain["betas"] = [_number(beta) for beta in group["betas"]]
    if isinstance(group.get("lr"), Tensor):
        plain["lr"] = _number(group["lr"])
    plain["parameters"] = len(group["params"])
    return plain
