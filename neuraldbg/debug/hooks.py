"""Debugging hooks at work: which act on a layer, whether their conditions hold, and what they do."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

from neuraldbg.analysis.results import Result
from neuraldbg.capture.guard import attempt_or_why
from neuraldbg.debug import hook_parts as parts
from neuraldbg.debug.acting import Acting
from neuraldbg.debug.hook_building import Hook
from neuraldbg.debug.hook_parts import Custom, HookContext, HookResult, HookTrigger, LayerSpecific
from neuraldbg.debug.settings import DebugConfig
from neuraldbg.debug.tensors import TensorStats
from neuraldbg.errors import UsageError, nearest

MOST_LAYERS: Final = 10_000  # whose patterns stay matched


@dataclass(frozen=True, eq=False)
class HookStats(Result):
    """What a hook has done so far, and why it no longer does."""

    total_executions: int = 0
    last_execution_step: int | None = None
    total_execution_time_ms: float = 0.0
    avg_execution_time_ms: float | None = None
    errors: int = 0
    skipped: int = 0
    enabled: bool = True
    why_disabled: str | None = None


class _Registered:
    """A hook and what it has done so far."""

    def __init__(self, number: int, hook: Hook) -> None:
        self.id, self.hook = number, hook
        self.most = 1 if hook.trigger == HookTrigger.Once else hook.max_executions
        self.enabled, self.why = True, None  # type: bool, str | None
        self.acted = self.errors = self.skipped = self.spent_ns = 0
        self.last_step: int | None = None

    def spent(self) -> bool:
        return self.most is not None and self.acted >= self.most

    @cached_property
    def only_inspects(self) -> bool:
        hook = self.hook
        plain = not hook.conditions and isinstance(hook.trigger, parts.Always)
        return plain and hook.actions == (parts.InspectTensor(),)

    def stats(self) -> HookStats:
        took = self.spent_ns / 1e6
        mean = took / self.acted if self.acted else None
        return HookStats(
            self.acted,
            self.last_step,
            took,
            mean,
            self.errors,
            self.skipped,
            self.enabled and not self.spent(),
            self.why,
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who acts on one layer, until a hook comes, goes, or is switched on or off."""

    forward: tuple[_Registered, ...]
    backward: tuple[_Registered, ...]
    quick: bool = False  # all of them only inspect, always


class DebugHooks:
    """A hook that fails is told of once and acts no more; training goes on."""

    def __init__(self, config: DebugConfig, acting: Acting) -> None:
        self._config, self._acting = config, acting
        self._hooks: dict[int, _Registered] = {}
        self._plans: dict[str, _Plan] = {}
        self._named: dict[str, list[_Registered]] = {}  # whose patterns fit a layer: matched once
        self._containers: set[str] = set()
        self._conditions: dict[str, Callable[[HookContext], Any]] = {}
        self._lock = threading.RLock()
        self._next = 1
        self._always = config.enable_tensor_inspection and config.sampling_rate >= 1
        self.on_change: list[Callable[[], None]] = []
        self.matched = 0  # layers that patterns were matched with
        self._compiled = False  # some layers run where hooks see nothing
        acting.conditions = self._conditions

    def __call__(self) -> DebugHooks:
        return self

    # -- who ---------------------------------------------------------------------------------------------------------

    def register_hook(self, hook: Hook) -> int:
        if not isinstance(hook, Hook):
            raise UsageError(f"register_hook takes what HookBuilder(...).build() gives, not a {type(hook).__name__}")
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._hooks[number] = one = _Registered(number, hook)
            for layer, fitting in self._named.items():
                if hook.wants_layer(layer, layer in self._containers):
                    fitting.append(one)
        self._changed()
        if self.on_change:
            self._must_fit(one)
            self._must_see()
        return number

    def follow(self, refresh: Callable[[], None], *, compiled: bool = False) -> None:
        """Layers are told by somebody who knows them all, and wants to know when hooks come or go. `compiled`: some of
        them are in compiled code."""
        self.on_change.append(refresh)
        self._compiled = compiled
        for one in list(self._hooks.values()):
            self._must_fit(one)
        if self._hooks:
            self._must_see()

    def _must_see(self) -> None:
        if self._compiled:
            self._compiled = False
            self._acting.told("parts of this model are compiled: hooks do not see the layers in there")

    def closing(self) -> None:
        """A hook whose every moment passed unseen is told of."""
        for one in list(self._hooks.values()):
            trigger = one.hook.trigger
            always = isinstance(trigger, parts.Always) or trigger == HookTrigger.Once
            if always and one.enabled and not (one.acted or one.skipped):
                self._acting.told(
                    f"hook {one.hook.name!r} never acted: no layer it fits ran, or got a gradient, where hooks see it; "
                    "inside of torch.compile they see none"
                )

    def _must_fit(self, one: _Registered) -> None:
        """A hook that can never act is told of, with what it may have meant."""
        with self._lock:
            fits = any(one in fitting for fitting in self._named.values())
            known = list(self._named)
        if fits:
            return
        trigger = one.hook.trigger
        names = trigger.layers if isinstance(trigger, LayerSpecific) else ()
        asked = [re.sub(r"[^\w.]+", "", text.pattern) for text in one.hook.layer_patterns] or list(names)
        near = nearest(asked[0], known) if asked else []
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(known[:5])}"
        self._acting.told(f"hook {one.hook.name!r} fits no layer of this model; {hint}")

    def unregister_hook(self, hook_id: int) -> None:
        one = self._of(hook_id)
        with self._lock:
            del self._hooks[hook_id]
            for fitting in self._named.values():
                if one in fitting:
                    fitting.remove(one)
        self._changed()

    def enable_hook(self, hook_id: int, enabled: bool = True) -> None:
        one = self._of(hook_id)
        one.enabled, one.why = enabled, None
        self._changed()

    def disable_hook(self, hook_id: int) -> None:
        self.enable_hook(hook_id, False)

    def register_callback(self, name: str, callback: Callable[[HookContext], Any]) -> None:
        """For `HookAction.CustomCallback(name)`."""
        self._acting.callbacks[name] = callback

    def register_condition(self, name: str, condition: Callable[[HookContext], Any]) -> None:
        """For `HookCondition.Custom(name)`."""
        self._conditions[name] = condition

    def clear(self) -> None:
        with self._lock:
            self._hooks.clear()
            self._named.clear()
        self._changed()

    def _changed(self) -> None:
        with self._lock:
            self._plans.clear()
        for notice in list(self.on_change):
            notice()

    def _of(self, hook_id: int) -> _Registered:
        found = self._hooks.get(hook_id)
        if found is None:
            near = nearest(str(hook_id), map(str, self._hooks), 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {len(self._hooks)}"
            raise UsageError(f"no hook {hook_id!r}; {hint}")
        return found

    # -- what they have done -----------------------------------------------------------------------------------------

    def get_hook_stats(self, hook_id: int) -> HookStats:
        return self._of(hook_id).stats()

    def get_all_stats(self) -> dict[int, HookStats]:
        with self._lock:
            return {number: one.stats() for number, one in self._hooks.items()}

    @property
    def activations(self) -> dict[str, deque[TensorStats]]:
        """What `RecordActivations` has recorded, by layer, oldest first."""
        return self._acting.activations

    # -- acting ------------------------------------------------------------------------------------------------------

    def wants(self, layer: str, forward: bool, leaf: bool = True) -> bool:
        """Whether any acts there. On modules that hold others (`leaf` False) only those do that name them."""
        if not leaf:
            self._containers.add(layer)
        plan = self._plans.get(layer) or self._plan(layer)
        return bool(plan.forward if forward else plan.backward)

    def execute_hooks(
        self,
        layer: str,
        data: Any,
        shape: Sequence[int] | None = None,
        is_forward: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[tuple[int, HookResult]]:
        """By hand, after a layer. `metadata` may say `step`, `loss`, `gradient_norm` and `memory_mb`."""
        told = metadata or {}
        step = self._acting.step_of(layer, is_forward, told.get("step"))
        context = HookContext(layer, data, shape=shape, is_forward=is_forward, step=step)
        context.metadata = told
        return self.run(context)

    def run(self, context: HookContext) -> list[tuple[int, HookResult]]:
        plan = self._plans.get(context.layer) or self._plan(context.layer)
        chosen = plan.forward if context.is_forward else plan.backward
        if not chosen:
            return []
        context.ask = self._acting.know
        found = []
        for one in chosen:
            result = self._run(one, context)
            if result is not None:
                found.append((one.id, result))
        return found

    def saw(self, layer: str, raw: Any, forward: bool, step: int, took_ns: int) -> None:
        """Where `only_inspected(layer)`: what was measured there, once for all hooks."""
        plan = self._plans.get(layer)
        acts = False
        for one in () if plan is None else plan.forward if forward else plan.backward:
            if one.enabled and not one.spent():
                one.acted, one.last_step, acts = one.acted + 1, step, True
                one.spent_ns += took_ns
                if one.spent():
                    self._used_up()
        if acts:
            self._acting.inspector.later(raw, layer, "forward" if forward else "gradient", step)

    def only_inspected(self, layer: str) -> bool:
        """Whether nobody wants more of this layer than a look at every tensor."""
        plan = self._plans.get(layer) or self._plan(layer)
        return plan.quick

    def _used_up(self) -> None:
        if all(other.spent() or not other.enabled for other in self._hooks.values()):
            self._changed()  # nobody acts any more: whoever tells us of layers may go

    def _plan(self, layer: str) -> _Plan:
        with self._lock:
            if layer not in self._named:
                if len(self._named) >= MOST_LAYERS:
                    self._named.clear()
                inner = layer in self._containers
                self._named[layer] = [one for one in self._hooks.values() if one.hook.wants_layer(layer, inner)]
                self.matched += 1
            chosen = [one for one in self._named[layer] if one.enabled and not one.spent()]
            plan = _Plan(
                tuple(one for one in chosen if one.hook.trigger.forward),
                tuple(one for one in chosen if one.hook.trigger.backward),
                self._always and all(one.only_inspects for one in chosen),
            )
            if len(self._plans) >= MOST_LAYERS:
                self._plans.clear()
            self._plans[layer] = plan
            return plan

    def _run(self, one: _Registered, context: HookContext) -> HookResult | None:
        """None where it is not its moment."""
        if not one.enabled or one.spent():
            return None
        began = time.perf_counter_ns()
        held, why = attempt_or_why(partial(self._held, one, context))
        if why is None and held is False:
            return None
        result = HookResult.Error(why) if why is not None else held
        if result is True:
            result = self._act(one, context)
        if result.is_skipped:
            one.skipped += 1
        else:
            one.acted += 1
            one.last_step = context.step
            one.spent_ns += time.perf_counter_ns() - began
        if result.is_error:
            self._failed(one, result.message)
        elif one.spent():
            self._used_up()
        return result

    def _held(self, one: _Registered, context: HookContext) -> bool | HookResult:
        """True, False where it is not its moment, or why it is skipped."""
        trigger = one.hook.trigger.holds(context, one.acted)
        if trigger is False:
            return False
        if trigger is None:
            return HookResult.Skipped("what its trigger asks for is not known")
        for condition in one.hook.conditions:
            held = condition.holds(context)
            if held is None:
                return HookResult.Skipped(f"{condition.about} is not known")
            if not held:
                what = "its own condition" if isinstance(condition, Custom) else repr(condition)
                return HookResult.Skipped(f"{what} does not hold")
        return True

    def _act(self, one: _Registered, context: HookContext) -> HookResult:
        results = []
        for action in one.hook.actions:
            result, why = attempt_or_why(partial(self._acting.do, action, context, one.hook.name))
            results.append(HookResult.Error(why) if why is not None else result)
            if why is not None:
                break
        failed = [result for result in results if result.is_error]
        done = [result for result in results if result.is_success]
        return failed[0] if failed else done[0] if done else results[0]

    def _failed(self, one: _Registered, why: str) -> None:
        one.errors += 1
        one.enabled, one.why = False, why
        self._acting.told(f"hook {one.hook.name!r} failed: {why}; it acts no more, training continues")
        self._changed()
