"""Training loops of one's own: over tf.GradientTape they are watched as they run; compiled ones are told not to be.
`make test-backends` runs these with TensorFlow only: tapes are its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import neuraldbg

ROOT = Path(__file__).parents[2]
AS_SCRIPT = "import sys; sys.argv[0] = 'neural'; from neuraldbg.surfaces.cli import main; main()"
MODEL = """
import hashlib
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
words = random.integers(40, size=(192, 5)).astype("int32")
y = (words.sum(1) > 100).astype("int32")
model = keras.Sequential([
    keras.layers.Embedding(40, 6, name="words"),
    keras.layers.Flatten(),
    keras.layers.Dropout(0.1),
    keras.layers.Dense(16, activation="relu", name="hidden"),
    keras.layers.Dense(2, name="head"),
])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(0.003)

def digest():
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
"""
LOOP = """
def step(x, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

for epoch in range(5):
    for at in range(0, 192, 32):
        loss = step(tf.constant(words[at:at + 32]), tf.constant(y[at:at + 32]))
    held_out = model(words[:8], training=False)
print(float(loss).hex(), digest())
"""
GAN = """
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
real = np.random.default_rng(0).standard_normal((384, 6)).astype("float32") + 2
maker = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, name="made")], name="maker")
judge = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, name="judged")], name="judge")
loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
optimizers = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
for at in range(0, 384, 32):
    noise = tf.random.stateless_normal((32, 4), (at, 1))
    with tf.GradientTape() as of_maker, tf.GradientTape() as of_judge:
        fake = judge(maker(noise, training=True), training=True)
        seen = judge(real[at:at + 32], training=True)
        fooled = loss_of(tf.ones_like(fake), fake)
        told = loss_of(tf.ones_like(seen), seen) + loss_of(tf.zeros_like(fake), fake)
    for_maker = of_maker.gradient(fooled, maker.trainable_variables)
    for_judge = of_judge.gradient(told, judge.trainable_variables)
    optimizers[0].apply_gradients(zip(for_maker, maker.trainable_variables))
    optimizers[1].apply_gradients(zip(for_judge, judge.trainable_variables))
print(float(fooled), float(told))
"""
BY_HAND = """
model.compile(optimizer, loss_of)
for epoch in range(2):
    for at in range(0, 192, 32):
        told = model.train_on_batch(words[at:at + 32], y[at:at + 32])
print(float(told).hex(), digest())
"""
OWN_STEP = """
class Own(keras.Sequential):
    def train_step(self, data):
        x, labels = data
        with tf.GradientTape() as tape:
            loss = loss_of(labels, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}

own = Own(model.layers)
own.compile(optimizer, run_eagerly=EAGER)
own.fit(words, y, batch_size=32, epochs=2, verbose=0, shuffle=False)
"""


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280
    )


def debugged(text: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    (cwd / "train.py").write_text(text)
    options = ("--headless", "--budget", "full", "--out", "run", "--export", "session.json", "train.py")
    done = python("-c", AS_SCRIPT, "debug", *options, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done, json.loads((cwd / "session.json").read_text())


def test_a_loop_over_a_tape_is_watched_and_not_changed(tmp_path: Path) -> None:
    done, session = debugged(MODEL + LOOP, tmp_path)
    assert done.stdout == python("train.py", cwd=tmp_path).stdout
    assert session["run"]["backend"] == "tensorflow"
    assert session["run"]["steps"] == 30
    assert session["run"]["optimizers"][0]["class"] == "Adam"
    assert session["verdict"]["state"] == "healthy", session["verdict"]
    trace = neuraldbg.open_trace(tmp_path / "run")
    assert list(trace.history("loss", "scalar").steps) == list(range(30))
    assert trace.history("hidden", "activation").l2.min() > 0
    assert len(trace.history("hidden", "activation").steps) == 30  # not those of the evaluation, which has no tape
    assert trace.history("words.embeddings", "gradient").l2.min() > 0
    moved, weight = trace.history("head.kernel", "update"), trace.history("head.kernel", "parameter")
    assert 0 < (moved.l2 / weight.l2).max() < 0.5


def test_a_loss_that_overflows_in_a_loop_is_called_critical(tmp_path: Path) -> None:
    _, session = debugged((MODEL + LOOP).replace("Adam(0.003)", "SGD(1e30)"), tmp_path)
    assert session["verdict"]["state"] == "critical"


def test_two_networks_under_one_pair_of_tapes_are_both_watched(tmp_path: Path) -> None:
    done, session = debugged(GAN, tmp_path)
    assert done.stdout == python("train.py", cwd=tmp_path).stdout
    assert session["run"]["steps"] == 24  # an update of each network is a step
    assert [each["name"] for each in session["run"]["models"]] == ["maker", "judge"]
    trace = neuraldbg.open_trace(tmp_path / "run")
    for layer in ("made", "judged"):
        assert len(set(trace.history(layer, "activation").steps)) == 12
        assert len(set(trace.history(f"{layer}.kernel", "gradient").steps)) == 12
    losses = trace.history("loss", "scalar")
    assert list(losses.steps) == list(range(24))
    assert float(done.stdout.split()[0]) == pytest.approx(float(losses.value[-2]))
    assert float(done.stdout.split()[1]) == pytest.approx(float(losses.value[-1]))


def test_updates_that_are_made_by_hand_are_told_not_to_be_watched(tmp_path: Path) -> None:
    by_hand = "for g, v in zip(gradients, model.trainable_variables): v.assign(v - 0.01 * tf.convert_to_tensor(g))"
    applied = "optimizer.apply_gradients(zip(gradients, model.trainable_variables))"
    done, session = debugged(MODEL + LOOP.replace(applied, by_hand), tmp_path)
    assert "updates made by hand are not watched" in " ".join(done.stderr.split())
    assert session["verdict"]["state"] == "undecided"


def test_a_loop_inside_of_a_tf_function_is_told_not_to_be_watched(tmp_path: Path) -> None:
    done, session = debugged(MODEL + LOOP.replace("def step", "@tf.function\ndef step"), tmp_path)
    assert "compiled by a tf.function: it is not watched (tf.config.run_functions_eagerly" in " ".join(
        done.stderr.split()
    )
    assert session["verdict"]["state"] == "undecided"


def test_a_train_step_of_ones_own_that_runs_eagerly_is_looked_into(tmp_path: Path) -> None:
    _, session = debugged(MODEL + OWN_STEP.replace("EAGER", "True"), tmp_path)
    assert session["run"]["steps"] == 12
    trace = neuraldbg.open_trace(tmp_path / "run")
    assert len(trace.history("hidden", "activation").steps) == 12
    assert trace.history("head.kernel", "gradient").l2.min() > 0


def test_a_compiled_train_step_of_ones_own_is_told_not_to_be_looked_into(tmp_path: Path) -> None:
    _, session = debugged(MODEL + OWN_STEP.replace("EAGER", "False"), tmp_path)
    assert session["run"]["steps"] == 12
    trace = neuraldbg.open_trace(tmp_path / "run")
    assert any("train_step of its own, and it is compiled" in note["text"] for note in trace.facts("note"))
    assert trace.history("head.kernel", "update").l2.min() > 0


def test_batches_that_are_handed_in_by_hand_are_looked_into(tmp_path: Path) -> None:
    done, session = debugged(MODEL + BY_HAND, tmp_path)
    assert done.stdout == python("train.py", cwd=tmp_path).stdout
    assert session["run"]["steps"] == 12
    trace = neuraldbg.open_trace(tmp_path / "run")
    assert trace.history("hidden", "activation").l2.min() > 0
    assert trace.history("hidden", "gradient").l2.min() > 0
