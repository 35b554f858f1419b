"""The script of a network, for the backend it is asked for. Imports no framework."""

from __future__ import annotations

from neuraldbg.dsl.graph import Graph


def script_for(backend: str, graph: Graph, file: str) -> str:
    if backend in ("tensorflow", "jax"):
        from neuraldbg.dsl.build.keras_script import keras_script

        return keras_script(graph, file, backend)
    if backend == "onnx":
        from neuraldbg.dsl.build.onnx_model import onnx_script

        return onnx_script(graph, file)
    from neuraldbg.dsl.build.torch_model import script

    return script(graph, file)
