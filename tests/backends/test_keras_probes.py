"""Keras: the experiment after a run that did not learn, dead units, the alert on a NaN, the choice of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import neuraldbg
from neuraldbg.analysis.diagnose import diagnose
from neuraldbg.capture.keras.attach import KerasCapture
from neuraldbg.capture.torch.recorder import Recorder
from neuraldbg.errors import StoppedOnNaN
from neuraldbg.trace import TraceWriter

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((96, 6)).astype("float32")
Y = (X.sum(1) > 0).astype("int32")


def model_of(rate: float, cls: Any = keras.Model) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(16, activation="relu", name="hidden")(inputs)
    normal = keras.layers.BatchNormalization(name="norm")(keras.layers.Dropout(0.1)(hidden))
    model = cls(inputs, keras.layers.Dense(2, name="head")(normal), name="small")
    model.compile(keras.optimizers.SGD(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def state_of(model: Any) -> list[Any]:
    return [np.array(each.value) for each in [*model.variables, *model.optimizer.variables]]


def capture_into(folder: Path, **options: Any) -> KerasCapture:
    recorder = Recorder(lambda: TraceWriter(folder / "run"))
    return KerasCapture(lambda: recorder, budget=None, strict=True, **options)


def watched(model: Any, folder: Path, *, epochs: int) -> tuple[Any, dict[str, Any]]:
    """The trace of a run, and what its experiment told."""
    capture = capture_into(folder)
    model.fit(X, Y, batch_size=16, epochs=epochs, verbose=0)
    before = state_of(model)
    capture.close(exit_code=0)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, state_of(model), strict=True))
    trace = neuraldbg.open_trace(folder / "run")
    return trace, next(fact for fact in trace.facts("probe") if fact["name"] == "overfit")


def found_in(trace: Any) -> dict[str, Any]:
    return {one.finding.kind: one.finding for one in diagnose(trace).diagnoses}


def test_a_rate_that_is_too_high_is_named_and_nothing_of_the_model_moves(tmp_path: Path) -> None:
    trace, told = watched(model_of(30.0), tmp_path, epochs=5)
    assert told["from_initial"]
    assert (told["optimizer"], told["lr"], told["run_updates"], told["rows"]) == ("SGD", 30.0, 30, 16)
    best = min(arm["last"] for name, arm in told["arms"].items() if name != "own" and arm["last"] is not None)
    assert best < 0.8 * told["run_first_loss"]
    found = found_in(trace)
    assert "learning_rate_too_high" in found, sorted(found)
    assert found["learning_rate_too_high"].evidence["lr"] == 30.0
    assert "probe_loss_own_settings" in found["learning_rate_too_high"].evidence


def test_a_rate_that_is_too_low_is_tried_at_higher_ones(tmp_path: Path) -> None:
    trace, told = watched(model_of(1e-6), tmp_path, epochs=5)
    assert told["arms"]["own"]["last"] == pytest.approx(told["run_first_loss"], rel=0.2)  # dropout differs
    assert told["arms"]["lr_x1000000"]["last"] < 0.5 * told["run_first_loss"]
    assert "learning_rate_too_low" in found_in(trace)


def test_a_run_that_learned_is_left_alone_and_why_is_said(tmp_path: Path) -> None:
    trace, told = watched(model_of(1.0), tmp_path, epochs=5)
    assert told["skipped"] == "the run learned what it was shown; with Keras it is only asked where one did not"
    others = [fact for fact in trace.facts("probe") if fact["name"] == "train_eval"]
    assert others[0]["skipped"] == "this experiment is made with PyTorch only"


class OwnStep(keras.Model):
    def train_step(self, *args: Any) -> Any:
        return super().train_step(*args)


def test_a_step_of_the_users_own_is_not_guessed_at(tmp_path: Path) -> None:
    _, told = watched(model_of(0.1, OwnStep), tmp_path, epochs=1)
    assert told["skipped"] == "its train_step is its own: what it computes cannot be computed again"


def test_units_that_are_zero_for_every_sample_are_named(tmp_path: Path) -> None:
    model = model_of(0.01)
    kernel, bias = model.get_layer("hidden").get_weights()
    bias[:4] = -1e3
    model.get_layer("hidden").set_weights([kernel, bias])
    trace, _ = watched(model, tmp_path, epochs=1)
    dead = found_in(trace)["dead_units"]
    assert (dead.layer, dead.evidence["dead"], dead.evidence["units"]) == ("hidden", 4, 16)
    assert dead.evidence["which"] == "0, 1, 2, 3"


def test_an_alert_ends_the_training_before_a_nan_reaches_the_weights(tmp_path: Path) -> None:
    capture = capture_into(tmp_path, stop_on_nan=True)
    model = model_of(1e38)
    try:
        with pytest.raises(StoppedOnNaN, match=r"not finite at update \d+, first made in \w+; the weights are as they"):
            model.fit(X, Y, batch_size=16, epochs=3, verbose=0)
    finally:
        capture.close()
    assert all(np.isfinite(np.array(each.value)).all() for each in model.trainable_variables)


def test_only_the_layers_that_were_asked_for_are_measured(tmp_path: Path) -> None:
    capture = capture_into(tmp_path, layers=("hid*",))
    model_of(0.01).fit(X, Y, batch_size=16, epochs=1, verbose=0)
    capture.close()
    trace = neuraldbg.open_trace(tmp_path / "run")
    assert len(trace.history("hidden", "activation").steps) == 6
    assert len(trace.history("head", "activation").steps) == 0
