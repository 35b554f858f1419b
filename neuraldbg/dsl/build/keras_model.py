"""The Keras model of a network: a function that makes it, as a person would write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuraldbg.dsl.build.code import Code
from neuraldbg.dsl.build.keras_layers import (
    BLOCKS,
    INLINE,
    activation_layer,
    activation_name,
    coder_layer,
    layer_of,
    padding_of,
    quoted,
    rnn_layer,
)
from neuraldbg.dsl.build.model_code import class_name
from neuraldbg.dsl.build.naming import Names
from neuraldbg.dsl.graph import Graph, Step, written

_MERGES = {
    "add": "Add",
    "subtract": "Subtract",
    "multiply": "Multiply",
    "average": "Average",
    "maximum": "Maximum",
}


class KerasModelCode:
    """`code` is the function; `blocks` the classes it needs besides."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.code = Code()
        self.blocks = {BLOCKS[step.op] for step in graph.steps if step.op in BLOCKS}
        if any(step.op == "transformer" for step in graph.steps):
            self.blocks |= {"TransformerEncoder", "TransformerDecoder"}
        self._names = Names(graph)
        self._penalties = {name: (l1, l2) for name, l1, l2 in graph.penalties}
        self._where: dict[int, str] = {}
        self._write()

    def _write(self) -> None:
        graph, code, line = self.graph, self.code, self.graph.network.line
        code.add(f"def {class_name(graph.network.name)}():", line)
        with code.indented():
            shapes = ", ".join(written(each.shape) for each in graph.inputs)
            code.add(f'"""{shapes} in, {written(graph.shape)} out."""', line)
            inputs = self._inputs()
            for index, step in enumerate(graph.steps):
                self._step(index, step)
            made = self._where[graph.output]
            code.add(f"return keras.Model({inputs}, {made}, name={quoted(graph.network.name)})", line)

    def _inputs(self) -> str:
        """The names that hold them for as long as the function runs."""
        names = self._names.inputs
        held = ["inputs"] if len(names) == 1 else names
        for each, name, given in zip(self.graph.inputs, held, self.graph.network.inputs, strict=True):
            kind = ', dtype="int32"' if each.vocabulary is not None else ""
            called = f", name={quoted(each.name)}" if each.name else ""
            self.code.add(f"{name} = keras.Input({tuple(each.shape)}{kind}{called})", given.line)
            self._where[each.value] = name
        return held[0] if len(held) == 1 else f"[{', '.join(held)}]"

    # -- steps -----------------------------------------------------------------------------------------------------

    def _step(self, index: int, step: Step) -> None:
        values = [self._value(step, value) for value in step.inputs]
        target = self._names.target(index, step)
        write: Callable[..., str] | None = getattr(self, f"_write_{step.op}", None)
        if step.op in _MERGES:
            write = self._merged
        expression = write(step, values) if write else f"{layer_of(step, self._penalties)}({', '.join(values)})"
        if step.activation is not None and not (step.op in INLINE and activation_name(step) is not None):
            name = step.name if step.op == "activation" else f"{step.name}_{step.activation}"
            expression = f"{activation_layer(step, name)}({expression})"
        self.code.add(f"{target} = {expression}", step.line)
        self._where[step.output] = target

    def _value(self, step: Step, value: int) -> str:
        """Token ids are whole numbers; only an embedding wants them so."""
        name = self._where[value]
        return f'ops.cast({name}, "float32")' if self.graph.values[value].tokens and step.op != "embedding" else name

    def _write_activation(self, step: Step, values: list[str]) -> str:
        return values[0] if step.activation else f"layers.Identity(name={quoted(step.name)})({values[0]})"

    def _write_conv(self, step: Step, values: list[str]) -> str:
        value = values[0]
        if padding_of(step) is None:
            pads = step.options["pads"]
            rank = step.options["rank"]
            value = f"layers.ZeroPadding{rank}D({pads[0] if rank == 1 else tuple(pads)})({value})"
        return f"{layer_of(step, self._penalties)}({value})"

    def _write_flatten(self, step: Step, values: list[str]) -> str:
        return f"layers.Flatten(name={quoted(step.name)})({values[0]})"

    def _write_lambda(self, step: Step, values: list[str]) -> str:
        python = step.options["python"].replace("torch.clamp", "ops.clip").replace("torch.", "ops.")
        return f"layers.Lambda(lambda x: {python}, name={quoted(step.name)})({values[0]})"

    def _write_fold_time(self, step: Step, values: list[str]) -> str:
        return f"ops.reshape({values[0]}, {(-1, *step.shape)})"

    def _write_unfold_time(self, step: Step, values: list[str]) -> str:
        return f"ops.reshape({values[0]}, {(-1, *step.shape)})"

    def _write_rnn(self, step: Step, values: list[str]) -> str:
        o, value = step.options, values[0]
        if o["layers"] == 1:
            return f"{rnn_layer(o, o['sequences'], quoted(step.name))}({value})"
        last = o["layers"] - 1
        for number in range(last):
            layer = rnn_layer({**o, "dropout": o["dropout"] if number else 0.0}, True, quoted(f"{step.name}_{number}"))
            self.code.add(f"x = {layer}({value})", step.line)
            value = "x"
        return f"{rnn_layer(o, o['sequences'], quoted(f'{step.name}_{last}'))}({value})"

    def _repeated(self, step: Step, kind: str, options: dict[str, Any], values: list[str], called: str = "") -> str:
        """One after the other, named by their number where there are several."""
        value, *memory = values
        times = options["layers"]
        for number in range(times):
            name = step.name if times == 1 and not called else f"{step.name}{called}_{number}"
            layer = coder_layer(kind, options, quoted(name))
            if number == times - 1:
                return f"{layer}({', '.join([value, *memory])})"
            self.code.add(f"x = {layer}({', '.join([value, *memory])})", step.line)
            value = "x"
        return value

    def _write_encoder(self, step: Step, values: list[str]) -> str:
        return self._repeated(step, "Encoder", step.options, values)

    def _write_decoder(self, step: Step, values: list[str]) -> str:
        return self._repeated(step, "Decoder", {**step.options, "causal": True}, values)

    def _write_transformer(self, step: Step, values: list[str]) -> str:
        """An encoder and a decoder that both read the input, each with a normalisation at its end."""
        o, value = {**step.options, "causal": False}, values[0]
        if value == "x":
            value = self._names.free(f"{step.name}_input")
            self.code.add(f"{value} = x", step.line)
        memory = self._names.free(f"{step.name}_memory")
        coded = self._repeated(step, "Encoder", {**o, "layers": o["encoders"]}, [value], "_encoder")
        norm = f"layers.LayerNormalization(epsilon=1e-05, name={quoted(step.name + '_encoder_norm')})"
        self.code.add(f"{memory} = {norm}({coded})", step.line)
        coded = self._repeated(step, "Decoder", {**o, "layers": o["decoders"]}, [value, memory], "_decoder")
        return f"layers.LayerNormalization(epsilon=1e-05, name={quoted(step.name)})({coded})"

    def _write_attention(self, step: Step, values: list[str]) -> str:
        causal = ", use_causal_mask=True" if step.options["causal"] else ""
        return f"{layer_of(step, self._penalties)}({values[0]}, {values[-1]}{causal})"

    def _write_dot_attention(self, step: Step, values: list[str]) -> str:
        return f"{layer_of(step, self._penalties)}({values[0]}, {values[-1]})"

    # -- merging ---------------------------------------------------------------------------------------------------

    def _spread(self, step: Step, values: list[str]) -> list[str]:
        """A vector beside an image: one value for every position."""
        rank, spread = len(step.shape), []
        for text, shape in zip(values, step.shapes_in, strict=True):
            longer = (1,) * (rank - len(shape)) + tuple(shape)
            spread.append(f"layers.Reshape({longer})({text})" if len(shape) < rank else text)
        return spread

    def _merged(self, step: Step, values: list[str]) -> str:
        return f"layers.{_MERGES[step.op]}(name={quoted(step.name)})([{', '.join(self._spread(step, values))}])"

    def _write_concatenate(self, step: Step, values: list[str]) -> str:
        axis = step.options["axis"]
        where = "" if axis == len(step.shape) else f"axis={axis}, "
        if len(values) == 1:
            return f"layers.Identity(name={quoted(step.name)})({values[0]})"
        return f"layers.Concatenate({where}name={quoted(step.name)})([{', '.join(values)}])"

    def _write_dot(self, step: Step, values: list[str]) -> str:
        first, second = values
        normal = "normalize=True, " if step.options["normalize"] else ""
        if step.options["rank"] == 1:
            return f"layers.Dot(-1, {normal}name={quoted(step.name)})([{first}, {second}])"
        if normal:
            first, second = f"ops.normalize({first})", f"ops.normalize({second})"
        return f"ops.matmul({first}, ops.swapaxes({second}, -1, -2))"
