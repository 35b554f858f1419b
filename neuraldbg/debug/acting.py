"""What hooks do: each action, with what it needs of a session."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from neuraldbg.capture.arrays import Numbers, numbers_of
from neuraldbg.capture.kernels import memory
from neuraldbg.capture.resources import device_bytes, rss_bytes
from neuraldbg.debug import hook_parts as parts
from neuraldbg.debug.alerts import Alerts, TensorAlert
from neuraldbg.debug.delivery import Background
from neuraldbg.debug.gradients import GradientDebugger
from neuraldbg.debug.hook_parts import HookAction, HookContext, HookResult
from neuraldbg.debug.inspector import TensorInspector
from neuraldbg.debug.record import Record
from neuraldbg.debug.settings import DebugConfig, Sampling
from neuraldbg.debug.snapshot import place_of, write_snapshot
from neuraldbg.debug.tensors import Look, TensorStats, look_at, whole_row
from neuraldbg.errors import ConfigError, UsageError, nearest
from neuraldbg.records import Kind

log = logging.getLogger("neuraldbg")
MB: Final = 2**20
MOST_LAYERS: Final = 10_000


@dataclass(eq=False)
class Acting:
    config: DebugConfig
    record: Record
    inspector: TensorInspector
    gradients: GradientDebugger
    alerts: Alerts
    background: Background
    loss: Callable[[], float | None]
    pause: Callable[[HookContext, str], HookResult]
    callbacks: dict[str, Callable[[HookContext], Any]] = field(default_factory=dict)
    conditions: dict[str, Callable[[HookContext], Any]] = field(default_factory=dict)
    activations: dict[str, deque[TensorStats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sampling = Sampling(self.config.sampling_rate)

    def told(self, text: str) -> None:
        log.warning("%s", text)
        self.record.fact("note", level="warning", text=text)

    def step_of(self, layer: str, is_forward: bool, told: Any = None) -> int:
        """Of a layer that is told by hand, with its step or without."""
        what = ("hook", layer, is_forward)
        return self.record.comes(what) if told is None else self.record.comes_at(int(told), what)

    # -- what conditions ask for -------------------------------------------------------------------------------------

    def know(self, name: str, context: HookContext) -> Any:
        if name == "loss":
            return self.loss()
        if name == "memory_mb":
            used = device_bytes() or rss_bytes()
            return None if used is None else used / MB
        if name == "gradient_norm":
            return None if context.is_forward else self._norm(context)
        return self.conditions.get(name.removeprefix("condition "))

    def _norm(self, context: HookContext) -> float:
        row = self._row(context)
        bad = row[7] or row[8]
        return float("nan") if bad else row[5]

    # -- one look for all hooks of a moment --------------------------------------------------------------------------

    def _numbers(self, context: HookContext) -> Numbers:
        found = context.__dict__.get("_numbers")
        if found is None:
            data = context.data
            if context.shape is not None and not hasattr(data, "shape"):
                data = np.asarray(data)
            if context.shape is not None and tuple(data.shape) != context.shape:
                try:
                    data = data.reshape(context.shape)
                except (ValueError, RuntimeError):
                    raise UsageError(f"{data.shape} values do not have the shape {context.shape}") from None
            found = context.__dict__["_numbers"] = numbers_of(data)
        return found

    def _row(self, context: HookContext) -> Any:
        look = context.__dict__.get("_look")
        if look is not None:
            return look.row
        row = context.__dict__.get("_row")
        if row is None:
            numbers = self._numbers(context)
            row = context.__dict__["_row"] = whole_row(memory.measured(numbers.flat(), numbers.element), numbers)
        return row

    def _look(self, context: HookContext, *, distribution: bool) -> Look:
        look: Look | None = context.__dict__.get("_look")
        if look is None or (distribution and not look.distribution.percentiles):
            look = context.__dict__["_look"] = look_at(self._numbers(context), distribution=distribution)
        return look

    def _sampled(self, context: HookContext) -> bool:
        taken = context.__dict__.get("_taken")
        if taken is None:
            taken = context.__dict__["_taken"] = self._sampling.takes((context.layer, context.is_forward))
        return bool(taken)

    # -- actions -----------------------------------------------------------------------------------------------------

    def do(self, action: HookAction, context: HookContext, hook: str) -> HookResult:
        if isinstance(action, parts.InspectTensor):
            return self._inspect(action, context)
        if action == HookAction.TrackGradients:
            return self._track(context)
        if action == HookAction.RecordActivations:
            return self._record_activations(context)
        if isinstance(action, parts.SaveSnapshot):
            return self._save(action, context)
        if isinstance(action, parts.Alert):
            message = f"{action.message} ({context.layer}, step {context.step})"
            self.alerts.raised(TensorAlert(hook, action.severity, message, context.layer, None, context.step))
            return HookResult.Success
        if isinstance(action, parts.CustomCallback):
            return self._call(action, context)
        return self.pause(context, hook)

    def _inspect(self, action: parts.InspectTensor, context: HookContext) -> HookResult:
        if not self.config.enable_tensor_inspection:
            return HookResult.Skipped("enable_tensor_inspection is False")
        if not self._sampled(context):
            return HookResult.Skipped("not sampled")
        look = self._look(context, distribution=action.distribution)
        if context.__dict__.get("_inspected") is not look:
            self.inspector.took(look, context.layer, context.operation, context.step)
            context.__dict__["_inspected"] = look
        return HookResult.Success

    def _track(self, context: HookContext) -> HookResult:
        if context.is_forward:
            return HookResult.Skipped("a forward has no gradient")
        if not self.config.enable_gradient_debugging:
            return HookResult.Skipped("enable_gradient_debugging is False")
        if not self._sampled(context):
            return HookResult.Skipped("not sampled")
        if not context.__dict__.get("_tracked"):
            self.gradients.took(context.layer, self._numbers(context), context.step)
            context.__dict__["_tracked"] = True
        return HookResult.Success

    def _record_activations(self, context: HookContext) -> HookResult:
        if not context.is_forward:
            return HookResult.Skipped("a backward has no activations")
        if not self._sampled(context):
            return HookResult.Skipped("not sampled")
        if not context.__dict__.get("_recorded") and (
            context.layer in self.activations or len(self.activations) < MOST_LAYERS
        ):
            look = self._look(context, distribution=False)
            known = self.activations.setdefault(context.layer, deque(maxlen=self.config.max_gradient_history))
            known.append(look.stats)
            if context.__dict__.get("_inspected") is None:
                self.record.stats(context.layer, Kind.ACTIVATION, look.row, step=context.step)
            context.__dict__["_recorded"] = True
        return HookResult.Success

    def _save(self, action: parts.SaveSnapshot, context: HookContext) -> HookResult:
        place, write = place_of(action.path, context), write_snapshot(self._numbers(context))
        if not self.background.do(lambda: write(place)):
            return HookResult.Skipped("too much waits for the disk")
        return HookResult.Success

    def _call(self, action: parts.CustomCallback, context: HookContext) -> HookResult:
        callback = action.callback
        if isinstance(callback, str):
            found = self.callbacks.get(callback)
            if found is None:
                near = nearest(callback, self.callbacks, 1)
                hint = f"did you mean {near[0]!r}?" if near else "hooks.register_callback(name, function) first"
                raise ConfigError(f"no callback {callback!r}; {hint}")
            callback = found
        callback(context)
        return HookResult.Success
