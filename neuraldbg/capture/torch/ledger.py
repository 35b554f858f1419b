"""The smaller calls of a training loop, each written down with its line: zero_grad, clip, unscale, schedulers,
loaded states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.updates import UpdateWatch, _number
from neuraldbg.records import Call

_Original = Callable[..., Any]


class Ledger:
    def __init__(self, core: Core, updates: UpdateWatch) -> None:
        self.core = core
        self.updates = updates
        self._inside = 0  # a call of ours inside a call of ours is the same call

    def _noted(self, original: _Original, note: Callable[..., None]) -> _Original:
        """The original function, followed by an entry in the ledger."""
        core = self.core
        write = core.guard.shield("ledger")(note)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not core.on:
                return original(*args, **kwargs)
            self._inside += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._inside -= 1
            if self._inside == 0:
                with core.own_time():
                    write(result, *args, **kwargs)
            return result

        return call

    def optimizer_zero_grad(self, original: _Original) -> _Original:
        def note(_: Any, optimizer: Optimizer, *_args: Any, **_kwargs: Any) -> None:
            one = self.updates.optimizers.get(optimizer)
            self.core.recorder.call(Call.ZERO_GRAD, -1 if one is None else one.site, source=self._line())

        return self._noted(original, note)

    def module_zero_grad(self, original: _Original) -> _Original:
        def note(_: Any, module: nn.Module, *_args: Any, **_kwargs: Any) -> None:
            model = self.core.tree.models.get(module)
            self.core.recorder.call(Call.ZERO_GRAD, -1 if model is None else model.site, source=self._line())

        return self._noted(original, note)

    def clip(self, original: _Original) -> _Original:
        def note(norm: Any, _: Any = None, limit: Any = None, *_args: Any, **kwargs: Any) -> None:
            limit = kwargs.get("max_norm", kwargs.get("clip_value", limit))
            recorder, line, step = self.core.recorder, self._line(), self.core.recorder.step

            def deliver(value: float) -> None:
                recorder.call(Call.CLIP, value=value, aux=_number(limit), source=line, at_step=step)

            if isinstance(norm, Tensor):
                self.core.device.scalar(norm, deliver)
            else:
                deliver(float("nan"))

        return self._noted(original, note)

    def unscale(self, original: _Original) -> _Original:
        def note(_: Any, _scaler: Any, optimizer: Optimizer) -> None:
            self.core.recorder.call(Call.UNSCALE, self.updates.known(optimizer).site, source=self._line())

        return self._noted(original, note)

    def scheduler_step(self, original: _Original) -> _Original:
        def note(_: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
            optimizer = getattr(scheduler, "optimizer", None)
            if not isinstance(optimizer, Optimizer) or getattr(scheduler, "_step_count", 2) <= 1:
                return  # the first step is taken by the constructor
            one = self.updates.optimizers.get(optimizer)
            lr = _number(optimizer.param_groups[0].get("lr"))
            self.core.recorder.call(Call.SCHEDULER, -1 if one is None else one.site, value=lr, source=self._line())

        return self._noted(original, note)

    def load_state(self, original: _Original) -> _Original:
        def note(_: Any, owner: Any, *_args: Any, **_kwargs: Any) -> None:
            site = -1
            if isinstance(owner, Optimizer):
                known = self.updates.optimizers.get(owner)
                site = -1 if known is None else known.site
            elif isinstance(owner, nn.Module):
                layer = self.core.tree.layers.get(owner)
                site = -1 if layer is None else layer.site
            self.core.recorder.call(Call.LOAD_STATE, site, source=self._line())

        return self._noted(original, note)

    def _line(self) -> int:
        return self.core.recorder.source(2)


def scheduler_classes() -> Iterator[type]:
    """Every scheduler class of torch that has a `step` of its own."""
    for value in vars(lr_scheduler).values():
        if isinstance(value, type) and issubclass(value, lr_scheduler.LRScheduler) and "step" in vars(value):
            yield value
