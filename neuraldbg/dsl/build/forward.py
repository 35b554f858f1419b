"""The `forward` of a network. The language's shapes are channels last, PyTorch's convolutions want channels first:
each value is turned where a step needs it, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuraldbg.dsl.build.code import Code
from neuraldbg.dsl.build.modules import activation, module_of, symmetric
from neuraldbg.dsl.build.naming import Names
from neuraldbg.dsl.graph import Graph, Step

LAST, FIRST, ANY = "last", "first", "any"
_LOWEST = "float('-inf')"
_FIRST_OPS = frozenset(
    "conv conv_transpose separable_conv pool adaptive_pool upsample pad batch_norm instance_norm group_norm squeeze "
    "inception".split()
)
_ANY_OPS = frozenset("activation dropout noise identity lambda activity global_pool".split())
_MERGES = {"add": " + ", "subtract": " - ", "multiply": " * "}
_TO_FIRST = {2: ".transpose(1, 2)", 3: ".permute(0, 3, 1, 2)", 4: ".permute(0, 4, 1, 2, 3)"}
_TO_LAST = {2: ".transpose(1, 2)", 3: ".permute(0, 2, 3, 1)", 4: ".permute(0, 2, 3, 4, 1)"}


class Forward:
    """Writes the lines of `forward`, and what `__init__` needs that only the layout decides."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.code = Code()
        self.functional = False  # F is used
        self.companions: dict[str, list[tuple[str, str]]] = {}  # step -> further modules it needs: name, expression
        self.needs: set[str] = set()
        self._where: dict[int, tuple[str, str]] = {}  # value -> variable, layout
        self._names = Names(graph)
        self.parameters = self._names.inputs
        for each, name in zip(graph.inputs, self.parameters, strict=True):
            self._where[each.value] = (name, LAST)

    def write(self) -> Code:
        for index, step in enumerate(self.graph.steps):
            self._step(index, step)
        self.code.add(f"return {self._get(self.graph.output, LAST)}", self._last_line())
        return self.code

    def _last_line(self) -> int:
        return self.graph.steps[-1].line if self.graph.steps else self.graph.network.line

    # -- names -----------------------------------------------------------------------------------------------------

    def _get(self, value: int, layout: str) -> str:
        name, have = self._where[value]
        rank = len(self.graph.values[value].shape)
        if rank < 2 or layout in (ANY, have):
            return name
        return name + (_TO_FIRST if layout == FIRST else _TO_LAST)[rank]

    def _layout(self, step: Step) -> str:
        if step.op in _FIRST_OPS or (step.op == "dropout" and step.options["spatial"]):
            return FIRST
        if step.op in _ANY_OPS:
            return ANY
        alike = {len(shape) for shape in step.shapes_in} == {len(step.shape)}
        if step.op in (*_MERGES, "average", "maximum", "concatenate") and alike:
            return self._where[step.inputs[0]][1]
        return LAST

    # -- steps -----------------------------------------------------------------------------------------------------

    def _step(self, index: int, step: Step) -> None:
        layout = self._layout(step)
        have = self._where[step.inputs[0]][1]
        if step.op == "flatten" and have == FIRST and _order_is_same(step.shapes_in[0]):
            layout = FIRST
        values = [self._get(value, layout) for value in step.inputs]
        values = [self._numbers(step, value, text) for value, text in zip(step.inputs, values, strict=True)]
        result = have if layout == ANY else layout
        target = self._names.target(index, step)
        write: Callable[..., str] | None = getattr(self, f"_write_{step.op}", None)
        expression = write(step, values, result) if write else self._plain(step, values)
        expression = self._activated(step, expression, result)
        self.code.add(f"{target} = {expression}", step.line)
        after = LAST if step.op in ("global_pool", "flatten") and not step.options.get("keep") else result
        self._where[step.output] = (target, after)

    def _numbers(self, step: Step, value: int, text: str) -> str:
        """Token ids are whole numbers; only an embedding wants them so."""
        return f"{text}.float()" if self.graph.values[value].tokens and step.op != "embedding" else text

    def _plain(self, step: Step, values: list[str]) -> str:
        if module_of(step) is None:
            raise NotImplementedError(step.op)
        return f"self.{step.name}({', '.join(values)})"

    def _activated(self, step: Step, expression: str, layout: str) -> str:
        if step.activation is None:
            return expression
        rank = len(step.shape)
        axis = 1 if layout == FIRST and rank > 1 else -1
        name = step.name if step.op == "activation" else f"{step.name}_{step.activation}"
        text = activation(step.activation, axis, step.layer.params.get("alpha"))
        if text.startswith("Exponential"):
            self.needs.add("Exponential")
        self.companions.setdefault(step.name, []).append((name, text))
        return f"self.{name}({expression})"

    def _write_activation(self, _step: Step, values: list[str], _: str) -> str:
        return values[0]

    def _write_activity(self, _step: Step, values: list[str], _: str) -> str:
        return values[0]

    def _write_conv(self, step: Step, values: list[str], _: str) -> str:
        return f"self.{step.name}({self._padded(step, values[0], 0)})"

    _write_separable_conv = _write_conv

    def _write_conv_transpose(self, step: Step, values: list[str], _: str) -> str:
        made, crop = f"self.{step.name}({values[0]})", step.options["crop"]
        return f"{made}[..., {', '.join(':-1' if one else ':' for one in crop)}]" if any(crop) else made

    def _write_pool(self, step: Step, values: list[str], _: str) -> str:
        if step.options["kind"] == "max" or symmetric(step.options["pads"]):
            return f"self.{step.name}({self._padded(step, values[0], _LOWEST)})"
        value = values[0]
        if not value.isidentifier():
            self.code.add(f"x = {value}", step.line)
            value = "x"
        there = self._padded(step, f"torch.ones_like({value})", 0)  # how much of each window is not padding
        return f"self.{step.name}({self._padded(step, value, 0)}) / self.{step.name}({there})"

    def _padded(self, step: Step, value: str, fill: object) -> str:
        pads: list[tuple[int, int]] = step.options["pads"]
        if symmetric(pads):
            return value
        self.functional = True
        flat = tuple(side for pair in reversed(pads) for side in pair)
        return f"F.pad({value}, {flat})" if fill == 0 else f"F.pad({value}, {flat}, value={fill})"

    def _write_group_norm(self, step: Step, values: list[str], _: str) -> str:
        """torch 2.13 on CPU: the backward of GroupNorm crashes on channels-last memory whose gradient nobody needs; of
        three dimensions there is no such memory."""
        if len(step.shape) < 3:
            return f"self.{step.name}({values[0]})"
        return f"self.{step.name}({values[0]}.flatten(2)).unflatten(2, {tuple(step.shape[:-1])})"

    def _write_pad(self, step: Step, values: list[str], _: str) -> str:
        self.functional = True
        flat = tuple(side for pair in reversed(step.options["pads"]) for side in pair)
        return f"F.pad({values[0]}, {flat})"

    def _write_global_pool(self, step: Step, values: list[str], layout: str) -> str:
        rank: int = step.options["rank"]
        if rank == 0:
            return values[0]
        axes = tuple(range(2, rank + 2)) if layout == FIRST else tuple(range(1, rank + 1))
        how = "amax" if step.options["kind"] == "max" else "mean"
        keep = ", keepdim=True" if step.options["keep"] else ""
        return f"{values[0]}.{how}({axes if len(axes) > 1 else axes[0]}{keep})"

    def _write_flatten(self, step: Step, values: list[str], _: str) -> str:
        return f"{values[0]}.flatten(1)" if step.implied else f"self.{step.name}({values[0]})"

    def _write_reshape(self, step: Step, values: list[str], _: str) -> str:
        return f"{values[0]}.reshape({', '.join(map(str, (-1, *step.shape)))})"

    def _write_repeat(self, step: Step, values: list[str], _: str) -> str:
        return f"{values[0]}.unsqueeze(1).expand(-1, {step.options['times']}, -1)"

    def _write_fold_time(self, _step: Step, values: list[str], _: str) -> str:
        return f"{values[0]}.flatten(0, 1)"

    def _write_unfold_time(self, step: Step, values: list[str], _: str) -> str:
        return f"{values[0]}.unflatten(0, (-1, {step.options['length']}))"

    def _write_lambda(self, step: Step, values: list[str], _: str) -> str:
        python: str = step.options["python"]
        return python if values[0] == "x" else f"(lambda x: {python})({values[0]})"

    def _write_rnn(self, step: Step, values: list[str], _: str) -> str:
        o = step.options
        value = values[0]
        if o["dropout"] and o["layers"] == 1:
            self.companions.setdefault(step.name, []).append((f"{step.name}_dropout", f"nn.Dropout({o['dropout']})"))
            value = f"self.{step.name}_dropout({value})"
        call = f"self.{step.name}({value})[0]"
        if o["sequences"]:
            return call
        if not o["both"]:
            return f"{call}[:, -1]"
        self.code.add(f"x = {call}", step.line)  # the last of one direction, the first of the other
        return f"torch.cat((x[:, -1, :{o['units']}], x[:, 0, {o['units']}:]), -1)"

    def _write_encoder(self, step: Step, values: list[str], _: str) -> str:
        if not step.options["causal"]:
            return f"self.{step.name}({values[0]})"
        mask = f"nn.Transformer.generate_square_subsequent_mask({step.shape[0]}, device={values[0]}.device)"
        name = "src_mask" if step.options["layers"] == 1 else "mask"
        return f"self.{step.name}({values[0]}, {name}={mask}, is_causal=True)"

    def _write_decoder(self, step: Step, values: list[str], _: str) -> str:
        mask = f"nn.Transformer.generate_square_subsequent_mask({step.shape[0]}, device={values[0]}.device)"
        return f"self.{step.name}({values[0]}, {values[1]}, tgt_mask={mask})"

    def _write_transformer(self, step: Step, values: list[str], _: str) -> str:
        return f"self.{step.name}({values[0]}, {values[0]})"

    def _write_attention(self, step: Step, values: list[str], _: str) -> str:
        causal = ", causal=True" if step.options["causal"] else ""
        return f"self.{step.name}({', '.join(values)}{causal})"

    def _write_dot_attention(self, step: Step, values: list[str], _: str) -> str:
        self.functional = True
        memory = values[-1]
        width = step.options["width"]
        cut = {len(shape) and shape[-1] for shape in step.shapes_in} != {width}
        query, key = (f"{v}[..., -{width}:]" if cut else v for v in (values[0], memory))
        causal = ", is_causal=True" if step.options["causal"] else ""
        return f"F.scaled_dot_product_attention({query}, {key}, {memory}{causal})"

    # -- merging ---------------------------------------------------------------------------------------------------

    def _spread(self, step: Step, values: list[str]) -> list[str]:
        """A vector beside an image: one value for every position."""
        rank = len(step.shape)
        spread = []
        for text, shape in zip(values, step.shapes_in, strict=True):
            missing = rank - len(shape)
            spread.append(f"{text}[:, {'None, ' * missing}...]" if missing else text)
        return spread

    def _merged(self, step: Step, values: list[str], _: str) -> str:
        return _MERGES[step.op].join(self._spread(step, values))

    _write_add = _write_subtract = _write_multiply = _merged

    def _write_average(self, step: Step, values: list[str], _: str) -> str:
        return f"({' + '.join(self._spread(step, values))}) / {len(values)}"

    def _write_maximum(self, step: Step, values: list[str], _: str) -> str:
        first, *rest = self._spread(step, values)
        for other in rest:
            first = f"torch.maximum({first}, {other})"
        return first

    def _write_concatenate(self, step: Step, values: list[str], layout: str) -> str:
        rank, axis = len(step.shape), step.options["axis"]
        if layout == FIRST and rank > 1:
            axis = 1 if axis == rank else axis + 1
        return f"torch.cat(({', '.join(values)}{',' if len(values) == 1 else ''}), {axis})"

    def _write_dot(self, step: Step, values: list[str], _: str) -> str:
        first, second = values
        if step.options["normalize"]:
            self.functional = True
            first, second = f"F.normalize({first}, dim=-1)", f"F.normalize({second}, dim=-1)"
        if step.options["rank"] == 1:
            return f"({first} * {second}).sum(-1, keepdim=True)"
        return f"{first} @ {second}.transpose(-1, -2)"


def _order_is_same(shape: tuple[int, ...]) -> bool:
    """Whether channels first and last flatten to the same order."""
    spatial: Any = shape[:-1]
    return all(each == 1 for each in spatial) or shape[-1] == 1
