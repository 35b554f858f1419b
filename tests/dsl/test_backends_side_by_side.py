"""`neural profile model.neural --compare-backends`: the same weights on each backend, outputs and times compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forkserver import ForkServer

from neural.profiling import ComparativeProfiler

NETWORK = """network Small {
  input: (8,)
  layers:
    Dense(units=16, activation="relu")
    Output(units=3, activation="softmax")
  loss: "categorical_crossentropy"
  optimizer: Adam(learning_rate=0.01)
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.neural"
    path.write_text(NETWORK)
    return path


@pytest.mark.slow
def test_outputs_agree_and_times_are_told(file: Path, torch_server: ForkServer) -> None:
    pytest.importorskip("onnxruntime")
    words = ("profile", file.name, "--compare-backends", "pytorch,onnx")
    done = torch_server.neural(*words, "--json", cwd=file.parent)
    assert done.code == 0, done.stderr
    (found,) = json.loads(done.stdout)["networks"]
    assert found["agree"]
    assert [each["backend"] for each in found["results"]] == ["pytorch", "onnx"]
    assert all(each["mean_s"] > 0 and each["difference"] <= 1e-4 for each in found["results"])
    assert {layer["layer"] for layer in found["results"][0]["layers"]} >= {"Dense_1", "Output_1"}
    shown = torch_server.neural(*words, cwd=file.parent).stdout
    assert "outputs agree" in shown


@pytest.mark.slow
def test_the_profiler_of_the_original_is_filled_with_it(file: Path) -> None:
    pytest.importorskip("onnxruntime")
    found = ComparativeProfiler().run_backends(str(file), ["pytorch", "onnx"])
    assert set(found["backends"]) == {"pytorch", "onnx"}
    assert found["summary"]["fastest_backend"] in ("pytorch", "onnx")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["small.neural", "--compare-backends", "pytorch"], 2, "two backends"),
        (["small.neural", "--compare-backends", "pytorch,theano"], 4, "theano"),
        (["--compare-backends", "pytorch,onnx", "train.py"], 2, "is for .neural files"),
    ],
)
def test_mistakes_are_told(file: Path, torch_server: ForkServer, words: list[str], code: int, said: str) -> None:
    done = torch_server.neural("profile", *words, cwd=file.parent)
    assert done.code == code
    assert said in done.stderr
