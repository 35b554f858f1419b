"""One model in training: its layers, parameters and optimizer as sites, and every step of it as rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from numpy.typing import NDArray

from neuraldbg.capture.keras.feed import can_feed, feed
from neuraldbg.capture.keras.rerun import RerunJax, Seen, rerun_tensorflow
from neuraldbg.capture.kernels.twin import row_of
from neuraldbg.capture.resources import rss_bytes
from neuraldbg.records import Call, Kind, Phase, SiteKind

if TYPE_CHECKING:
    from neuraldbg.capture.keras.attach import KerasCapture

FLOAT32 = 2.0**-23
UNSURE = 0.01  # of a loss that is worked out from two means
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
        self._running = RunningLoss()
        # step, mean loss, samples, learning rate: read when the next step begins
        self._pending: tuple[int, Any, Any, Any] | None = None
        self._last_rate = float("nan")
        self._own_loss: tuple[int, Any] | None = None  # step, loss: of a step that was looked at
        self._passes = 0
        self._ended_ns: int | None = None
        self._own_ns = 0
        self._jax: RerunJax | None = None
        self._looks_inside = _is_plain(model)
        self.site = self._write_model(model)
        self.optimizer = -1
        guard = capture.guard
        self._can_feed = guard.shield("batches", lambda *_: self.name)(can_feed)
        self._before = guard.shield("steps", lambda *_: self.name)(self._begin)
        self._after = guard.shield("updates", lambda *_: self.name)(self._end)
        self._look = guard.shield("the inside of steps", lambda *_: self.name)(self._look_inside)
        if not self._looks_inside:
            self.recorder.note(
                "info", f"{self.name} has a train_step of its own: its layers and gradients are not looked at"
            )

    # -- what there is ---------------------------------------------------------------------------------------------

    def _write_model(self, model: Any) -> int:
        recorder = self.recorder
        source = recorder.frames.line()
        total = _count(model.weights)
        site = recorder.add_site(self.name, SiteKind.MODEL, op=type(model).__name__, source=source, parameters=total)
        trainable = _count(model.trainable_weights)
        told = {"class": type(model).__name__, "name": self.name, "parameters": total, "trainable": trainable}
        recorder.fact("model", site=site, source=source, wrapper=None, **told)
        for path, layer in _layers(model, ""):
            if id(layer) in self.layer_sites:
                continue
            own = [*layer._trainable_variables, *layer._non_trainable_variables]
            self.layer_sites[id(layer)] = recorder.add_site(
                path, SiteKind.MODULE, op=type(layer).__name__, model=site, parameters=_count(own), defined=None
            )
            for variable in own:
                self._write_parameter(site, f"{path}.{variable.name}", variable)
        for variable in model.trainable_variables:
            if id(variable) not in self.parameter_sites:
                self._write_parameter(site, variable.path.partition("/")[2].replace("/", "."), variable)
        return site

    def _write_parameter(self, model_site: int, path: str, variable: Any) -> None:
        if id(variable) in self.parameter_sites or not np.issubdtype(np.dtype(_plain_type(variable)), np.floating):
            return
        self.parameter_sites[id(variable)] = self.recorder.add_site(
            path,
            SiteKind.PARAMETER,
            op=None if variable.trainable else "frozen",
            model=model_site,
            shape=tuple(variable.shape),
            dtype=str(variable.dtype),
            parameters=_size(variable),
        )

    def compiled_again(self, model: Any) -> None:
        """`compile` may have given it another optimizer."""
        optimizer, recorder = model.optimizer, self.recorder
        if optimizer is None:
            return
        kind, source = type(optimizer).__name__, recorder.frames.line()
        site = recorder.add_site(str(optimizer.name), SiteKind.OPTIMIZER, op=kind, source=source)
        self._last_rate = float(np.asarray(_rate(optimizer)))
        settings = {k: v for k, v in optimizer.get_config().items() if isinstance(v, bool | int | float | str)}
        group = {**settings, "lr": self._last_rate, "parameters": len(model.trainable_variables)}
        mine = [self.parameter_sites[id(v)] for v in model.trainable_variables if id(v) in self.parameter_sites]
        told = {"class": kind, "name": str(optimizer.name), "groups": [group], "parameter_sites": mine}
        recorder.fact("optimizer", site=site, unknown_parameters=0, source=source, **told)
        self.optimizer = site
        self.capture.budget.newcomer()
        recorder.fact("loss", kinds=[_loss_name(model)], source=source)

    # -- a step ----------------------------------------------------------------------------------------------------

    def tensorflow_step(self, function: Callable[..., Any], iterator: Any) -> Any:
        model = function_owner(self.capture, self)
        full = self.capture.budget.full and model is not None and model.steps_per_execution == 1
        full, data = bool(full and self._can_feed(iterator)), None
        if full:
            data = next(iterator)  # its end is the end of the epoch, for Keras as for us
            iterator = feed(data, iterator)
        kept = self._before(model, data, None) if full else None
        began = now_ns()
        logs = function(iterator)
        self._after(model, began, logs, kept, None)
        return logs

    def jax_step(self, function: Callable[..., Any], state: Any, iterator: Any) -> Any:
        model = function_owner(self.capture, self)
        full = self.capture.budget.full and model is not None and model.steps_per_execution == 1
        data = None
        if full:
            data = next(iterator)
            iterator = iter([data])
        kept = self._before(model, data, state) if full else None
        began = now_ns()
        logs, after = function(state, iterator)
        self._after(model, began, logs, kept, after)
        return logs, after

    def _begin(self, model: Any, data: Any, state: Any) -> list[tuple[int, NDArray[Any]]] | None:
        """Before a step that is looked at: what it will compute, and the weights as they are."""
        start = now_ns()
        self._settle()
        if self._looks_inside:
            seen = self._look(model, data, state)
            if seen is not None:
                self._write_seen(model, seen)
        values = [v.value for v in model.trainable_variables] if state is None else state[0]
        kept: list[tuple[int, NDArray[Any]]] = []
        room = MOST_COPIED
        for variable, value in zip(model.trainable_variables, values, strict=True):
            site = self.parameter_sites.get(id(variable))
            room -= _size(variable) * 4
            if site is not None and room >= 0:
                kept.append((site, np.array(value)))
        self._own_ns += now_ns() - start
        return kept

    def _look_inside(self, model: Any, data: Any, state: Any) -> Seen:
        if state is None:
            return rerun_tensorflow(model, data, self.capture.calls)
        if self._jax is None:
            self._jax = RerunJax(model, self.capture.calls)
        return self._jax(state, data)

    def _write_seen(self, model: Any, seen: Seen) -> None:
        recorder, slots = self.recorder, dict[int, int]()
        self._own_loss = (recorder.step, seen.loss)
        for (layer, output), gradient in zip(seen.layers, seen.layer_gradients, strict=True):
            site = self.layer_sites.get(id(layer))
            if site is None:
                continue
            slot = slots[site] = slots.get(site, -1) + 1
            for kind, phase, value in (
                (Kind.ACTIVATION, Phase.FORWARD, output),
                (Kind.GRADIENT, Phase.BACKWARD, gradient),
            ):
                row = _measured(value)
                if row is not None:
                    recorder.stats(site, (kind, phase, slot, self._passes), row)
        total = 0.0
        for variable, gradient in zip(model.trainable_variables, seen.gradients, strict=True):
            site, row = self.parameter_sites.get(id(variable)), _measured(gradient)
            if site is not None and row is not None:
                recorder.stats(site, (Kind.GRADIENT, Phase.UPDATE, 0, -1), row)
                total += row[5] ** 2 if row[7] + row[8] == 0 else float("nan")
        recorder.scalar("grad_norm", total**0.5)

    def _end(self, model: Any, began: int, logs: Any, kept: Any, state: Any) -> None:
        """After a step: how far the weights moved, the loss of the step before, and the books."""
        end = now_ns()
        recorder = self.recorder
        self._settle()
        recorder.call(Call.PASS, self.site, value=1.0, aux=1.0, pass_id=self._passes)
        recorder.call(Call.PASS_TRAIN, self.site, pass_id=self._passes)
        recorder.call(Call.BACKWARD, -1)
        rate = self._last_rate
        recorder.call(Call.STEP, self.optimizer, value=rate, duration_ns=end - began)
        if kept:
            self._write_moved(model, kept, state)
            host = rss_bytes()
            if host is not None:
                recorder.scalar("rss_bytes", float(host))
        if isinstance(logs, dict) and "loss" in logs and model is not None:
            samples = _samples(model, state) if self._looks_inside else None
            newer = _rate(model.optimizer, state) if kept else None  # between looks the last one known
            self._pending = (recorder.step, logs["loss"], samples, newer)
        self._books(began, end)

    def _books(self, began: int, end: int) -> None:
        recorder, budget = self.recorder, self.capture.budget
        recorder.scalar("step_time_s", (end - began) / 1e9)
        self._passes += 1
        recorder.step += 1
        done = now_ns()
        own = self._own_ns + done - end
        started = self._ended_ns or began - self._own_ns
        budget.step_done(wall_ns=done - started, own_ns=own)
        self._own_ns, self._ended_ns = 0, done
        self.capture.step_done()

    def _write_moved(self, model: Any, kept: list[tuple[int, NDArray[Any]]], state: Any) -> None:
        values = [v.value for v in model.trainable_variables] if state is None else state[0]
        after = {
            self.parameter_sites[id(variable)]: value
            for variable, value in zip(model.trainable_variables, values, strict=True)
            if id(variable) in self.parameter_sites
        }
        for site, before in kept:
            now = np.asarray(after[site])
            for kind, value in ((Kind.PARAMETER, now), (Kind.UPDATE, now - before)):
                row = _measured(value)
                if row is not None:
                    self.recorder.stats(site, (kind, Phase.UPDATE, 0, -1), row)

    def _settle(self) -> None:
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
            value = self._running.of_batch(value, float(np.asarray(samples)))
        if self._own_loss is not None and self._own_loss[0] == step:
            value = float(np.asarray(self._own_loss[1]))
        if value is not None:
            self.recorder.scalar("loss", value, step=step)

    def finish(self) -> None:
        self._settle()


class RunningLoss:
    """Keras tells the mean since the epoch began; the loss of one batch is what it changed. None where too little of it
    is left in a float32 mean."""

    def __init__(self) -> None:
        self._total = self._count = 0.0

    def of_batch(self, mean: float, count: float) -> float | None:
        if count <= self._count:  # a new epoch
            self._total = self._count = 0.0
        before, self._total = self._total, mean * count
        samples, self._count = count - self._count, count
        if samples <= 0:
            return None
        value = (self._total - before) / samples
        unsure = FLOAT32 * max(abs(before), abs(self._total)) / samples
        return None if unsure > UNSURE * abs(value) else value


def function_owner(capture: KerasCapture, training: Training) -> Any:
    """The model of a training, while it lives."""
    return next((model for model, one in capture.trainings.items() if one is training), None)


def _is_plain(model: Any) -> bool:
    """Whether a step is Keras' own; one of the user's could be anything."""
    return str(type(model).train_step.__module__).startswith("keras.")


def _layers(layer: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Layers below a model, by their path."""
    for each in layer._layers:
        if type(each).__name__ == "InputLayer" or isinstance(each, keras.metrics.Metric):
            continue
        below = f"{path}.{each.name}" if path else str(each.name)
        yield below, each
        yield from _layers(each, below)


def _samples(model: Any, state: Any) -> Any:
    """How many samples the mean loss stands for: a copy, since Keras gives the variable away."""
    tracker = model._loss_tracker.count
    if state is None:
        return tracker.value + 0
    place = next(n for n, each in enumerate(model.metrics_variables) if each is tracker)
    return state[3][place] + 0


def _rate(optimizer: Any, state: Any = None) -> Any:
    """The learning rate, of JAX from the state that Keras hands from step to step; a copy that nobody waits for."""
    if state is None:
        return optimizer._get_current_learning_rate() + 0
    with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, state[2], strict=True))):
        return optimizer._get_current_learning_rate() + 0


def _loss_name(model: Any) -> str:
    loss = getattr(model, "loss", None)
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or type(loss).__name__
    return str(name)


def _measured(value: Any) -> Any:
    """The numbers of a tensor; None of what has none."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" or not array.size:
        array = np.asarray(value, dtype=np.float32) if array.size and array.dtype.kind == "V" else array
    if array.dtype.kind not in "fiub" or not array.size:
        return None
    flat = array.ravel()
    return row_of(flat if flat.dtype in (np.float32, np.float64) else flat.astype(np.float32))


def _plain_type(variable: Any) -> str:
    text = str(variable.dtype)
    return "float32" if text in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else text


def _size(variable: Any) -> int:
    return int(np.prod(tuple(variable.shape)))


def _count(variables: Any) -> int:
    return sum(_size(each) for each in variables)
