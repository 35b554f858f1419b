"""`neural debug` of a script that trains with `Model.fit`: the same results, bit for bit, and what was seen."""

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
SCRIPT = """
import hashlib, sys
import keras
import numpy as np

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x = random.standard_normal((260, 8, 8, 1)).astype("float32")
y = (x.mean((1, 2, 3)) > 0).astype("int32")
model = keras.Sequential([
    keras.Input((8, 8, 1)),
    keras.layers.Conv2D(8, 3, activation="relu", name="conv"),
    keras.layers.BatchNormalization(name="norm"),
    keras.layers.Flatten(),
    keras.layers.Dropout(0.2),
    keras.layers.Dense(16, activation="relu", name="hidden"),
    keras.layers.Dense(2, name="head"),
])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(float(sys.argv[1])), loss, metrics=["accuracy"])
history = model.fit(x, y, batch_size=24, epochs=3, verbose=0, validation_split=0.1)
print([float(value).hex() for value in history.history["loss"] + history.history["val_loss"]])
print(hashlib.sha256(b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())).hexdigest())
print(type(model.train_function).__name__, keras.Layer.__call__.__module__, keras.random.uniform((1,)))
"""


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280
    )


def debugged(script: str, *arguments: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    (cwd / "train.py").write_text(script)
    options = ("--headless", "--out", "run", "--export", "session.json", "train.py")
    done = python("-c", AS_SCRIPT, "debug", *options, *arguments, cwd=cwd)
    return done, json.loads((cwd / "session.json").read_text())


Run = tuple[Path, subprocess.CompletedProcess[str], dict[str, Any]]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("healthy")
    return folder, *debugged(SCRIPT, "0.001", cwd=folder)


def test_results_are_the_same_bit_for_bit_and_the_run_reads_healthy(healthy: Run) -> None:
    folder, done, session = healthy
    assert done.returncode == 0, done.stderr
    bare = python("train.py", "0.001", cwd=folder)
    assert done.stdout == bare.stdout
    assert session["verdict"]["state"] == "healthy", session["verdict"]
    assert session["run"]["backend"] == os.environ.get("KERAS_BACKEND", "tensorflow")
    assert session["run"]["steps"] == 30
    layers = {layer["path"]: layer for layer in session["layers"]}
    assert {"conv", "norm", "flatten", "dropout", "hidden", "head"} <= set(layers)
    assert layers["hidden"]["time_ms"]["forward"] is None


def test_layers_gradients_and_updates_are_measured(healthy: Run) -> None:
    trace = neuraldbg.open_trace(healthy[0] / "run")
    assert trace.history("hidden", "activation").l2.min() > 0
    assert trace.history("hidden", "gradient").l2.min() > 0
    assert trace.history("head.kernel", "gradient").l2.min() > 0
    moved, weight = trace.history("head.kernel", "update"), trace.history("head.kernel", "parameter")
    assert 0 < (moved.l2 / weight.l2).max() < 0.5
    losses = trace.history("loss", "scalar")
    assert list(losses.steps) == list(range(30))


def test_a_model_that_gets_its_input_from_its_first_batch_is_looked_into_from_then_on(tmp_path: Path) -> None:
    text = SCRIPT.replace("    keras.Input((8, 8, 1)),\n", "")
    done, session = debugged(text, "0.001", cwd=tmp_path)
    assert done.stdout == python("train.py", "0.001", cwd=tmp_path).stdout
    assert session["run"]["models"][0]["parameters"] == 8 * 10 + 4 * 8 + 288 * 16 + 16 + 34
    trace = neuraldbg.open_trace(tmp_path / "run")
    assert trace.history("hidden", "activation").l2.min() > 0
    assert trace.history("hidden", "activation").steps[0] <= 1


def test_a_training_that_overflows_is_called_critical(tmp_path: Path) -> None:
    _, session = debugged(SCRIPT, "1e30", cwd=tmp_path)
    assert session["verdict"]["state"] == "critical"
    assert {"nan_activation", "nan_loss", "nan_gradient"} & {finding["kind"] for finding in session["findings"]}


def test_a_rate_that_blows_the_loss_up_is_not_called_healthy(tmp_path: Path) -> None:
    _, session = debugged(SCRIPT, "100", cwd=tmp_path)
    assert session["verdict"]["state"] != "healthy"


def test_a_pure_jax_script_is_told_that_it_is_not_watched(tmp_path: Path) -> None:
    script = "import jax\nprint(jax.grad(lambda w: (w - 3.0) ** 2)(0.0))\n"
    done, session = debugged(script, cwd=tmp_path)
    assert done.stdout.strip() == "-6.0"
    assert "JAX without Keras is not watched" in done.stderr
    assert session["verdict"]["state"] == "undecided"


def test_a_neural_file_on_keras_is_watched_and_its_layers_keep_their_names(tmp_path: Path) -> None:
    name = "model.neural"
    (tmp_path / name).write_text(
        'network Small {\n input: (12,)\n layers:\n  Dense(16, "relu")\n  Output(4, "softmax")\n'
        " loss: sparse_categorical_crossentropy\n optimizer: Adam(learning_rate=0.01)\n"
        " train { epochs: 2 batch_size: 64 }\n}"
    )
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    options = ("--backend", backend, "--headless", "--export", "session.json")
    done = python("-c", AS_SCRIPT, "debug", name, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    session = json.loads((tmp_path / "session.json").read_text())
    assert session["verdict"]["state"] == "healthy", session["verdict"]
    assert [layer["path"] for layer in session["layers"]] == ["Dense_1", "Output_1"]
    kinds = {finding["kind"]: finding["source"] for finding in session["findings"]}
    assert kinds["softmax_before_cross_entropy"] == "model.neural:5"
