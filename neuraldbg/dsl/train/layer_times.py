"""Where the time of a forward pass goes, layer by layer, as far as each backend can tell."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neuraldbg.dsl.graph import Graph

WARMUP, TIMED = 3, 7  # passes
HOOKS = "hooks around its modules"
PROFILER = "the profiler of ONNX Runtime; nodes of no layer, or of several merged into one, are left out"
EAGER = "layers called one after the other, not compiled"
Layers = list[dict[str, Any]]
Times = dict[str, list[float]]  # part of a model -> seconds of each timed pass


def by_layer(graph: Graph, times: Mapping[str, Sequence[float]]) -> Layers:
    """Times of modules, nodes or Keras layers as those of the layers in the file, in its order: a layer may be made of
    several, as a convolution and its activation."""
    sums: dict[str, Any] = {}
    for part, seconds in times.items():
        layer = owner(graph, part)
        if layer is not None:
            sums[layer] = sums.get(layer, 0.0) + np.asarray(seconds)
    order = dict.fromkeys(step.layer.name for step in graph.steps)
    return [_told(layer, sums[layer]) for layer in order if layer in sums]


def owner(graph: Graph, part: str) -> str | None:
    """The layer that a part of the built model belongs to: parts are called by their step, or begin with its name."""
    fitting = [step for step in graph.steps if part == step.name or part.startswith(f"{step.name}_")]
    return max(fitting, key=lambda step: len(step.name)).layer.name if fitting else None


def _told(layer: str, seconds: Any) -> dict[str, Any]:
    return {"layer": layer, "mean_s": float(np.mean(seconds)), "std_s": float(np.std(seconds)), "calls": len(seconds)}


def torch_times(model: Any, forward: Callable[[], Any]) -> Times:
    times: Times = {}
    handles = [handle for name, module in model.named_children() for handle in _clocked(module, name, times)]
    for _ in range(WARMUP + TIMED):
        forward()
    for handle in handles:
        handle.remove()
    return _per_pass(times)


def _clocked(module: Any, name: str, times: Times) -> list[Any]:
    began = [0.0]

    def before(*_: Any) -> None:
        began[0] = time.perf_counter()

    def after(*_: Any) -> None:
        times.setdefault(name, []).append(time.perf_counter() - began[0])

    return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]


def _per_pass(times: Times) -> Times:
    """Without the first passes; a part that is used several times in a pass counts with all of them."""
    found: Times = {}
    for name, values in times.items():
        uses = len(values) // (WARMUP + TIMED)
        if uses:
            sums = [sum(values[at : at + uses]) for at in range(0, len(values), uses)]
            found[name] = sums[WARMUP : WARMUP + TIMED]
    return found


# -- ONNX --------------------------------------------------------------------------------------------------------------


def onnx_times(graph: Graph, exported: bytes, feed: dict[str, Any]) -> Times:
    """Optimised as it always is."""
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="neuraldbg-") as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(exported, options, providers=["CPUExecutionProvider"])
        for _ in range(WARMUP + TIMED):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
    return times_of_profile(graph, events)


def times_of_profile(graph: Graph, events: Sequence[dict[str, Any]]) -> Times:
    """From what the profiler wrote: microseconds, one event a node and pass. Nodes are called by the path of the module
    they come from, `/Dense_1/Gemm`; merged ones by their parts, and then all must be of one layer."""
    passes = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") == "model_run")[-TIMED:]
    nodes = [e for e in events if e.get("cat") == "Node" and str(e["name"]).endswith("_kernel_time")]
    times: Times = {}
    for event in nodes:
        parts = [part for part in str(event["name"]).replace(" ", "/").split("/") if owner(graph, part) is not None]
        number = next((n for n, (begin, end) in enumerate(passes) if begin <= event["ts"] <= end), None)
        if len({owner(graph, part) for part in parts}) == 1 and number is not None:
            times.setdefault(parts[0], [0.0] * len(passes))[number] += event["dur"] / 1e6
    return times


# -- Keras -------------------------------------------------------------------------------------------------------------


def keras_times(model: Any, inputs: Any) -> Times:
    """`predict` compiles a model as a whole, and of that nobody can tell layers apart."""
    import keras

    times: Times = {}
    depth, original = [0], keras.Layer.__call__

    def __call__(layer: Any, *args: Any, **kwargs: Any) -> Any:
        depth[0] += 1
        begin = time.perf_counter()
        try:
            output = _done(original(layer, *args, **kwargs))
        finally:
            depth[0] -= 1
        if depth[0] == 1:  # below the model itself
            times.setdefault(layer.name, []).append(time.perf_counter() - begin)
        return output

    keras.Layer.__call__ = __call__
    try:
        for _ in range(WARMUP + TIMED):
            model(inputs, training=False)
    finally:
        keras.Layer.__call__ = original
    return _per_pass(times)


def _done(output: Any) -> Any:
    """JAX hands out results before they are there."""
    wait = getattr(output, "block_until_ready", None)
    return wait() if wait is not None else output
