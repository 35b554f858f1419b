"""Where a training with Keras can be held: after a layer, in its backward, after an update.

A step that Keras compiles has no layers to stop at, and neither TensorFlow nor JAX stops in a backward pass. While
layers are asked for, every step is computed once more before it runs, layer by layer, from the same weights, batch and
random state (`rerun.py`), and held there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from neuraldbg.capture.keras.rerun import Seen
from neuraldbg.capture.keras.values import concrete, fill_gradient, fill_output, first_of, shown
from neuraldbg.capture.meant import Meant
from neuraldbg.capture.torch.frames import let_go
from neuraldbg.records import Phase, Stop

if TYPE_CHECKING:
    from neuraldbg.capture.keras.attach import KerasCapture
    from neuraldbg.capture.keras.training import Training

MOST_HITS = 1000  # that are recorded
COMPILED = "{name} is compiled: it is held while each step is computed once more, layer by layer, just before it runs"
UNSEEN = "layers of {name} cannot be stopped at: {why}; model.compile(..., run_eagerly=True) runs them one by one"


class Stops:
    """Works for a gate that is wired in from outside, and looks at nothing while it has nothing to stop at."""

    def __init__(self, capture: KerasCapture, gate: Any) -> None:
        self.capture, self.gate = capture, gate
        self._meant: Meant | None = None
        self._now: tuple[Training, bool] | None = None  # whose layers run; whether as the step itself runs them
        self._told: set[str] = set()
        self._hits = 0
        guard = capture.guard
        self._prepared = guard.shield("a breakpoint")(self._prepare)
        self._prepared_gradient = guard.shield("a breakpoint in backward")(self._prepare_gradient)
        self._prepared_update = guard.shield("a breakpoint after an update")(self._prepare_update)
        self._reached = guard.inside("stopping")(gate.reached)  # an abort and Ctrl-C go through
        gate.on_event.append(self._keep_hit)

    @property
    def meant(self) -> Meant:
        if self._meant is None:
            self._meant = Meant(self.capture.recorder, self.gate)
        return self._meant

    @property
    def at_layers(self) -> bool:
        return bool(self.gate.at_layers)

    @property
    def open(self) -> bool:
        """Whether layers that run now are places to stop at."""
        return self._now is not None

    def _keep_hit(self, event: Mapping[str, Any]) -> None:
        """For a page that is opened later. So many: a breakpoint that only logs may be hit at every step."""
        if event.get("event") == "hit" and self._hits < MOST_HITS:
            self._hits += 1
            where = {name: event[name] for name in ("layer", "phase", "breakpoints")}
            self.capture.recorder.fact("hit", at_step=event["step"], **where)

    def say_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.gate.say(text)

    # -- layers --------------------------------------------------------------------------------------------------------

    @contextmanager
    def inside(self, training: Training, *, as_it_runs: bool) -> Iterator[None]:
        """From here on the layers of a training are places to stop at."""
        before, self._now = self._now, (training, as_it_runs)
        try:
            yield
        finally:
            self._now = before

    def layer_ran(self, layer: Any, args: Any, output: Any, duration_ns: int) -> None:
        """Blocks where the gate says so."""
        if self._now is None:
            return
        training, as_it_runs = self._now
        prepared = self._prepared(training, layer, (args, output), duration_ns if as_it_runs else None)
        if prepared is not None:
            self._reach(training, *prepared)

    def _prepare(self, training: Training, layer: Any, values: tuple[Any, Any], duration_ns: int | None) -> Any:
        site, output = training.layer_sites.get(id(layer)), first_of(values[1])
        if site is None or output is None:
            return None
        self.meant.look_up()
        watched = self.gate.watched(site, Phase.FORWARD)
        if not watched and not self.gate.follows_layers():
            return None
        time = None if duration_ns is None else duration_ns / 1e9
        known = {"step": self.capture.recorder.step, "execution_time": time}
        fill = partial(fill_output, known, output)
        if any(each.condition is not None for each in watched):
            fill()
        held = {"input": first_of(values[0]), "output": output}
        return self._stop(site, Phase.FORWARD, known, partial(_tensors, layer, held), fill), watched

    def gradients(self, training: Training, seen: Seen) -> None:
        """The backward pass of a step that was computed once more: its last layer first."""
        for (layer, _), gradient in reversed(list(zip(seen.layers, seen.layer_gradients, strict=True))):
            if not self.gate.at_layers:
                return
            prepared = self._prepared_gradient(training, layer, gradient, seen.loss)
            if prepared is not None:
                self._reach(training, *prepared)

    def _prepare_gradient(self, training: Training, layer: Any, gradient: Any, loss: Any) -> Any:
        site = training.layer_sites.get(id(layer))
        if site is None or concrete(gradient) is None:
            return None
        self.meant.look_up()
        watched = self.gate.watched(site, Phase.BACKWARD)
        if not watched and not self.gate.follows_layers():
            return None
        known: dict[str, Any] = {"step": self.capture.recorder.step, "loss": float(loss)}
        fill = partial(fill_gradient, known, gradient)
        if any(each.condition is not None for each in watched):
            fill()
        return self._stop(site, Phase.BACKWARD, known, partial(_tensors, layer, {"gradient": gradient}), fill), watched

    # -- updates -------------------------------------------------------------------------------------------------------

    def step_done(self, training: Training) -> None:
        if not self.gate.active:
            return
        prepared = self._prepared_update(training)
        if prepared is not None:
            self._reach(training, *prepared)

    def _prepare_update(self, training: Training) -> Any:
        recorder = self.capture.recorder
        self.meant.look_up()
        self.meant.tell_lost()
        training.settle()
        known: dict[str, Any] = {"step": recorder.step - 1, "lr": training.rate}
        known |= {name: recorder.latest.get(name) for name in ("loss", "grad_norm")}
        watched = {id(w): w for site in recorder.sites for w in self.gate.watched(site, Phase.UPDATE)}
        return self._stop(-1, Phase.UPDATE, known, dict, None), list(watched.values())

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _stop(self, site: int, phase: Phase, known: dict[str, Any], tensors: Any, fill: Any) -> Stop:
        frames = self.capture.recorder.frames
        frame = frames.user_frame(3)
        line = None if frame is None else f"{frames.display(frame.f_code.co_filename)}:{frame.f_lineno}"
        name = None if site < 0 else self.meant.names().canonical(site)
        return Stop(known["step"], phase, name, site, known, tensors, self._describe, fill, frame, line)

    def _reach(self, training: Training, stop: Stop, watched: list[Any]) -> None:
        """Outside of every shield: an abort goes through. The time that passes is neither the training's nor ours."""
        begin = self.capture.now_ns()
        try:
            self._reached(stop, watched)
        finally:
            training.held(self.capture.now_ns() - begin)
            if stop.frame is not None:
                let_go(stop.frame)

    def _describe(self, stop: Stop, kind: str, layer: str | None, part: str | None) -> dict[str, Any]:
        tensor = self.meant.tensor(stop, kind, layer, self._owned)
        return {**stop.place(), "layer": layer or stop.layer, "kind": kind, **shown(tensor, part)}

    def _owned(self, site: int) -> dict[str, Any] | None:
        found = self.capture.layer_of(site)
        return None if found is None else _tensors(found, {})


def _tensors(layer: Any, held: Mapping[str, Any]) -> dict[str, Any]:
    """By the names people use; only what is there."""
    found = {name: concrete(value) for name, value in held.items() if concrete(value) is not None}
    for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
        value = concrete(variable.value)
        if value is not None:
            found[str(variable.name)] = value
    return found
