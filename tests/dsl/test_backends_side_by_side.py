"""`neural profile model.neural --compare-backends`: the same weights on each backend, outputs and times compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forkserver import ForkServer

from neural.profiling import ComparativeProfiler
from neuraldbg.dsl import parse_file
from neuraldbg.dsl.check import check
from neuraldbg.dsl.train.layer_times import by_layer, times_of_profile

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
    for each in found["results"]:
        assert [layer["layer"] for layer in each["layers"]] == ["Dense_1", "Output_1"]
        assert all(layer["mean_s"] > 0 for layer in each["layers"])
    shown = torch_server.neural(*words, cwd=file.parent).stdout
    assert "outputs agree" in shown
    assert shown.index("ms of a layer") < shown.index("Dense_1")
    assert "onnx: times from the profiler of ONNX Runtime" in " ".join(shown.split())


@pytest.mark.slow
def test_the_profiler_of_the_original_is_filled_with_it(file: Path) -> None:
    pytest.importorskip("onnxruntime")
    found = ComparativeProfiler().run_backends(str(file), ["pytorch", "onnx"])
    assert set(found["backends"]) == {"pytorch", "onnx"}
    assert set(found["layer_comparisons"]) == {"Dense_1", "Output_1"}
    assert found["summary"]["fastest_backend"] in ("pytorch", "onnx")


def event(name: str, begin: int, duration: int, category: str = "Node") -> dict[str, object]:
    return {"cat": category, "name": name, "ts": begin, "dur": duration}


def test_what_the_profiler_merged_over_two_layers_is_nobodys_time(file: Path) -> None:
    graph = check(parse_file(file))[0][0]
    events = [event("model_run", 0, 100, "Session"), event("model_run", 200, 100, "Session")]
    for begin in (0, 200):
        events += [
            event("/Dense_1/Gemm_kernel_time", begin + 1, 30),
            event("fused /Dense_1/Gemm /Dense_1_relu/Relu_kernel_time", begin + 31, 10),
            event("fused /Dense_1/Gemm /Output_1/Gemm_kernel_time", begin + 50, 20),
            event("/Transpose_kernel_time", begin + 80, 5),
            event("/Output_1/Gemm_fence_before", begin + 85, 0),
        ]
    told = by_layer(graph, times_of_profile(graph, events))
    assert told == [{"layer": "Dense_1", "mean_s": pytest.approx(40e-6), "std_s": pytest.approx(0), "calls": 2}]


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
