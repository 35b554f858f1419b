"""One model in training: its layers, parameters and optimizer as sites, and every step of it as rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.capture.keras.alert import UNSEEN as UNSEEN_NAN
from neuraldbg.capture.keras.alert import stop_if_not_finite
from neuraldbg.capture.keras.feed import can_feed, feed
from neuraldbg.capture.keras.models import (
    count_of,
    is_plain,
    layers_of,
    loss_name,
    plain_type,
    rate_of,
    samples_seen,
    size_of,
)
from neuraldbg.capture.keras.probes.specimen import Specimen
from neuraldbg.capture.keras.rerun import RerunJax, Seen, rerun_tensorflow
from neuraldbg.capture.keras.running_loss import RunningLoss
from neuraldbg.capture.keras.stops import COMPILED, UNSEEN
from neuraldbg.capture.keras.units import Units
from neuraldbg.capture.keras.values import dense, measured, value_of
from neuraldbg.capture.resources import rss_bytes
from neuraldbg.records import Call, Kind, Phase, SiteKind

if TYPE_CHECKING:
    from neuraldbg.capture.keras.attach import KerasCapture

MOST_COPIED = 2**30  # bytes of weights that are copied to see how far they moved
now_ns = time.perf_counter_ns


class Training:
    """Rows of one model. Made when Keras makes its train function."""

    def __init__(self, model: Any, capture: KerasCapture) -> None:
        self.capture = capture
        self.name = str(model.name)
        self.recorder = capture.recorder
        self.layer_sites: dict[int, int] = {}  # id of a layer -> site
        self.parameter_sites: dict[int, int] = {}  # id of a variable -> site
        self._mean = RunningLoss()
        self.specimen, self.units = Specimen(), Units(self.recorder)
        # step, mean loss, samples, learning rate: read when the next step begins
        self._pending: tuple[int, Any, Any, Any] | None = None
        self._last_rate = float("nan")
        self._own_loss: tuple[int, Any] | None = None  # step, loss: of a step that was looked at
        self.passes = 0
        self._ended_ns: int | None = None
        self._own_ns = 0
        self._jax: RerunJax | None = None
        self.looks_inside = is_plain(model)
        self._told_own = False
        self._looking = False  # the clock of our own time runs
        self._held_ns = 0  # of the step that runs: a breakpoint kept it waiting
        self.site = self.optimizer = -1  # until the model has its variables
        self._recompiled = False
        self._optimizers: dict[int, int] = {}  # id of an optimizer -> site: of those that a loop of the user's uses
        guard = capture.guard
        self._can_feed = guard.shield("batches", lambda *_: self.name)(can_feed)
        self._before = guard.shield("steps", lambda *_: self.name)(self._begin)
        self._after = guard.shield("updates", lambda *_: self.name)(self._end)
        self._look = guard.shield("the inside of steps", lambda *_: self.name)(self._look_inside)
        self.describe(model)

    # -- what there is ---------------------------------------------------------------------------------------------

    def describe(self, model: Any) -> None:
        """As soon as it has its variables: a model without a known input gets them in its first step."""
        if model is None or not getattr(model, "built", True):
            return
        if self.site < 0:
            self.site = self._write_model(model)
        if self._recompiled:
            self._recompiled = False
            self._write_compiled(model)

    def _write_model(self, model: Any) -> int:
        recorder = self.recorder
        source = recorder.frames.line()
        total = count_of(model.weights)
        site = recorder.add_site(self.name, SiteKind.MODEL, op=type(model).__name__, source=source, parameters=total)
        trainable = count_of(model.trainable_weights)
        told = {"class": type(model).__name__, "name": self.name, "parameters": total, "trainable": trainable}
        recorder.fact("model", site=site, source=source, wrapper=None, **told)
        for path, layer in layers_of(model, ""):
            if id(layer) in self.layer_sites:
                continue
            own = [*layer._trainable_variables, *layer._non_trainable_variables]
            self.layer_sites[id(layer)] = recorder.add_site(
                path, SiteKind.MODULE, op=type(layer).__name__, model=site, parameters=count_of(own), defined=None
            )
            for variable in own:
                self._write_parameter(site, f"{path}.{variable.name}", variable)
        for variable in model.trainable_variables:
            if id(variable) not in self.parameter_sites:
                self._write_parameter(site, variable.path.partition("/")[2].replace("/", "."), variable)
        return site

    def _write_parameter(self, model_site: int, path: str, variable: Any) -> None:
        if id(variable) in self.parameter_sites or not np.issubdtype(np.dtype(plain_type(variable)), np.floating):
            return
        self.parameter_sites[id(variable)] = self.recorder.add_site(
            path,
            SiteKind.PARAMETER,
            op=None if variable.trainable else "frozen",
            model=model_site,
            shape=tuple(variable.shape),
            dtype=str(variable.dtype),
            parameters=size_of(variable),
        )

    def compiled_again(self, model: Any) -> None:
        """`compile` may have given it another optimizer."""
        self._recompiled = True
        self.describe(model)

    def _write_compiled(self, model: Any) -> None:
        if not self.looks_inside and not model.run_eagerly and not self._told_own:
            self._told_own = True
            if self.capture.stop_on_nan:
                self.recorder.note("warning", UNSEEN_NAN.format(name=self.name))
            told = "its layers and gradients are not looked at (run_eagerly=True in compile() shows them)"
            self.recorder.note("info", f"{self.name} has a train_step of its own, and it is compiled: {told}")
        if model.optimizer is not None:
            self._write_optimizer(model.optimizer, model.trainable_variables, loss_name(model))

    def optimizer_met(self, optimizer: Any, variables: list[Any], loss: str) -> None:
        """One that a loop of the user's applies; known by itself, since nothing says which belongs to a model."""
        if id(optimizer) not in self._optimizers:
            self._write_optimizer(optimizer, variables, loss)
            self._optimizers[id(optimizer)] = self.optimizer
        self.optimizer = self._optimizers[id(optimizer)]

    def _write_optimizer(self, optimizer: Any, variables: list[Any], loss: str) -> None:
        recorder = self.recorder
        kind, source = type(optimizer).__name__, recorder.frames.line()
        site = recorder.add_site(str(optimizer.name), SiteKind.OPTIMIZER, op=kind, source=source)
        self._last_rate = float(np.asarray(rate_of(optimizer)))
        settings = {k: v for k, v in optimizer.get_config().items() if isinstance(v, bool | int | float | str)}
        group = {**settings, "lr": self._last_rate, "parameters": len(variables)}
        mine = [self.parameter_sites[id(v)] for v in variables if id(v) in self.parameter_sites]
        told = {"class": kind, "name": str(optimizer.name), "groups": [group], "parameter_sites": mine}
        recorder.fact("optimizer", site=site, unknown_parameters=0, source=source, **told)
        self.optimizer = site
        self.capture.budget.newcomer()
        recorder.fact("loss", kinds=[loss], source=source)

    # -- a step ----------------------------------------------------------------------------------------------------

    def tensorflow_step(self, function: Callable[..., Any], iterator: Any) -> Any:
        model = function_owner(self.capture, self)
        full, data = self._wanted(model) and bool(self._can_feed(iterator)), None
        if full:
            data = next(iterator)  # its end is the end of the epoch, for Keras as for us
            iterator = feed(data, iterator)
        kept = self._before(model, data, None) if full else None
        began = now_ns()
        with self._running(model, looked=full):
            logs = function(iterator)
        self._after(model, began, logs, kept, None)
        self._stop_after()
        return logs

    def jax_step(self, function: Callable[..., Any], state: Any, iterator: Any) -> Any:
        model = function_owner(self.capture, self)
        full, data = self._wanted(model), None
        if full:
            data = next(iterator)
            iterator = iter([data])
        kept = self._before(model, data, state) if full else None
        began = now_ns()
        with self._running(model, looked=full):
            logs, after = function(state, iterator)
        self._after(model, began, logs, kept, after)
        self._stop_after()
        return logs, after

    def _wanted(self, model: Any) -> bool:
        """Whether the next step is looked at: as the budget has it, and while layers are places to stop at."""
        stops = self.capture.stops
        asked = self.capture.budget.full or self.capture.stop_on_nan or (stops is not None and stops.at_layers)
        return bool(asked and model is not None and model.built and model.steps_per_execution == 1)

    @contextmanager
    def _running(self, model: Any, *, looked: bool) -> Iterator[None]:
        """Around a step of Keras: one of the user's own that runs eagerly is looked into as it goes."""
        stops, own = self.capture.stops, model is not None and model.run_eagerly and not self.looks_inside
        self._held_ns = 0
        if stops is not None and stops.at_layers and not own and not (looked and self.looks_inside):
            why = "its batches cannot be looked at" if self.looks_inside else "its train_step is its own, and compiled"
            stops.say_once(UNSEEN.format(name=self.name, why=why))
        with self.capture.loops.aside(self if own else None):
            if stops is None or not own:
                yield
            else:
                with stops.inside(self, as_it_runs=True):
                    yield

    def _stop_after(self) -> None:
        if self.capture.stops is not None:
            self.capture.stops.step_done(self)

    def held(self, held_ns: int) -> None:
        """A breakpoint kept the training waiting: neither its time nor ours."""
        self.capture.budget.held(held_ns)
        if not self._looking:
            self._own_ns += held_ns
            self._held_ns += held_ns

    def spent(self, own_ns: int) -> None:
        self._own_ns += own_ns

    @property
    def rate(self) -> float:
        return self._last_rate

    def _begin(self, model: Any, data: Any, state: Any) -> list[tuple[int, NDArray[Any]]] | None:
        """Before a step that is looked at: what it will compute, and the weights as they are."""
        start, self._looking = now_ns(), True
        try:
            self.settle()
            if self.looks_inside:
                seen = self._look(model, data, state)
                if seen is not None:
                    self._write_seen(model, seen)
                    if self.capture.stop_on_nan:
                        stop_if_not_finite(seen, self.recorder.step, self._path_of)
                    self.specimen.see(model, data, state, first=self.passes == 0, rate=self._last_rate)
            values = [v.value for v in model.trainable_variables] if state is None else state[0]
            return self.copies(model.trainable_variables, values)
        finally:
            self._looking = False
            self._own_ns += now_ns() - start
            if not self.capture.budget.full:
                self.capture.budget.set_aside(now_ns() - start)

    def asked_for(self, site: int) -> bool:
        """By `--layers`."""
        wanted, known = self.capture.wanted, self.recorder.sites[site]
        return wanted is None or wanted(known.path, str(known.op))

    def _path_of(self, layer: Any) -> str | None:
        site = self.layer_sites.get(id(layer))
        return None if site is None else self.recorder.sites[site].path

    def copies(self, variables: list[Any], values: list[Any]) -> list[tuple[int, NDArray[Any]]]:
        """Weights as they are before an update, by their sites."""
        kept, room = [], MOST_COPIED
        for variable, value in zip(variables, values, strict=True):
            site = self.parameter_sites.get(id(variable))
            room -= size_of(variable) * 4
            if site is not None and room >= 0:
                kept.append((site, np.array(value)))
        return kept

    def _look_inside(self, model: Any, data: Any, state: Any) -> Seen:
        stops = self.capture.stops
        if stops is None or not stops.at_layers:
            return self._computed(model, data, state, stopping=False)
        if not model.run_eagerly:
            stops.say_once(COMPILED.format(name=self.name))
        with stops.inside(self, as_it_runs=model.run_eagerly):
            seen = self._computed(model, data, state, stopping=True)
        stops.gradients(self, seen)
        return seen

    def _computed(self, model: Any, data: Any, state: Any, *, stopping: bool) -> Seen:
        with self.capture.loops.aside():
            if state is None:
                return rerun_tensorflow(model, data, self.capture.calls)
            if self._jax is None:
                self._jax = RerunJax(model, self.capture.calls)
            return self._jax(state, data, eagerly=stopping)

    def _write_seen(self, model: Any, seen: Seen) -> None:
        recorder, slots = self.recorder, dict[int, int]()
        self._own_loss = (recorder.step, seen.loss)
        self.units.look(seen.layers, self.layer_sites)
        for (layer, output), gradient in zip(seen.layers, seen.layer_gradients, strict=True):
            site = self.layer_sites.get(id(layer))
            if site is None or not self.asked_for(site):
                continue
            slot = slots[site] = slots.get(site, -1) + 1
            for kind, phase, value in (
                (Kind.ACTIVATION, Phase.FORWARD, output),
                (Kind.GRADIENT, Phase.BACKWARD, gradient),
            ):
                row = measured(value)
                if row is not None:
                    recorder.stats(site, (kind, phase, slot, self.passes), row)
        self.write_gradients(model.trainable_variables, seen.gradients)

    def write_gradients(self, variables: list[Any], gradients: list[Any]) -> None:
        total = 0.0
        for variable, gradient in zip(variables, gradients, strict=True):
            site, row = self.parameter_sites.get(id(variable)), measured(dense(gradient))
            if site is not None and row is not None:
                self.recorder.stats(site, (Kind.GRADIENT, Phase.UPDATE, 0, -1), row)
                total += row[5] ** 2 if row[7] + row[8] == 0 else float("nan")
        self.recorder.scalar("grad_norm", total**0.5)

    def _end(self, model: Any, began: int, logs: Any, kept: Any, state: Any) -> None:
        """After a step: how far the weights moved, the loss of the step before, and the books."""
        end = now_ns()
        recorder = self.recorder
        self.describe(model)
        self._write_calls(end - began - self._held_ns)
        if kept:
            values = [v.value for v in model.trainable_variables] if state is None else state[0]
            self._write_moved(kept, model.trainable_variables, values)
        if isinstance(logs, dict) and "loss" in logs and model is not None:
            samples = samples_seen(model, state) if self.looks_inside else None
            newer = rate_of(model.optimizer, state) if kept else None  # between looks the last one known
            self._pending = (recorder.step, logs["loss"], samples, newer)
        self._books(began, end)

    def loop_step(self, began: int, loss: Any, moved: tuple[list[Any], list[Any]], optimizer: Any) -> None:
        """The same for a step of the user's own; `moved` = its variables, and copies of them where it was looked at."""
        end, (variables, kept) = now_ns(), moved
        self._write_calls(end - began - self._held_ns)
        if kept:
            self._write_moved(kept, variables, [value_of(each) for each in variables])
        rate = rate_of(optimizer) if kept else None
        self._pending = None if loss is None else (self.recorder.step, loss, None, rate)
        self._books(began, end)
        self._held_ns = 0

    def _write_calls(self, duration_ns: int) -> None:
        recorder = self.recorder
        self.settle()
        recorder.call(Call.PASS, self.site, value=1.0, aux=1.0, pass_id=self.passes)
        recorder.call(Call.PASS_TRAIN, self.site, pass_id=self.passes)
        recorder.call(Call.BACKWARD, -1)
        recorder.call(Call.STEP, self.optimizer, value=self._last_rate, duration_ns=duration_ns)

    def _books(self, began: int, end: int) -> None:
        recorder, budget = self.recorder, self.capture.budget
        recorder.scalar("step_time_s", (end - began - self._held_ns) / 1e9)
        self.passes += 1
        recorder.step += 1
        done = now_ns()
        own = self._own_ns + done - end
        started = self._ended_ns or began - self._own_ns
        budget.loss_told(recorder.latest.get("loss"))
        budget.step_done(wall_ns=done - started, own_ns=own)
        self._own_ns, self._ended_ns = 0, done
        self.capture.step_done()

    def _write_moved(self, kept: list[tuple[int, NDArray[Any]]], variables: list[Any], values: list[Any]) -> None:
        host = rss_bytes()
        if host is not None:
            self.recorder.scalar("rss_bytes", float(host))
        after = {
            self.parameter_sites[id(variable)]: value
            for variable, value in zip(variables, values, strict=True)
            if id(variable) in self.parameter_sites
        }
        for site, before in kept:
            now = np.asarray(after[site])
            for kind, value in ((Kind.PARAMETER, now), (Kind.UPDATE, now - before)):
                row = measured(value)
                if row is not None:
                    self.recorder.stats(site, (kind, Phase.UPDATE, 0, -1), row)

    def settle(self) -> None:
        """The loss of the last step, which has been computed by now: nobody waits for it."""
        if self._pending is None:
            return
        step, mean, samples, rate = self._pending
        self._pending = None
        if rate is not None:
            self._last_rate = float(np.asarray(rate))
            self.recorder.scalar("lr", self._last_rate, step=step)
        value: float | None = float(np.asarray(mean))
        if samples is not None and value is not None:
            value = self._mean.of_batch(value, float(np.asarray(samples)))
        if self._own_loss is not None and self._own_loss[0] == step:
            value = float(np.asarray(self._own_loss[1]))
        if value is not None:
            self.specimen.told(value)
            self.recorder.scalar("loss", value, step=step)

    def finish(self) -> None:
        self.settle()
        self.units.finish()


def function_owner(capture: KerasCapture, training: Training) -> Any:
    """The model of a training, while it lives."""
    return next((model for model, one in capture.trainings.items() if one is training), None)
