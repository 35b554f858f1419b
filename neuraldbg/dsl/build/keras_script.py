"""A checked network as Keras, on TensorFlow or JAX: the text of a script, and the same text made to run."""

from __future__ import annotations

import os
import sys
from typing import Any

from neuraldbg.dsl.build.built import Built
from neuraldbg.dsl.build.code import Code, block_source
from neuraldbg.dsl.build.keras_model import KerasModelCode
from neuraldbg.dsl.build.keras_training import KerasTrainingCode
from neuraldbg.dsl.build.model_code import class_name
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.losses import Loss
from neuraldbg.dsl.settings import plan_of
from neuraldbg.errors import BackendMissing

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}  # TensorFlow tells of every missing GPU library otherwise


def use_backend(name: str) -> None:
    """Keras reads its backend once, when it is imported."""
    loaded = sys.modules.get("keras")
    if loaded is not None:
        if loaded.backend.backend() != name:
            raise BackendMissing(f"Keras runs on {loaded.backend.backend()} in this process; start another for {name}")
        return
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    os.environ["KERAS_BACKEND"] = name


def build_keras(graph: Graph, filename: str = "<text>", *, backend: str = "tensorflow") -> Built:
    """Compile a network. Imports keras, which imports its backend."""
    plan = plan_of(graph.network)[0]
    model, training = KerasModelCode(graph), KerasTrainingCode(graph, plan)
    use_backend(backend)
    code = Code()
    code.add("import keras", graph.network.line)
    code.add("from keras import layers, ops", graph.network.line)
    blocks = sorted(model.blocks | training.blocks)
    if blocks:
        code.add(f"from neuraldbg.dsl.build.keras_blocks import {', '.join(blocks)}", graph.network.line)
    code.extend(model.code)
    code.extend(training.code)
    path = os.path.abspath(filename) if not filename.startswith("<") else filename
    namespace: dict[str, Any] = {"__name__": "neural_model", "__file__": path}
    exec(code.compiled(path, graph.network.line), namespace)
    return Built(graph, plan, training.loss, namespace)


def keras_script(graph: Graph, file: str, backend: str = "tensorflow") -> str:
    """A file that stands by itself: the model, its training, and a way to start it."""
    plan = plan_of(graph.network)[0]
    model, training = KerasModelCode(graph), KerasTrainingCode(graph, plan)
    blocks = [block_source(name, "keras_blocks") for name in sorted(model.blocks | training.blocks)]
    body = model.code.text + "\n\n" + training.code.text + "\n\n" + _main(graph, training).text
    text = "\n".join(blocks) + body
    lines = [f'"""{graph.network.name}, from {os.path.basename(file)}."""', ""]
    lines += ["import math"] if "math." in text else []
    lines += ["import os", "import sys", "", f'os.environ.setdefault("KERAS_BACKEND", "{backend}")', ""]
    lines += ["import keras  # after its backend is chosen", "import numpy"]
    lines += [f"from keras import {'layers, ops' if 'ops.' in text else 'layers'}", "", ""]
    for block in blocks:
        lines += [block, "", ""]
    return "\n".join([*lines, ""]) + body


def _main(graph: Graph, training: KerasTrainingCode) -> Code:
    code = Code()
    names = ["x"] if len(graph.inputs) == 1 else [f"x{n}" for n in range(1, len(graph.inputs) + 1)]
    code.add("def main():")
    with code.indented():
        told = " and ".join([", ".join(names), "y"])
        code.add(f'"""Train on the arrays {told} of a .npz file, or, without one, on random numbers."""')
        code.add("keras.utils.set_random_seed(0)")
        code.add("if len(sys.argv) > 1:")
        with code.indented():
            code.add("arrays = numpy.load(sys.argv[1])")
            loaded = ", ".join(f'arrays["{name}"]' for name in names)
            code.add(f'inputs, targets = [{loaded}], arrays["y"]')
        code.add("else:")
        with code.indented():
            code.add("random = numpy.random.default_rng(0)")
            made = ", ".join(_random(each.shape, each.vocabulary) for each in graph.inputs)
            code.add(f"inputs, targets = [{made}], {_random_target(graph, training.loss)}")
        _start(code, class_name(graph.network.name), training.plan.validation_split, several=len(names) > 1)
    code.add()
    code.add()
    code.add('if __name__ == "__main__":')
    with code.indented():
        code.add("main()")
    return code


def _start(code: Code, model: str, split: float, *, several: bool) -> None:
    """The call of `train`; what the file holds apart is held apart."""
    if not 0 < split < 1:
        code.add(f"train({model}(), {'inputs' if several else 'inputs[0]'}, targets)")
        return
    apart, rest = (
        ("[each[:held] for each in inputs]", "[each[held:] for each in inputs]")
        if several
        else ("inputs[0][:held]", "inputs[0][held:]")
    )
    code.add(f"held = int(len(targets) * {split:g})")
    code.add(f"validation = ({apart}, targets[:held]) if held else None")
    code.add(f"train({model}(), {rest}, targets[held:], validation)")


def _random(shape: tuple[int, ...], vocabulary: int | None) -> str:
    sizes = (256, *shape)
    return f"random.random({sizes})" if vocabulary is None else f"random.integers({vocabulary}, size={sizes})"


def _random_target(graph: Graph, loss: Loss) -> str:
    if loss.kind == "classes":
        return f"random.integers({graph.shape[-1]}, size={(256, *graph.shape[:-1])})"
    made = f"random.random({(256, *graph.shape)})"
    return f"{made}.round()" if loss.kind == "binary" else made
