"""`neural run`, `compile` and `debug` with `--backend tensorflow|jax|onnx`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AS_SCRIPT = "import sys; sys.argv[0] = 'neural'; from neuraldbg.surfaces.cli import main; main()"
KERAS = os.environ.get("KERAS_BACKEND", "tensorflow")
MODEL = """
network Small {
    input: (12,)
    layers:
        Dense(16, activation="relu")
        Dropout(0.1)
        Output(4, activation="softmax")
    loss: "sparse_categorical_crossentropy"
    optimizer: Adam(learning_rate=0.01)
    metrics: ["accuracy"]
    train { epochs: 4 batch_size: 64 validation_split: 0.1 }
}
"""


def neural(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("KERAS_BACKEND", None)
    command = [sys.executable, "-c", AS_SCRIPT, *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=280, env=environment)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "small.neural").write_text(MODEL)
    return tmp_path


def test_run_trains_with_keras(place: Path) -> None:
    done = neural("run", "small.neural", "-b", KERAS, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    epochs = json.loads(done.stdout)["Small"]
    assert [each["epoch"] for each in epochs] == [1, 2, 3, 4]
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    assert epochs[-1]["val_accuracy"] > 0.5


def test_run_trains_exports_and_compares_with_onnx(place: Path) -> None:
    done = neural("run", "small.neural", "-b", "onnx", "--epochs", "1", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "ONNX Runtime agrees with PyTorch" in done.stdout
    assert sorted(each.name for each in place.iterdir()) == ["small.neural"]


@pytest.mark.parametrize("backend", [KERAS, "onnx"])
def test_compiled_code_runs_by_itself(backend: str, place: Path) -> None:
    done = neural("compile", "small.neural", "-b", backend, "-o", "model.py", cwd=place)
    assert done.returncode == 0, done.stderr
    text = (place / "model.py").read_text()
    assert "neuraldbg" not in text
    ran = subprocess.run([sys.executable, "model.py"], capture_output=True, text=True, cwd=place, timeout=280)
    assert ran.returncode == 0, ran.stderr
    assert ("agree" in ran.stdout) == (backend == "onnx")
