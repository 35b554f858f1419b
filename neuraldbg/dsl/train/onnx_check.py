"""After training: the same network as ONNX, run by ONNX Runtime, and what both compute compared."""

from __future__ import annotations

from typing import Any

from neuraldbg.dsl.build.onnx_model import TOLERANCE, difference, run_onnx, to_onnx
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.train.loop import Say
from neuraldbg.dsl.train.samples import Samples
from neuraldbg.errors import NeuralDbgError

COMPARED = 8  # samples


class BackendsDisagree(NeuralDbgError):
    """The same weights give other outputs on another backend."""


def check_onnx(graph: Graph, model: Any, samples: Samples, say: Say) -> float:
    """Exports, runs and compares; the largest difference, as a part of the largest output."""
    import torch

    inputs = [each[:COMPARED] for each in samples.inputs]
    training = model.training
    on_cpu = model.to("cpu").eval()
    with torch.no_grad():
        expected = on_cpu(*(torch.as_tensor(each) for each in inputs)).numpy()
    exported, any_batch = to_onnx(graph, on_cpu, inputs)
    gap = difference(expected, run_onnx(graph, exported, inputs))
    model.train(training)
    if not gap <= TOLERANCE:
        raise BackendsDisagree(f"{graph.network.name}: ONNX Runtime and PyTorch differ by {gap:.1e} of the output")
    batch = "any batch" if any_batch else f"batches of {len(inputs[0])}"
    say(f"onnx: {len(exported):,} bytes for {batch}; ONNX Runtime agrees with PyTorch to {gap:.1e}")
    return gap
