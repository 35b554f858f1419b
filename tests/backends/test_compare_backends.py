"""One network on several backends: the same outputs, measured times, layers where the backend can tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neuraldbg.dsl.train.compare_backends import compare_backends
from neuraldbg.dsl.train.layer_times import EAGER, HOOKS, PROFILER
from neuraldbg.errors import BackendMissing

KERAS = os.environ.get("KERAS_BACKEND", "tensorflow")
TABULAR = str(Path(__file__).parents[1] / "programs" / "dsl" / "tabular.neural")


def test_backends_agree_and_each_tells_its_time() -> None:
    (found,) = compare_backends(TABULAR, ("pytorch", "onnx", KERAS), repeats=5)
    assert found.agree
    assert [each.backend for each in found.results] == ["pytorch", "onnx", KERAS]
    assert all(each.mean_s > 0 and each.repeats == 5 for each in found.results)
    assert 0 < max(each.difference for each in found.results) < 1e-4
    by_layer = {each.backend: [layer.layer for layer in each.layers] for each in found.results}
    assert {"BatchNormalization_1", "Dense_1"} <= set(by_layer["pytorch"])
    assert {"BatchNormalization_1", "Dense_1"} <= set(by_layer[KERAS])
    assert {"Dense_1", "Output_1"} <= set(by_layer["onnx"]) <= set(by_layer["pytorch"])
    assert all(layer.mean_s > 0 and layer.calls == 7 for each in found.results for layer in each.layers)
    assert [each.layers_from for each in found.results] == [HOOKS, PROFILER, EAGER]
    told = found.results[0].profile()
    assert set(told["layer_stats"]["Dense_1"]) == {"mean_time", "std_time", "total_time", "call_count"}


def test_an_unknown_backend_is_refused_before_anything_runs() -> None:
    with pytest.raises(BackendMissing, match="did you mean 'onnx'"):
        compare_backends(TABULAR, ("pytorch", "onxx"))
