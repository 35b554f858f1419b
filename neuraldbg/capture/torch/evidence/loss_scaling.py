"""GradScaler: how it is set, how its scale moves, and updates that were given gradients still multiplied by it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.core import cannot_look

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

_SETTINGS = ("_init_scale", "_growth_factor", "_backoff_factor", "_growth_interval")
MOST_FACTS = 3


class LossScaling:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._known: IdentityTable[bool] = IdentityTable()
        self._scaled_by: weakref.ref[Any] | None = None  # since the last update
        self._left = MOST_FACTS
        self._follows = False  # updates: from the first scaler on
        self.still_scaled = 0
        guard = self.core.guard
        self._seen = guard.shield("loss scaling")(self._scale_seen)
        self._stepped = guard.shield("loss scaling")(self._step_seen)
        capture.patches.replace(GradScaler, "scale", self._wrap(GradScaler.scale, self._seen))
        capture.patches.replace(GradScaler, "step", self._wrap(GradScaler.step, self._stepped))
        self.core.take_part("ending", "loss scaling", self._ending)

    def _wrap(self, original: Callable[..., Any], seen: Callable[[Any], None]) -> Callable[..., Any]:
        @wraps(original)
        def call(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if self.core.on and not cannot_look():
                seen(scaler)
            return original(scaler, *args, **kwargs)

        return call

    def _scale_seen(self, scaler: Any) -> None:
        if not self._follows:
            self._follows = True
            self.core.take_part("update_begun", "loss scaling", self._update_begun)
        if scaler not in self._known:
            self._known[scaler] = True
            settings = {name.strip("_"): attempt(partial(_number, scaler, name)) for name in _SETTINGS}
            self.core.recorder.fact("scaler", enabled=bool(scaler.is_enabled()), **settings)
        if scaler.is_enabled():
            self._scaled_by = weakref.ref(scaler)

    def _step_seen(self, scaler: Any) -> None:
        scale = getattr(scaler, "_scale", None)
        if isinstance(scale, Tensor):
            recorder, step = self.core.recorder, self.core.recorder.step
            self.core.device.scalar(scale, lambda value: recorder.scalar("loss_scale", value, step=step))

    def _update_begun(self, optimizer: Any, _: Any) -> None:
        scaler = None if self._scaled_by is None else self._scaled_by()
        self._scaled_by = None
        if scaler is None or getattr(optimizer, "found_inf", None) is not None:
            return
        state = scaler._per_optimizer_states.get(id(optimizer))
        if state is not None and state.get("found_inf_per_device"):
            return
        self.still_scaled += 1
        if self._left:
            self._left -= 1
            line = self.core.recorder.frames.line()
            self.core.recorder.fact("update_still_scaled", scale=_host(scaler._scale), source=line)

    def _ending(self) -> None:
        if self.still_scaled > MOST_FACTS:
            self.core.recorder.fact("updates_still_scaled", count=self.still_scaled)


def _number(scaler: Any, name: str) -> float:
    return float(getattr(scaler, name))


def _host(scale: Any) -> float | None:
    return float(scale) if isinstance(scale, Tensor) and scale.device.type == "cpu" else None
