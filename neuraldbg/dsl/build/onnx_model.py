"""A trained network as ONNX: exported from PyTorch, run by ONNX Runtime, and compared with it."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.dsl.build.code import Code
from neuraldbg.dsl.build.model_code import class_name
from neuraldbg.dsl.build.torch_model import script
from neuraldbg.dsl.graph import Graph
from neuraldbg.errors import BackendMissing

TOLERANCE = 1e-4  # of the largest output
OPSET = 17


def input_names(graph: Graph) -> list[str]:
    if len(graph.inputs) == 1:
        return [graph.inputs[0].name or "input"]
    return [each.name or f"input_{number}" for number, each in enumerate(graph.inputs, 1)]


def to_onnx(graph: Graph, model: Any, inputs: Sequence[Any]) -> tuple[bytes, bool]:
    """The model in evaluation mode as an ONNX file, and whether its batch may have any size: where the exporter has
    written that of the example into the file, it is that of `inputs`."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    try:
        exported = export(graph, model, [each[:2] for each in inputs], any_batch=True)
        run_onnx(graph, exported, [each[:3] for each in inputs])
    except (RuntimeError, runtime.Fail, runtime.InvalidGraph, runtime.InvalidArgument):
        return _export_fixed(graph, model, inputs), False
    return exported, True


def _export_fixed(graph: Graph, model: Any, inputs: Sequence[Any]) -> bytes:
    from torch.onnx import errors

    try:
        return export(graph, model, inputs, any_batch=False)
    except errors.OnnxExporterError as error:
        why = str(error).partition("\n")[0][:200]
        raise BackendMissing(f"{graph.network.name} cannot be written as ONNX: {why}") from None


def export(graph: Graph, model: Any, examples: Sequence[Any], *, any_batch: bool) -> bytes:
    import torch

    names = input_names(graph)
    into = io.BytesIO()
    training, fast = model.training, torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # fused attention has no form in ONNX
    try:
        with warnings.catch_warnings(), torch.no_grad(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # the exporter tells of its own successor
            torch.onnx.export(
                model.eval(),
                tuple(torch.as_tensor(each) for each in examples),
                into,  # type: ignore[arg-type]  # the stubs know paths only
                input_names=names,
                output_names=["output"],
                dynamic_axes={name: {0: "batch"} for name in (*names, "output")} if any_batch else None,
                opset_version=OPSET,
                dynamo=False,
            )
    finally:
        model.train(training)
        torch.backends.mha.set_fastpath_enabled(fast)
    return into.getvalue()


def run_onnx(graph: Graph, exported: bytes, inputs: Sequence[Any], *, kept: list[Any] | None = None) -> NDArray[Any]:
    """`kept` holds the session from one call to the next."""
    session = kept[0] if kept else _session(exported)
    if kept is not None and not kept:
        kept.append(session)
    return np.asarray(session.run(None, fed(graph, session, inputs))[0])


def fed(graph: Graph, session: Any, inputs: Sequence[Any]) -> dict[str, Any]:
    """Inputs by their names; one that nothing reads is not in the file."""
    wanted = {each.name for each in session.get_inputs()}
    given = dict(zip(input_names(graph), (np.asarray(each) for each in inputs), strict=True))
    return {name: given[name] for name in given if name in wanted}


def _session(exported: bytes) -> Any:
    import onnxruntime

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    return onnxruntime.InferenceSession(exported, quiet, providers=["CPUExecutionProvider"])


def difference(first: NDArray[Any], second: NDArray[Any]) -> float:
    """The largest difference, as a part of the largest value."""
    if first.shape != second.shape:
        return float("inf")
    return float(np.max(np.abs(first - second), initial=0.0) / max(float(np.max(np.abs(first), initial=0.0)), 1e-12))


def onnx_script(graph: Graph, file: str) -> str:
    """The PyTorch script, that also writes an .onnx file when it has trained and compares what both compute."""
    text = script(graph, file)
    name = class_name(graph.network.name)
    text = text.replace("import sys\n", "import sys\nfrom pathlib import Path\n", 1)
    text = text.replace("\nimport torch\n", "\nimport onnxruntime\nimport torch\n", 1)
    body, _, rest = text.partition("def main():\n")
    rest = rest.replace(f"    train({name}(), ", f"    model = {name}()\n    train(model, ", 1)
    start = rest.index("\n\nif __name__")
    call = '    export(model, data[:4][:-1], Path(sys.argv[0]).with_suffix(".onnx"))\n'
    return body + _export_code(graph).text + "\n\ndef main():\n" + rest[:start] + call + rest[start:]


def _export_code(graph: Graph) -> Code:
    code = Code()
    names = input_names(graph)
    code.add("def export(model, examples, path):")
    with code.indented():
        code.add('"""Write the model as ONNX and check that ONNX Runtime computes the same."""')
        code.add("model.eval()")
        code.add("torch.backends.mha.set_fastpath_enabled(False)  # fused attention has no form in ONNX")
        code.add(f"names = {names}")
        code.add('batch = {name: {0: "batch"} for name in (*names, "output")}')
        code.add("torch.onnx.export(")
        with code.indented():
            code.add('model, tuple(examples), path, input_names=names, output_names=["output"],')
            code.add(f"dynamic_axes=batch, opset_version={OPSET}, dynamo=False,")
        code.add(")")
        code.add("session = onnxruntime.InferenceSession(path)")
        code.add("read = {each.name for each in session.get_inputs()}")
        code.add("feed = {n: e.numpy() for n, e in zip(names, examples) if n in read}")
        code.add("with torch.no_grad():")
        with code.indented():
            code.add("expected = model(*examples).numpy()")
        code.add("gap = abs(session.run(None, feed)[0] - expected).max() / abs(expected).max()")
        code.add('print(f"{path}: outputs agree to {gap:.1e}")')
    return code
