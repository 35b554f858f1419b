"""The class of a network, as a person would write it."""

from __future__ import annotations

import keyword

from neuraldbg.dsl.build.code import Code
from neuraldbg.dsl.build.forward import Forward
from neuraldbg.dsl.build.modules import BLOCKS, initializer, module_of
from neuraldbg.dsl.graph import Graph, Step, written

_TAKEN = frozenset({"torch", "nn", "F", "math", "numpy", "sys", "train", "evaluate", "main", *BLOCKS.values()})


def class_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name in _TAKEN else name


class ModelCode:
    """`code` is the class; `blocks` the classes it needs besides, `functional` whether it uses F."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.code = Code()
        forward = Forward(graph)
        body = forward.write()
        self.functional = forward.functional
        self.blocks = {BLOCKS[step.op] for step in graph.steps if step.op in BLOCKS} | forward.needs
        self._write(forward, body)

    def _write(self, forward: Forward, body: Code) -> None:
        graph, code = self.graph, self.code
        line = graph.network.line
        code.add(f"class {class_name(graph.network.name)}(nn.Module):", line)
        with code.indented():
            code.add(f'"""{self._summary()}"""', line)
            code.add()
            code.add("def __init__(self):", line)
            with code.indented():
                code.add("super().__init__()", line)
                self._modules(forward)
            code.add()
            code.add(f"def forward(self, {', '.join(forward.parameters)}):", line)
            with code.indented():
                code.extend(body)
            if graph.penalties:
                self._penalty()

    def _summary(self) -> str:
        shapes = ", ".join(written(each.shape) for each in self.graph.inputs)
        return f"{shapes} in (channels last), {written(self.graph.shape)} out; {self.graph.parameters:,} parameters."

    def _modules(self, forward: Forward) -> None:
        for step in self.graph.steps:
            module = module_of(step)
            if module is not None:
                self.code.add(f"self.{step.name} = {module}", step.line)
            start = initializer(step)
            if start is not None:
                self.code.add(start, step.line)
            if step.options.get("drops_weights") is False:
                self._keep_attention_whole(step)
            if module is not None and step.layer.params.get("trainable") is False:
                self.code.add(f"self.{step.name}.requires_grad_(False)", step.line)
            for name, text in forward.companions.get(step.name, []):
                self.code.add(f"self.{name} = {text}", step.line)

    def _keep_attention_whole(self, step: Step) -> None:
        code = self.code
        code.add(f"for part in self.{step.name}.modules():", step.line)
        with code.indented():
            code.add("if isinstance(part, nn.MultiheadAttention):", step.line)
            with code.indented():
                code.add("part.dropout = 0.0  # else the weights of all pairs of positions are kept", step.line)

    def _penalty(self) -> None:
        """What regularizers add to the loss."""
        code = self.code
        parts = []
        for name, l1, l2 in self.graph.penalties:
            parts += [f"{l1} * self.{name}.weight.abs().sum()"] if l1 else []
            parts += [f"{l2} * self.{name}.weight.square().sum()"] if l2 else []
        code.add()
        code.add("def penalty(self):", self.graph.network.line)
        with code.indented():
            code.add(f"return {' + '.join(parts)}", self.graph.network.line)
