"""Where a run can be held: after a layer, in its backward, after an update. Works for a gate that is wired in from
outside, and looks at nothing while that gate has nothing to stop at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn

from neuraldbg.capture.meant import Meant
from neuraldbg.capture.torch.alarms import Alarms
from neuraldbg.capture.torch.core import Core, now_ns
from neuraldbg.capture.torch.flops import flops_of
from neuraldbg.capture.torch.frames import let_go
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.shown import shown_tensor
from neuraldbg.capture.torch.stats import Measured, measurable, measure
from neuraldbg.capture.torch.sweep import Sweep
from neuraldbg.capture.torch.tree import Layer
from neuraldbg.records import Phase, Stop

ACTIVATION = ("mean_activation", "std_activation", "min_activation", "max_activation", "norm_activation")
GRADIENT = ("grad_mean", "grad_std", "grad_min", "grad_max", "grad_norm")
MB = 1e6
COMPILED = "layers of a compiled model cannot be stopped at; TORCHDYNAMO_DISABLE=1 before the command runs them eagerly"
MOST_HITS = 1000  # that are recorded
PASSES_TO_WAIT = 32  # before the first update; another model may come that has the layers somebody named


class Gate(Protocol):
    """What this side needs of the gate."""

    active: bool
    at_layers: bool
    breakpoints: Any
    kinds: Any
    on_event: Any
    pace: Any

    def found(self, kind: str, summary: str) -> None: ...

    def watched(self, site: int, phase: Phase) -> list[Any]: ...
    def follows_layers(self, *, from_its_start: bool = True) -> bool: ...
    def reached(self, stop: Stop, watched: list[Any]) -> None: ...
    def hold(self, stop: Stop, reasons: list[str]) -> None: ...
    def attended(self) -> bool: ...
    def say(self, text: str, /) -> None: ...


class Stops:
    def __init__(self, core: Core, hook: Any, gate: Gate, sweep: Sweep) -> None:
        self.core = core
        self.gate = gate
        self._sweep = sweep
        self._alarms = Alarms()
        if gate.kinds:
            self.watch_norms()
        self._hook = hook
        self.meant = Meant(core.recorder, gate)
        self._look_up = core.guard.shield("names of breakpoints")(self.meant.look_up)
        self._patience = PASSES_TO_WAIT  # for a model that has not run yet
        self._told_sync = self._told_compiled = False
        guard = core.guard
        self._forward = guard.shield("a breakpoint")(self._prepare)
        self._backward = guard.shield("a breakpoint in backward")(self._prepare_backward)
        self._updated = guard.shield("a breakpoint after an update")(self._prepare_update)
        self._reached = guard.inside("stopping")(gate.reached)  # an abort and Ctrl-C go through
        self._stay = guard.inside("holding")(gate.hold)
        core.take_part("pass_ended", "layers of breakpoints", self._pass_ended, rarely=True)  # new models are early
        self.tell_lost = guard.shield("layers of breakpoints")(self._tell_lost)
        self._hits = 0
        gate.on_event.append(self._keep_hit)
        gate.pace = lambda: (core.recorder.step, core.recorder.latest.get("step_time_s"))

    def _keep_hit(self, event: Mapping[str, Any]) -> None:
        """For a page that is opened later. So many: a breakpoint that only logs may be hit at every step."""
        if event.get("event") == "hit" and self._hits < MOST_HITS:
            self._hits += 1
            where = {name: event[name] for name in ("layer", "phase", "breakpoints")}
            self.core.recorder.fact("hit", at_step=event["step"], **where)

    def watch_norms(self) -> None:
        """From now on the gradient norms of every update are there when it is done."""
        self._sweep.keep_norms = self.core.budget.always_watch = True

    def _pass_ended(self, one: Pass, *_: Any) -> None:
        if self.meant.settled != len(self.core.recorder.sites):
            self.meant.look_up()
        if self.gate.at_layers and not self._told_compiled and one.compiled:
            self._told_compiled = True
            self.gate.say(COMPILED)
        self._patience = max(self._patience - 1, 0)
        if self._patience == 0:
            self._tell_lost()

    def _tell_lost(self, *_: Any) -> None:
        self._patience = 0
        if len(self.gate.breakpoints):
            self.meant.tell_lost()

    # -- a layer -------------------------------------------------------------------------------------------------------

    def layer_ran(self, module: nn.Module, one: Pass, values: tuple[Any, ...], duration_ns: int) -> None:
        """`values` = args, kwargs, output. Blocks where the gate says so."""
        self._look_up()
        prepared = self._forward(module, one, values, duration_ns)
        if prepared is not None:
            self._reach(*prepared)

    def _prepare(self, module: nn.Module, one: Pass, values: tuple[Any, ...], duration_ns: int) -> Any:
        layer = self.core.tree.find(module)
        if layer is None or layer.wrapper:
            return None
        gate = self.gate
        forward, backward = gate.watched(layer.site, Phase.FORWARD), gate.watched(layer.site, Phase.BACKWARD)
        whole = one.followed or not one.grad
        follow = gate.follows_layers(from_its_start=whole)
        known: dict[str, Any] = {"step": self.core.recorder.step, "execution_time": duration_ns / 1e9}
        if one.grad and (backward or (layer.leaf and whole)):  # a container's output is that of its last layer
            self._watch_gradient(layer, module, values, known)
        if not (forward or backward or follow):
            return None
        fill = partial(_fill_forward, known, module, values)
        if any(each.condition is not None for each in (*forward, *backward)):
            self._say_sync(values)
            fill()
        if not (forward or follow):
            return None
        return self._stop(
            layer, module, Phase.FORWARD, known, {"input": values[:2], "output": values[2]}, fill
        ), forward

    def _watch_gradient(self, layer: Layer, module: nn.Module, values: tuple[Any, ...], known: dict[str, Any]) -> None:
        output = next((t for t in tensors(values[2]) if t.requires_grad and t.grad_fn is not None), None)
        if output is None:
            return

        def arrived(gradient: Tensor | None) -> None:
            if gradient is None or not self.core.on or not self.gate.at_layers:
                return
            prepared = self._backward(layer, module, gradient, known)
            if prepared is not None:
                self._reach(*prepared)

        self._hook(output, arrived)

    def _prepare_backward(self, layer: Layer, module: nn.Module, gradient: Tensor, known: dict[str, Any]) -> Any:
        watched = self.gate.watched(layer.site, Phase.BACKWARD)
        if not watched and not self.gate.follows_layers():
            return None
        known = {**known, "step": self.core.recorder.step, "loss": self.core.recorder.latest.get("loss")}
        fill = partial(_fill_gradient, known, gradient)
        if any(each.condition is not None for each in watched):
            self._say_sync((gradient,))
            fill()
        return self._stop(layer, module, Phase.BACKWARD, known, {"gradient": gradient}, fill), watched

    # -- an update -----------------------------------------------------------------------------------------------------

    def update_done(self) -> None:
        prepared = self._updated()
        if prepared is not None:
            self._reach(*prepared)

    def _prepare_update(self) -> Any:
        core = self.core
        latest = core.recorder.latest
        step = max(core.recorder.step - 1, 0)
        known = {"step": step, "loss": latest.get("loss"), "lr": latest.get("lr"), "grad_norm": latest.get("grad_norm")}
        watched = list(
            {id(w): w for site in core.recorder.sites for w in self.gate.watched(site, Phase.UPDATE)}.values()
        )
        if self.gate.kinds:
            for kind, words in self._alarms.look(self._norms(), latest.get("loss")).items():
                self.gate.found(kind, words)
        return self._between_layers(step, known), watched

    def hold(self, reason: str) -> None:
        """Right here, whatever the breakpoints say."""
        recorder = self.core.recorder
        known = {"step": recorder.step, "loss": recorder.latest.get("loss")}
        stop = replace(self._between_layers(recorder.step, known), moment="before the update")
        with self._held(stop):
            self._stay(stop, [reason])

    def _between_layers(self, step: int, known: dict[str, Any]) -> Stop:
        frame = self.core.recorder.frames.user_frame(3)
        line = self._line(frame)
        return Stop(step, Phase.UPDATE, None, -1, known, describe=self._describe, frame=frame, source=line)

    def _norms(self) -> dict[int, tuple[float, int, int]]:
        return {site: (float(norm), count, dims) for site, (norm, count, dims) in self._sweep.norms.items()}

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _stop(
        self, layer: Layer, module: nn.Module, phase: Phase, known: dict[str, Any], held: Mapping[str, Any], fill: Any
    ) -> Stop:
        frame = self.core.recorder.frames.user_frame(3)
        name = self.meant.names().canonical(layer.site)
        return Stop(
            known["step"],
            phase,
            name,
            layer.site,
            known,
            partial(_tensors, module, held),
            self._describe,
            fill,
            frame,
            self._line(frame),
        )

    def _line(self, frame: Any) -> str | None:
        return (
            None if frame is None else f"{self.core.recorder.frames.display(frame.f_code.co_filename)}:{frame.f_lineno}"
        )

    def _reach(self, stop: Stop, watched: list[Any]) -> None:
        """Outside of every shield: the user's own state, and an abort goes through."""
        with self._held(stop):
            self._reached(stop, watched)

    @contextmanager
    def _held(self, stop: Stop) -> Iterator[None]:
        """The time that passes inside is neither the training's nor ours."""
        begin = now_ns()
        try:
            yield
        finally:
            held = now_ns() - begin
            self.core.own_ns += held
            self.core.held_ns += held
            if self.core.trainers > 1:
                self.core.here.local.shift(held)
            self.core.budget.held(held)
            if stop.frame is not None:
                let_go(stop.frame)

    def _describe(self, stop: Stop, kind: str, layer: str | None, part: str | None) -> dict[str, Any]:
        tensor = self.meant.tensor(stop, kind, layer, self._owned)
        return {**stop.place(), "layer": layer or stop.layer, "kind": kind, **shown_tensor(tensor, part)}

    def _owned(self, site: int) -> dict[str, Any] | None:
        found = self._module(site)
        return None if found is None else _tensors(found, {})

    def _module(self, site: int) -> nn.Module | None:
        for root, _ in self.core.tree.models.items():
            for module in nn.Module.modules(root):
                layer = self.core.tree.find(module)
                if layer is not None and layer.site == site:
                    return module
        return None

    def _say_sync(self, values: Any) -> None:
        if not self._told_sync and any(t.is_cuda for t in tensors(values)):
            self._told_sync = True
            self.gate.say("a condition on a layer that runs on the GPU waits for the GPU at every execution")


def _tensors(module: nn.Module, held: Mapping[str, Any]) -> dict[str, Any]:
    """By the names people use; only what is there."""
    found: dict[str, Any] = {}
    for name, value in held.items():
        first = next(iter(tensors(value)), None)
        if first is not None:
            found[name] = first
    for name, parameter in module.named_parameters(recurse=False):
        found[name] = parameter.detach()
        if parameter.grad is not None:
            found[f"{name}.grad"] = parameter.grad
    return found


def _measured(tensor: Tensor | None) -> Measured | None:
    if tensor is None or not measurable(tensor):
        return None
    return measure(tensor if tensor.device.type == "cpu" else tensor.detach().cpu())


def _fill_forward(known: dict[str, Any], module: nn.Module, values: tuple[Any, ...]) -> None:
    if "mean_activation" in known:
        return
    outputs = [t for t in tensors(values[2]) if measurable(t)]
    known["memory"] = sum(t.numel() * t.element_size() for t in outputs) / MB
    first = outputs[0] if outputs else None
    known["flops"] = None if first is None else flops_of(module, next(iter(tensors(values[0])), None), first)
    measured = _measured(first)
    if measured is not None:
        known.update(zip(ACTIVATION, measured[1:6], strict=True))
        known["zero_ratio"] = known["dead_ratio"] = measured[6] / measured[0] if measured[0] else None
        known["nan_count"], known["inf_count"] = measured[7], measured[8]


def _fill_gradient(known: dict[str, Any], gradient: Tensor) -> None:
    measured = _measured(gradient) if "grad_norm" not in known else None
    if measured is not None:
        known.update(zip(GRADIENT, measured[1:6], strict=True))
        known["grad_nan_count"], known["grad_inf_count"] = measured[7], measured[8]
