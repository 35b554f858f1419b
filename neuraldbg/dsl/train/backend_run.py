"""One network on one backend, in a process of its own: its outputs to a file, its times to stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from neuraldbg.dsl.build.onnx_model import fed, run_onnx, to_onnx
from neuraldbg.dsl.build.torch_model import build
from neuraldbg.dsl.check import check
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.program import parse_file
from neuraldbg.dsl.train.layer_times import (
    EAGER,
    HOOKS,
    PROFILER,
    Times,
    by_layer,
    keras_times,
    onnx_times,
    torch_times,
)
from neuraldbg.dsl.train.synthetic import synthesize

WARMUP = 3
Timed = tuple[Callable[[], Any], Callable[[], Times], str]  # a forward; times of layers, and where they come from


def main() -> None:
    asked = json.loads(sys.argv[1])
    graph = check(parse_file(asked["path"]), only=asked["network"])[0][0]
    forward, times_of, told_by = prepared(graph, asked["path"], asked["backend"], asked["batch"])
    outputs = forward()
    np.save(Path(asked["outputs"]), np.asarray(outputs))
    for _ in range(WARMUP):
        forward()
    times = []
    for _ in range(asked["repeats"]):
        start = time.perf_counter()
        forward()
        times.append(time.perf_counter() - start)
    layers = by_layer(graph, times_of())
    told = {"mean_s": float(np.mean(times)), "std_s": float(np.std(times)), "layers": layers}
    print(json.dumps({**told, "layers_from": told_by if layers else None}))


def prepared(graph: Graph, path: str, backend: str, batch: int) -> Timed:
    """The same weights and inputs on every backend: both follow from the seed."""
    import torch

    torch.manual_seed(0)
    built = build(graph, path)
    model = built.make().eval()
    inputs = list(synthesize(graph, built.loss, count=max(batch, 4)).inputs)
    if backend == "pytorch":
        return _torch(model, [torch.as_tensor(each) for each in inputs])
    if backend == "onnx":
        return _onnx(graph, model, inputs)
    return _keras(graph, path, model, inputs, backend)


def _torch(model: Any, tensors: list[Any]) -> Timed:
    import torch

    def forward() -> Any:
        with torch.no_grad():
            return model(*tensors).numpy()

    return forward, partial(torch_times, model, forward), HOOKS


def _onnx(graph: Graph, model: Any, inputs: list[Any]) -> Timed:
    exported, _ = to_onnx(graph, model, inputs)
    session: list[Any] = []

    def forward() -> Any:
        return run_onnx(graph, exported, inputs, kept=session)

    def times() -> Times:
        return onnx_times(graph, exported, fed(graph, session[0], inputs))

    return forward, times, PROFILER


def _keras(graph: Graph, path: str, model: Any, inputs: list[Any], backend: str) -> Timed:
    from neuraldbg.dsl.build.keras_script import build_keras
    from neuraldbg.dsl.build.keras_weights import copy_weights

    made = build_keras(graph, path, backend=backend).make()
    copy_weights(graph, model, made)
    given = inputs if len(inputs) > 1 else inputs[0]
    return lambda: made.predict_on_batch(given), partial(keras_times, made, given), EAGER
