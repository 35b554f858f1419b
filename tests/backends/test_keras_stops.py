"""Breakpoints in a training with Keras: at layers, in their backward, after updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import neuraldbg
from neuraldbg.capture.keras.attach import KerasCapture
from neuraldbg.capture.torch.recorder import Recorder
from neuraldbg.control.gate import Gate
from neuraldbg.errors import AbortedByUser
from neuraldbg.records import Stop
from neuraldbg.trace import TraceWriter

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((48, 6)).astype("float32")
Y = (X.sum(1) > 0).astype("int32")


@dataclass
class Debugger:
    """Somebody who writes down where a training was held, and lets it go."""

    gate: Gate
    capture: KerasCapture
    run_dir: Path
    told: list[str]
    stops: list[Stop] = field(default_factory=list)
    then: Callable[[Gate, Stop], None] = lambda gate, _: gate.resume()

    def __call__(self, gate: Gate, stop: Stop, reasons: list[str]) -> None:
        self.stops.append(stop)
        self.then(gate, stop)

    def places(self) -> list[tuple[int, str, str | None]]:
        return [(stop.step, stop.phase.value, stop.layer) for stop in self.stops]


@pytest.fixture
def debugger(tmp_path: Path) -> Iterator[Debugger]:
    told: list[str] = []
    gate = Gate(say=told.append)
    recorder = Recorder(lambda: TraceWriter(tmp_path / "run"))
    capture = KerasCapture(lambda: recorder, budget=0.01, strict=True, gate=gate)
    gate.prompt = made = Debugger(gate, capture, tmp_path / "run", told)
    yield made
    capture.close()
    assert keras.Layer.__call__.__module__.startswith("keras.")
    assert not hasattr(keras.Layer.__call__, "__neuraldbg_patch__")


def model_of(*, eager: bool = False, cls: Any = keras.Model) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="relu", name="hidden")(inputs)
    dropped = keras.layers.Dropout(0.3, name="drop")(hidden)
    model = cls(inputs, keras.layers.Dense(2, name="head")(dropped), name="small")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=eager)
    return model


def fit(model: Any) -> None:
    model.fit(X, Y, batch_size=16, epochs=1, verbose=0, shuffle=False)


each_mode = pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])


@each_mode
def test_a_breakpoint_holds_every_step_at_its_layer_with_its_values(debugger: Debugger, eager: bool) -> None:
    debugger.gate.breakpoints.add("hidden")
    model = model_of(eager=eager)
    weights = model.get_layer("hidden").get_weights()[0]
    fit(model)
    assert debugger.places() == [(step, "forward", "hidden") for step in range(3)]
    first = debugger.stops[0]
    output = np.maximum(X[:16] @ weights, 0)
    assert first.values["mean_activation"] == pytest.approx(float(output.mean()), rel=1e-4)
    assert first.values["zero_ratio"] == pytest.approx(float((output == 0).mean()))
    assert (first.values["execution_time"] is not None) == eager
    assert "test_keras_stops.py:" in str(first.source)
    assert any("computed once more, layer by layer" in text for text in debugger.told) == (not eager)


@each_mode
def test_being_held_changes_no_result(debugger: Debugger, eager: bool) -> None:
    debugger.gate.breakpoints.add("*")
    held = model_of(eager=eager)
    fit(held)
    assert {layer for _, _, layer in debugger.places()} >= {"hidden", "drop", "head"}
    debugger.capture.close()
    free = model_of(eager=eager)
    fit(free)
    for mine, theirs in zip(held.get_weights(), free.get_weights(), strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_tensors_can_be_looked_at_while_it_is_held(debugger: Debugger) -> None:
    seen: dict[str, Any] = {}

    def look(gate: Gate, stop: Stop) -> None:
        assert stop.describe is not None
        seen["output"] = stop.describe(stop, "output", None, "0, :3")
        seen["kernel"] = stop.describe(stop, "kernel", "head", None)
        gate.resume()

    debugger.then = look
    debugger.gate.breakpoints.add("hidden", once=True)
    model = model_of()
    kernel = model.get_layer("head").get_weights()[0]
    fit(model)
    assert seen["output"]["shape"] == [16, 8]
    assert seen["output"]["dtype"] == "float32"
    assert "cpu" in seen["output"]["device"]
    assert "/" not in seen["output"]["device"]
    assert len(seen["output"]["values"]) == 3
    assert seen["kernel"]["values"] == pytest.approx(kernel.ravel().tolist())
    assert len(debugger.stops) == 1


def test_a_condition_on_a_gradient_holds_in_the_backward(debugger: Debugger) -> None:
    debugger.gate.breakpoints.add("hidden", "grad_norm > 0")
    fit(model_of())
    assert debugger.places() == [(step, "backward", "hidden") for step in range(3)]
    assert all(stop.values["grad_norm"] > 0 and stop.values["loss"] > 0 for stop in debugger.stops)


def test_a_condition_on_the_loss_holds_after_the_update(debugger: Debugger) -> None:
    debugger.gate.breakpoints.add("*", "loss > 0 and step == 1")
    fit(model_of())
    assert debugger.places() == [(1, "update", None)]


def test_next_goes_from_layer_to_layer_forward_and_back(debugger: Debugger) -> None:
    debugger.gate.stop_each("layer")
    debugger.then = lambda gate, _: gate.step("layer") if len(debugger.stops) < 7 else gate.resume()
    fit(model_of())
    layers = [(phase, layer) for _, phase, layer in debugger.places()]
    forward = [("forward", "hidden"), ("forward", "drop"), ("forward", "head")]
    back = [("backward", "head"), ("backward", "drop"), ("backward", "hidden")]
    assert layers == [*forward, *back, ("update", None)]


def test_a_training_can_be_left_from_a_breakpoint(debugger: Debugger) -> None:
    debugger.then = lambda gate, _: gate.abort()
    debugger.gate.breakpoints.add("head")
    with pytest.raises(AbortedByUser):
        fit(model_of())


def test_a_name_that_means_no_layer_is_told_with_the_nearest(debugger: Debugger) -> None:
    debugger.gate.breakpoints.add("hiden")
    fit(model_of())
    assert any("'hiden'" in text and "hidden" in text for text in debugger.told)


class OwnStep(keras.Model):
    """A step that is not Keras' own, on either backend."""

    def train_step(self, *args: Any) -> Any:
        return super().train_step(*args)


def test_a_compiled_step_of_ones_own_is_told_not_to_be_stopped_in(debugger: Debugger) -> None:
    debugger.gate.breakpoints.add("hidden")
    fit(model_of(cls=OwnStep))
    assert debugger.stops == []
    (told,) = [text for text in debugger.told if "cannot be stopped at" in text]
    assert "run_eagerly=True" in told


def test_an_eager_step_of_ones_own_is_held_as_it_runs(debugger: Debugger) -> None:
    debugger.gate.breakpoints.add("hidden")
    fit(model_of(cls=OwnStep, eager=True))
    assert debugger.places() == [(step, "forward", "hidden") for step in range(3)]
    assert debugger.stops[0].values["execution_time"] > 0


def test_nothing_is_held_without_a_breakpoint(debugger: Debugger) -> None:
    fit(model_of())
    debugger.capture.close()
    assert debugger.stops == []
    assert neuraldbg.open_trace(debugger.run_dir).history("hidden", "activation").l2.min() > 0
