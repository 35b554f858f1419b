"""A checked network as PyTorch: the text of a script, and the same text made to run.

What runs is what `neural compile` writes; only the lines differ: compiled here, every frame names the `.neural` file.
"""

from __future__ import annotations

import os
from typing import Any

from neuraldbg.dsl.build.built import Built
from neuraldbg.dsl.build.code import Code, block_source
from neuraldbg.dsl.build.model_code import ModelCode, class_name
from neuraldbg.dsl.build.training_code import TrainingCode, task_loss
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.losses import Loss
from neuraldbg.dsl.settings import Plan, plan_of


def build(graph: Graph, filename: str = "<text>") -> Built:
    """Compile a network. Imports torch."""
    plan = plan_of(graph.network)[0]
    model, training = ModelCode(graph), TrainingCode(graph, plan)
    code = Code()
    blocks = sorted(model.blocks | training.blocks)
    for line in _imports(model, training, blocks):
        code.add(line, graph.network.line)
    code.extend(model.code)
    code.extend(training.code)
    path = os.path.abspath(filename) if not filename.startswith("<") else filename
    namespace: dict[str, Any] = {"__name__": "neural_model", "__file__": path}
    exec(code.compiled(path, graph.network.line), namespace)
    return Built(graph, plan, task_loss(graph), namespace)


def _imports(model: ModelCode, training: TrainingCode, blocks: list[str]) -> list[str]:
    lines = ["import math"] if training.math else []
    lines += ["import torch", "from torch import nn"]
    if model.functional:
        lines.append("from torch.nn import functional as F")
    if blocks:
        lines.append(f"from neuraldbg.dsl.build.blocks import {', '.join(blocks)}")
    return lines


def script(graph: Graph, file: str) -> str:
    """A file that stands by itself: the model, its training, and a way to start it."""
    plan = plan_of(graph.network)[0]
    model, training = ModelCode(graph), TrainingCode(graph, plan)
    blocks = [block_source(name) for name in sorted(model.blocks | training.blocks)]
    text = "\n".join(blocks)
    functional = model.functional or "F." in text
    lines = [f'"""{graph.network.name}, from {os.path.basename(file)}."""', ""]
    lines += ["from __future__ import annotations", ""] if blocks else []
    lines += ["import math"] if training.math or "math." in text else []
    lines += ["import sys", "", "import torch"]
    lines += [f"from torch import {'Tensor, nn' if 'Tensor' in text else 'nn'}"]
    lines += ["from torch.nn import functional as F"] if functional else []
    body = model.code.text + "\n\n" + training.code.text + "\n\n" + _main(graph, plan, training).text
    split = ", random_split" if "random_split(" in body else ""
    lines += [f"from torch.utils.data import DataLoader, TensorDataset{split}", "", ""]
    for block in blocks:
        lines += [block, "", ""]
    return "\n".join([*lines, ""]) + body


def _main(graph: Graph, plan: Plan, training: TrainingCode) -> Code:
    code = Code()
    name = class_name(graph.network.name)
    names = ["x"] if len(graph.inputs) == 1 else [f"x{n}" for n in range(1, len(graph.inputs) + 1)]
    code.add("def main():")
    with code.indented():
        told = " and ".join([", ".join(names), "y"])
        code.add(f'"""Train on the arrays {told} of a .npz file, or, without one, on random numbers."""')
        code.add("torch.manual_seed(0)")
        code.add("if len(sys.argv) > 1:")
        with code.indented():
            code.add("import numpy")
            code.add("arrays = numpy.load(sys.argv[1])")
            loaded = [
                f'torch.as_tensor(arrays["{n}"]).{_kind(each.vocabulary is not None)}()'
                for n, each in zip(names, graph.inputs, strict=True)
            ]
            target = f'torch.as_tensor(arrays["y"]).{_kind(training.loss.kind == "classes")}()'
            code.add(f"data = TensorDataset({', '.join([*loaded, target])})")
        code.add("else:")
        with code.indented():
            made = [_random(each.shape, each.vocabulary) for each in graph.inputs]
            code.add(f"data = TensorDataset({', '.join([*made, _random_target(graph, training.loss)])})")
        loader = f"batch_size={plan.batch_size}, shuffle={plan.shuffle})"
        if 0 < plan.validation_split < 1:
            code.add(f"held = int(len(data) * {plan.validation_split:g})")
            code.add("apart, rest = random_split(data, [held, len(data) - held])")
            code.add(f"validation = DataLoader(apart, batch_size={plan.batch_size}) if held else None")
            code.add(f"train({name}(), DataLoader(rest, {loader}, validation)")
        else:
            code.add(f"train({name}(), DataLoader(data, {loader})")
    code.add()
    code.add()
    code.add('if __name__ == "__main__":')
    with code.indented():
        code.add("main()")
    return code


def _kind(whole: bool) -> str:
    return "long" if whole else "float"


def _random(shape: tuple[int, ...], vocabulary: int | None) -> str:
    sizes = ", ".join(map(str, (256, *shape)))
    return f"torch.rand({sizes})" if vocabulary is None else f"torch.randint({vocabulary}, ({sizes}))"


def _random_target(graph: Graph, loss: Loss) -> str:
    if loss.kind == "classes":
        sizes = ", ".join(map(str, (256, *graph.shape[:-1])))
        return (
            f"torch.randint({graph.shape[-1]}, ({sizes},))"
            if len(graph.shape) == 1
            else f"torch.randint({graph.shape[-1]}, ({sizes}))"
        )
    sizes = ", ".join(map(str, (256, *graph.shape)))
    return f"torch.rand({sizes}).round()" if loss.kind == "binary" else f"torch.rand({sizes})"
