"""Attaching to a process that trains with Keras, and leaving it as it was."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import keras

from neuraldbg.capture.budget import SamplingBudget
from neuraldbg.capture.guard import Guard
from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.keras.loops import NOT_APPLIED, UNSEEN, Loops
from neuraldbg.capture.keras.models import layers_of
from neuraldbg.capture.keras.rerun import LayerCalls
from neuraldbg.capture.keras.stops import Stops
from neuraldbg.capture.keras.training import Training
from neuraldbg.capture.layers import layer_filter
from neuraldbg.capture.torch.patches import Patches
from neuraldbg.capture.torch.recorder import Recorder

OVERHEAD_EVERY_S = 5.0


class KerasCapture:
    """Everything that watches Keras in one process. `close()` undoes all of it."""

    now_ns = staticmethod(time.perf_counter_ns)

    def __init__(
        self,
        recorder: Callable[[], Recorder],
        *,
        budget: float | None,
        strict: bool = False,
        gate: Any = None,
        stop_on_nan: bool = False,
        layers: tuple[str, ...] = (),
    ) -> None:
        self._recorder_of = recorder
        self._recorder: Recorder | None = None
        self.on, self.stop_on_nan = True, stop_on_nan
        self.wanted = layer_filter(layers)
        self.pid = os.getpid()
        self.budget = SamplingBudget(budget)
        self.guard = Guard(strict=strict, report=lambda text: self.recorder.note("warning", text))
        self.calls = LayerCalls()
        self.trainings: IdentityTable[Training] = IdentityTable()
        self.patches = Patches()
        self.loops = self.calls.loops = Loops(self)
        self.stops = self.calls.stops = None if gate is None else Stops(self, gate)
        self._wrapped: list[tuple[Any, Any, Any]] = []  # model, its train function, ours
        self._reported_at = time.monotonic()
        self._install()

    @property
    def recorder(self) -> Recorder:
        if self._recorder is None:
            self._recorder = self._recorder_of()
        return self._recorder

    @property
    def began(self) -> bool:
        return self._recorder is not None

    def _install(self) -> None:
        trainer = next(each for each in keras.Model.__mro__ if "make_train_function" in vars(each))
        self.patches.replace(trainer, "make_train_function", self._maker(trainer.make_train_function))
        self.patches.replace(keras.Layer, "__call__", self.calls.wrap(keras.Layer.__call__))
        self.loops.install()

    def _maker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def make_train_function(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            if self.on:
                self._watch(model)
            return result

        return make_train_function

    def _watch(self, model: Any) -> None:
        """Stand between `fit` and the function that makes a step."""
        function = model.train_function
        if function is None or any(function is ours for _, _, ours in self._wrapped):
            return
        look: Callable[[Any], Training | None] = self.guard.shield("the model")(self._training)
        training = look(model)
        if training is None:  # what went wrong has been said
            return
        step = training.jax_step if keras.backend.backend() == "jax" else training.tensorflow_step
        ours = self._stepping(function, step)
        self._wrapped.append((model, function, ours))
        model.train_function = ours

    def _training(self, model: Any) -> Training:
        known = self.training_of(model)
        known.compiled_again(model)
        return known

    def training_of(self, model: Any) -> Training:
        known = self.trainings.get(model)
        if known is None:
            known = self.trainings[model] = Training(model, self)
        return known

    @property
    def watches(self) -> bool:
        return self.on and os.getpid() == self.pid

    def layer_of(self, site: int) -> Any:
        for model, training in self.trainings.items():
            for _, layer in layers_of(model, ""):
                if training.layer_sites.get(id(layer)) == site:
                    return layer
        return None

    def unwatched(self) -> str | None:
        """What was met and could not be looked at, where nothing else was."""
        loops = self.loops
        if loops.steps:
            return None
        return UNSEEN if loops.traced else NOT_APPLIED if loops.taped else None

    def _stepping(self, function: Any, step: Callable[..., Any]) -> Callable[..., Any]:
        def train_function(*args: Any) -> Any:
            if not self.watches:
                return function(*args)
            return step(function, *args)

        return train_function

    def step_done(self) -> None:
        now = time.monotonic()
        if now - self._reported_at > OVERHEAD_EVERY_S:
            self._reported_at = now
            self.recorder.fact("overhead", **self.overhead())

    def overhead(self) -> dict[str, Any]:
        budget = self.budget
        bare = budget.wall_ns - budget.own_ns
        return {
            "ratio": budget.own_ns / bare if bare > 0 else None,
            "ratio_after_start": budget.ratio_after_start,
            "sampled_steps": budget.sampled,
            "total_steps": budget.steps,
            "own_s": budget.own_ns / 1e9,
            "run_s": budget.wall_ns / 1e9,
            "period": budget.period,
            "watch_period": budget.watch_period,
        }

    def finish(self, **end: Any) -> None:
        """The last numbers, before the trace is closed."""
        for training in self.trainings.values():
            self.guard.shield("the end of the run")(training.finish)()
        if self.watches and self.budget.share != 0.0:
            self.guard.shield("experiments")(self._experiment)(bool(end.get("signal")))
        unwatched = self.unwatched()
        if unwatched is not None and self.began:
            self.recorder.note("warning", unwatched)
        self.on = False
        self.patches.close()
        for model, function, ours in self._wrapped:
            if model.train_function is ours:
                model.train_function = function
        self._wrapped.clear()

    def _experiment(self, interrupted: bool) -> None:
        from neuraldbg.capture.keras.probes.runner import experiment

        interrupted = interrupted or isinstance(sys.exc_info()[1], KeyboardInterrupt)
        with self.loops.aside():
            for model, training in self.trainings.items():
                experiment(training, model, strict=self.guard.strict, interrupted=interrupted)

    def close(self, **end: Any) -> None:
        """Where Keras has the trace to itself: ends it too."""
        self.finish(**end)
        if self._recorder is not None:
            recorder = self._recorder
            steps = recorder.step
            ending = {"steps": steps, "backwards": steps, "dropped": recorder.dropped(), **end}
            recorder.close([("overhead", self.overhead()), ("end", ending)])
