"""The smaller calls of a training loop, each written down with its line: zero_grad, clip, unscale, schedulers,
loaded states."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.core import Core, now_ns, traced_by_dynamo
from neuraldbg.capture.torch.updates import UpdateWatch, _number
from neuraldbg.records import Call

_Original = Callable[..., Any]
MOST_SCHEDULERS = 16  # that are written down


class Ledger:
    def __init__(self, core: Core, updates: UpdateWatch) -> None:
        self.core = core
        self.updates = updates
        self._inside = 0  # a call of ours inside a call of ours is the same call
        self._schedulers: IdentityTable[list[int]] = IdentityTable()  # scheduler -> steps seen so far
        self.schedulers_made = 0
        self._unwritten: list[tuple[weakref.ref[Optimizer], dict[str, Any]]] = []  # schedulers with their settings
        self.clipped: tuple[int, str, float] | None = None  # step, function and limit of the last clipping
        self._look = core.guard.inside("schedulers")(self.look_at_schedulers)
        self._look_first = core.guard.shield("schedulers")(self.look_at_schedulers)
        self._looks = False

    def _noted(
        self, original: _Original, note: Callable[..., None], before: Callable[..., None] | None = None
    ) -> _Original:
        """The original function, followed by an entry in the ledger."""
        core = self.core
        write = core.guard.shield("ledger")(note)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if traced_by_dynamo() or not core.on:
                return original(*args, **kwargs)
            if before is not None and self._inside == 0:
                before(*args, **kwargs)
            self._inside += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._inside -= 1
            if self._inside == 0:
                start = now_ns()
                if self._looks:
                    self._look_first()  # a scheduler that stepped before this call is written down before it
                write(result, *args, **kwargs)
                core.own_ns += now_ns() - start
            return result

        return call

    def optimizer_zero_grad(self, original: _Original) -> _Original:
        def note(_: Any, optimizer: Optimizer, *_args: Any, **_kwargs: Any) -> None:
            self.updates.cleared = True
            one = self.updates.optimizers.get(optimizer)
            self.core.recorder.call(Call.ZERO_GRAD, -1 if one is None else one.site, source=self.core.recorder.source())

        return self._noted(original, note)

    def module_zero_grad(self, original: _Original) -> _Original:
        def note(_: Any, module: nn.Module, *_args: Any, **_kwargs: Any) -> None:
            self.updates.cleared = True
            model = self.core.tree.models.get(module)
            self.core.recorder.call(
                Call.ZERO_GRAD, -1 if model is None else model.site, source=self.core.recorder.source()
            )

        return self._noted(original, note)

    def clip(self, original: _Original) -> _Original:
        def note(norm: Any, _: Any = None, limit: Any = None, *_args: Any, **kwargs: Any) -> None:
            limit = kwargs.get("max_norm", kwargs.get("clip_value", limit))
            recorder, line, step = self.core.recorder, self.core.recorder.source(), self.core.recorder.step
            self.clipped = (step, original.__name__, _number(limit))

            def deliver(value: float) -> None:
                recorder.call(Call.CLIP, value=value, aux=_number(limit), source=line, at_step=step)

            if isinstance(norm, Tensor):
                self.core.device.scalar(norm, deliver)
            else:
                deliver(float("nan"))

        return self._noted(original, note)

    def unscale(self, original: _Original) -> _Original:
        def note(_: Any, _scaler: Any, optimizer: Optimizer) -> None:
            self.core.recorder.call(
                Call.UNSCALE, self.updates.known(optimizer).site, source=self.core.recorder.source()
            )

        return self._noted(original, note)

    def scheduler_created(self, original: _Original) -> _Original:
        made = self.core.guard.shield("new schedulers")(self._introduce_scheduler)

        @wraps(original)
        def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            original(scheduler, *args, **kwargs)
            if self.core.on:
                self._look_from_now_on()
                self._schedulers[scheduler] = [_steps_of(scheduler)]
                made(scheduler)

        return __init__

    def _look_from_now_on(self) -> None:
        """There is a scheduler: whether it has stepped is asked before whatever comes next."""
        if not self._looks:
            self._looks = True
            watches = self.updates.passes.before_pass, self.updates.backward.before_backward, self.updates.before_update
            for checks in watches:
                checks.append(self._look)

    def _introduce_scheduler(self, scheduler: Any) -> None:
        """What a scheduler is set to do, for the first ones that a script makes; written once its optimizer has a
        site."""
        self.schedulers_made += 1
        optimizer = getattr(scheduler, "optimizer", None)
        if self.schedulers_made > MOST_SCHEDULERS or not isinstance(optimizer, Optimizer):
            return
        fields = {
            "class": type(scheduler).__name__,
            "settings": {name: value for name, value in vars(scheduler).items() if _is_setting(name, value)},
            "milestones": sorted(getattr(scheduler, "milestones", ()))[:16],
            "base_rates": [_number(rate) for rate in list(getattr(scheduler, "base_lrs", ()))[:4]],
            "source": self.core.recorder.frames.line(3),
        }
        self._unwritten.append((weakref.ref(optimizer), fields))

    def _write_schedulers(self) -> None:
        waiting, self._unwritten = self._unwritten, []
        for ref, fields in waiting:
            optimizer = ref()
            one = None if optimizer is None else self.updates.optimizers.get(optimizer)
            if one is not None:
                self.core.recorder.fact("scheduler", optimizer=one.site, **fields)
            elif optimizer is not None:
                self._unwritten.append((ref, fields))

    def look_at_schedulers(self, *_: Any) -> None:
        """Which schedulers have stepped since the last look. Their `step` is not patched: torch's warnings about a
        wrong order name the caller's line, and a wrapper would be that caller."""
        if self._unwritten:
            self._write_schedulers()
        if not len(self._schedulers):
            return
        taken: dict[int, tuple[Optimizer, int]] = {}
        for scheduler, seen in self._schedulers.items():
            count, optimizer = _steps_of(scheduler), getattr(scheduler, "optimizer", None)
            if count > seen[0] and isinstance(optimizer, Optimizer):
                most = taken.get(id(optimizer), (optimizer, 0))[1]
                taken[id(optimizer)] = (optimizer, max(most, count - seen[0]))  # chained schedulers step as one
                seen[0] = count
        for optimizer, steps in taken.values():
            one = self.updates.optimizers.get(optimizer)
            lr = _number(optimizer.param_groups[0].get("lr"))
            for _step in range(min(steps, 1000)):
                self.core.recorder.call(Call.SCHEDULER, -1 if one is None else one.site, value=lr)

    def load_state(self, original: _Original) -> _Original:
        moments = self.core.moments

        def before(owner: Any, state: Any = None, *_args: Any, **kwargs: Any) -> None:
            for notice in moments.loading:
                notice(owner, kwargs.get("state_dict", state))

        def note(result: Any, owner: Any, state: Any = None, *_args: Any, **kwargs: Any) -> None:
            site = -1
            if isinstance(owner, Optimizer):
                known = self.updates.optimizers.get(owner)
                site = -1 if known is None else known.site
            elif isinstance(owner, nn.Module):
                layer = self.core.tree.layers.get(owner)
                site = -1 if layer is None else layer.site
            source = self.core.recorder.source()
            self.core.recorder.call(Call.LOAD_STATE, site, source=source)
            for notice in moments.loaded:
                notice(owner, kwargs.get("state_dict", state), result, source)

        return self._noted(original, note, before)


def _is_setting(name: str, value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool) and not name.startswith("_")


def _steps_of(scheduler: Any) -> int:
    """Steps taken so far; the first is taken by the constructor. CosineAnnealingWarmRestarts counts epochs only."""
    steps, epoch = getattr(scheduler, "_step_count", 0), getattr(scheduler, "last_epoch", -1)
    return max(steps if isinstance(steps, int) else 0, epoch + 1 if isinstance(epoch, int) else 0)
