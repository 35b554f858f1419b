"""From layers to a graph: shapes checked, the language's meanings applied, every step costed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neuraldbg.dsl.catalogue import MERGES
from neuraldbg.dsl.graph import Graph, InputValue, Shape, Step, Value, size, written
from neuraldbg.dsl.model import Block, Branch, Layer, Network, Node
from neuraldbg.dsl.operands import aligned, merge_operands, second_input
from neuraldbg.dsl.problems import Problem, Severity
from neuraldbg.dsl.rules import RULES, DoesNotFit, Made, Use, WrongArgument
from neuraldbg.dsl.rules.alone import not_applied

UNKNOWN_LENGTH, UNKNOWN_SIDE = 16, 32  # taken where a shape says None
_SEQUENCES = frozenset(
    "LSTM GRU SimpleRNN LSTMCell GRUCell SimpleRNNCell LSTMDropoutWrapper GRUDropoutWrapper SimpleRNNDropoutWrapper "
    "MultiHeadAttention Attention Transformer TransformerEncoder TransformerDecoder PositionalEncoding".split()
)
_LOOKS_BACK = frozenset({"MultiHeadAttention", "Attention", "TransformerDecoder"})
_IMAGES = frozenset(
    "Conv2D DepthwiseConv2D SeparableConv2D Conv2DTranspose MaxPooling2D AveragePooling2D AdaptiveMaxPooling2D "
    "AdaptiveAveragePooling2D UpSampling2D ZeroPadding2D".split()
)
_ONE_CHANNEL = frozenset({"Conv2D", "MaxPooling2D", "AveragePooling2D", "DepthwiseConv2D"})
_ATTENDING = frozenset({"Transformer", "TransformerEncoder", "TransformerDecoder", "MultiHeadAttention", "Attention"})


class Stop(Exception):
    """A layer that breaks: nothing after it has a shape."""


class Lowering:
    """The walk over one network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.problems: list[Problem] = []
        self.inputs: list[int] = []
        self.vocabulary: dict[int, int] = {}
        self.named: dict[str, int] = {}  # layers, branches and inputs by name
        self.starts: list[int] = []  # where the open macros began
        self.pending: list[tuple[Branch, int]] = []  # branches that wait to be merged
        self.encoded: int | None = None  # what the last TransformerEncoder made
        self.used: set[int] = set()
        self.folded = False  # inside TimeDistributed
        self.attending = 0  # blocks of transformers that are open
        self.count = 0
        self.current = -1

    # -- the walk --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        for number, each in enumerate(self.network.inputs):
            shape, unknown = self._known(each.shape)
            if unknown:
                said = f"the input does not say how large it is; {written(shape)} is taken"
                self.problems.append(Problem(Severity.INFO, each.line, each.column, said, "meaning"))
            name = each.name or (f"input_{number + 1}" if len(self.network.inputs) > 1 else "input")
            value = self.value(shape, name, input_name=name)
            self.inputs.append(value)
            self.named[name] = value
        self.current = self.inputs[0]

    def _known(self, shape: tuple[int | None, ...]) -> tuple[Shape, bool]:
        guess = UNKNOWN_SIDE if len(shape) >= 3 else UNKNOWN_LENGTH
        return tuple(guess if dim is None else dim for dim in shape), None in shape

    def walk(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Branch):
                self._branch(node)
            elif isinstance(node, Block):
                self.join(node.line, node.column)
                self.starts.append(self.current)
                self.walk(node.layers)
                self.join(node.line, node.column)
                self.starts.pop()
            else:
                self._layer(node)

    def _branch(self, node: Branch) -> None:
        trunk = self.current
        begins = self.named.get(node.name, trunk) if self.named.get(node.name) in self.inputs else trunk
        held, self.pending = self.pending, []
        self.current = begins
        self.starts.append(begins)
        self.walk(node.layers)
        self.join(node.line, node.column)
        self.starts.pop()
        self.named[node.name] = self.current
        self.pending = [*held, (node, self.current)]
        self.current = trunk

    def join(self, line: int, column: int) -> None:
        """Branches that nothing merged and no layer has read are put side by side."""
        if not self.pending:
            return
        unread = [each for each in self.pending if each[1] not in self.used]
        branches, self.pending = unread or self.pending[-1:], []
        if len(branches) == 1:
            self.current = branches[0][1]
            return
        names = ", ".join(branch.name for branch, _ in branches)
        layer = Layer("Concatenate", f"{branches[-1][0].name}_joined", {}, line, column, "Concatenate")
        values = [value for _, value in branches]
        if len({len(self.shape(value)) for value in values}) > 1:
            values = [self.flat(value, layer) for value in values]
        self.say(Severity.WARNING, layer, f"branches {names} are not merged by a layer: they are concatenated")
        self.apply(layer, values)

    def _layer(self, layer: Layer) -> None:
        self.count += 1
        if layer.type not in MERGES:
            self.join(layer.line, layer.column)
        if layer.device is not None:
            self.say(
                Severity.INFO, layer, f"placed on {layer.device} in the file; the whole network runs on one device"
            )
        if layer.type == "ResidualConnection" or (layer.type == "Inception" and layer.sublayers):
            self._container(layer)
        elif layer.type in ("Bidirectional", "TimeDistributed"):
            self._wrapper(layer)
        elif layer.type in MERGES:
            values = merge_operands(self, layer)
            self.pending = []
            if values:
                self.apply(layer, values)
        elif layer.type != "Embedding" or not self._next_text(layer):
            self.apply(layer, [self.current])
        self.named[layer.name] = self.current
        if layer.type == "TransformerEncoder":
            self.encoded = self.current
        if layer.sublayers and layer.type not in ("ResidualConnection", "Inception"):
            self.attending += layer.type in _ATTENDING
            self.walk(layer.sublayers)
            self.attending -= layer.type in _ATTENDING

    def _container(self, layer: Layer) -> None:
        start = self.current
        self.starts.append(start)
        self.walk(layer.sublayers)
        self.starts.pop()
        if layer.type == "ResidualConnection":
            self.join(layer.line, layer.column)
            shortcut = aligned(self, layer, self.current, start)
            if shortcut is not None:
                self.apply(replace(layer, type="Add"), [self.current, shortcut])
        else:
            self.join(layer.line, layer.column)

    def _wrapper(self, layer: Layer) -> None:
        inner = layer.inner
        if inner is None:
            raise self.broken(layer, f"{layer.type} needs a layer, as in {layer.type}(LSTM(64))", kind="value")
        if layer.type == "Bidirectional":
            merged = replace(inner, name=layer.name, params={**inner.params, "bidirectional": True}, line=layer.line)
            if "RNN" not in inner.type and inner.type not in ("LSTM", "GRU"):
                raise self.broken(layer, f"Bidirectional takes LSTM, GRU or SimpleRNN, not {inner.type}", kind="value")
            mode = str(layer.params.get("merge_mode") or "concat").lower()
            if mode not in ("concat", "none"):
                self.say(Severity.WARNING, layer, f"merge_mode={mode} is not applied: both directions are concatenated")
            self.apply(merged, [self.current])
            return
        shape = self.shape(self.current)
        if len(shape) < 2:
            self.say(Severity.WARNING, layer, f"its input is {written(shape)}: there is no time to distribute over")
            self.apply(replace(inner, name=layer.name), [self.current])
            return
        self.folded = True
        self.step(layer, f"{layer.name}_fold", Made("fold_time", shape[1:], {"length": shape[0]}), [self.current])
        self.apply(replace(inner, name=layer.name, line=layer.line), [self.current])
        self.folded = False
        made = Made("unfold_time", (shape[0], *self.shape(self.current)), {"length": shape[0]})
        self.step(layer, f"{layer.name}_unfold", made, [self.current])

    # -- one step --------------------------------------------------------------------------------------------------

    def apply(self, layer: Layer, values: list[int]) -> None:
        """A layer on values: adapted where the language says so, checked by its rule, added as a step."""
        values = self._adapted(layer, values)
        if layer.type == "Embedding" and values[0] not in self.vocabulary and self._positions(layer, values[0]):
            return
        use = Use(layer, tuple(self.shape(value) for value in values))
        try:
            made = RULES[layer.type](use)
        except WrongArgument as error:
            raise self.broken(layer, str(error), kind="value") from None
        except DoesNotFit as error:
            raise self.broken(layer, str(error), kind="shape") from None
        for note in (*use.notes, *not_applied(layer)):
            self.say(Severity.WARNING, layer, note)
        if made.op == "embedding":
            self._reads_tokens(values[0], made.options["words"])
        self.step(layer, layer.name, made, values)

    def _adapted(self, layer: Layer, values: list[int]) -> list[int]:
        first = values[0]
        shape = self.shape(first)
        if layer.type == "Dense" and len(shape) == 3 and self.attending:
            return [self._sequence(layer, first)]
        if layer.type in ("Dense", "Output") and len(shape) >= 3:
            why = f"{layer.type} takes vectors and its input is {written(shape)}: it is flattened first"
            severity = Severity.WARNING if layer.type == "Dense" else Severity.INFO
            self.say(severity, layer, why)
            return [self.flat(first, layer)]
        if layer.type in _SEQUENCES and len(shape) != 2:
            first = self._sequence(layer, first)
        elif layer.type in _IMAGES and len(shape) < 3:
            first = self._image(layer, first)
        elif layer.type in ("Conv1D", "MaxPooling1D", "AveragePooling1D") and len(shape) == 1:
            self.say(Severity.WARNING, layer, f"its input is {written(shape)}: one channel is assumed")
            first = self._reshaped(layer, first, (*shape, 1), "series")
        elif layer.type == "Embedding":
            first = self._token_input(layer, first)
        elif layer.type.startswith("Global") and int(layer.type[-2]) != len(shape) - 1 and not self.values[first].grid:
            self.say(Severity.WARNING, layer, f"its input is {written(shape)}: all of it but the channels is pooled")
        if layer.type in _LOOKS_BACK:
            return [first, *second_input(self, layer, first)]
        return [first, *values[1:]]

    def _sequence(self, layer: Layer, value: int) -> int:
        shape = self.shape(value)
        if len(shape) == 1 and self._open(value):
            why = f"None is read as the length of a sequence of {shape[0]} features each; {UNKNOWN_LENGTH} is taken"
            self.say(Severity.WARNING, layer, why)
            self.values[value] = replace(self.values[value], shape=(UNKNOWN_LENGTH, *shape))
            return value
        if len(shape) == 1:
            length, width = (shape[0], 1) if value in self.inputs else (1, shape[0])
            self.say(Severity.WARNING, layer, f"its input is {written(shape)}: a sequence of {length} is made of it")
        elif layer.type in ("LSTM", "GRU", "SimpleRNN") or "Cell" in layer.type or "Wrapper" in layer.type:
            length, width = shape[0], size(shape[1:])
            self.say(Severity.WARNING, layer, f"its input is {written(shape)}: each of {length} rows is one step")
        else:
            length, width = size(shape[:-1]), shape[-1]
            self.say(Severity.INFO, layer, f"its input is {written(shape)}: {length} patches of {width} are made of it")
        made = self._reshaped(layer, value, (length, width), "sequence")
        if len(shape) == 3 and length == size(shape[:-1]):
            self.values[made] = replace(self.values[made], grid=shape[:-1])
        return made

    def _image(self, layer: Layer, value: int) -> int:
        """Positions that were made of an image are put back; else a matrix has one channel, and a vector one pixel for
        whoever looks at no more than one."""
        shape, grid = self.shape(value), self.values[value].grid
        if grid is not None:
            made = (*grid, shape[-1])
            self.say(Severity.INFO, layer, f"its {shape[0]} positions are the {written(made)} image they were made of")
            return self._reshaped(layer, value, made, "image")
        if len(shape) == 2 and layer.type in _ONE_CHANNEL:
            self.say(Severity.WARNING, layer, f"its input is {written(shape)}: one channel is assumed")
            return self._reshaped(layer, value, (*shape, 1), "image")
        if len(shape) == 1 and layer.type == "Conv2D" and layer.params.get("kernel_size") in (1, (1,), (1, 1)):
            self.say(Severity.WARNING, layer, f"its input is {written(shape)}: it is taken for an image of one pixel")
            return self._reshaped(layer, value, (1, 1, *shape), "image")
        return value

    def _open(self, value: int) -> bool:
        """An input written `(None, 512)` that nothing has read yet."""
        fresh = value in self.inputs and value not in self.used
        return fresh and self.network.inputs[self.inputs.index(value)].open_first

    def _reshaped(self, layer: Layer, value: int, shape: Shape, what: str) -> int:
        self.step(layer, f"{layer.name}_{what}", Made("reshape", shape), [value], implied=True)
        return self.current

    def flat(self, value: int, layer: Layer) -> int:
        shape = self.shape(value)
        if len(shape) < 2:
            return value
        self.step(layer, f"{layer.name}_flatten", Made("flatten", (size(shape),)), [value], implied=True)
        return self.current

    def _token_input(self, layer: Layer, value: int) -> int:
        """Embedding on `(seq, dim)`: the trailing size is the author's note."""
        shape = self.shape(value)
        known = self.values[value]
        if value in self.inputs and len(shape) > 1 and not known.tokens:
            why = f"Embedding reads token ids: of its {written(shape)} input only the {shape[0]} positions count"
            self.say(Severity.WARNING, layer, why)
            self.values[value] = replace(known, shape=shape[:1])
        return value

    def _reads_tokens(self, value: int, words: int) -> None:
        self.values[value] = replace(self.values[value], tokens=True)
        self.vocabulary[value] = min(words, self.vocabulary.get(value, words))

    def _next_text(self, layer: Layer) -> bool:
        """An Embedding behind other layers reads the next input, where there is one that nothing has read. What came
        before is looked at by a decoder; where nothing was encoded for one, it is added."""
        before = self.current
        unread = [value for value in self.inputs if value not in self.used and len(self.shape(value)) == 1]
        if before in self.inputs or not unread:
            return False
        self.apply(layer, unread[:1])
        said = f"it reads input {self.values[unread[0]].maker}, which nothing has read before it"
        if self.encoded is None and self.shape(before) == self.shape(self.current):
            made = Made("add", self.shape(before), flops=size(self.shape(before)))
            self.step(layer, f"{layer.name}_joined", made, [self.current, before], implied=True)
            said += f"; what {self.values[before].maker} makes is added"
        self.say(Severity.WARNING, layer, said)
        return True

    def _positions(self, layer: Layer, value: int) -> bool:
        """An Embedding on what another one made stands for the positions."""
        if value in self.inputs:
            return False
        shape = self.shape(value)
        width = next((layer.params[n] for n in ("output_dim", "embed_dim") if n in layer.params), None)
        if len(shape) == 2 and width == shape[-1]:
            why = f"its input is {written(shape)}, no token ids: it is read as an embedding of the positions"
            self.say(Severity.WARNING, layer, why)
            options = {"length": shape[0], "width": shape[1], "dropout": 0.0}
            made = Made("learned_positions", shape, options, parameters=size(shape))
            self.step(layer, layer.name, made, [value])
            return True
        maker = self.values[value].maker
        raise self.broken(layer, f"it reads token ids and its input is what {maker} makes", kind="shape")

    def step(self, layer: Layer, name: str, made: Made, values: list[int], *, implied: bool = False) -> None:
        self.used.update(values)
        output = self.value(made.shape, layer.name)
        grid = self.values[values[0]].grid
        if grid is not None and len(made.shape) == 2 and made.shape[0] == size(grid):
            self.values[output] = replace(self.values[output], grid=grid)
        self.steps.append(
            Step(
                name=name,
                op=made.op,
                options=made.options,
                inputs=tuple(values),
                output=output,
                shapes_in=tuple(self.shape(value) for value in values),
                shape=made.shape,
                parameters=made.parameters + (made.activation == "prelu"),
                flops=made.flops,
                layer=layer,
                activation=made.activation,
                implied=implied,
            )
        )
        self.current = output

    # -- small things ----------------------------------------------------------------------------------------------

    def value(self, shape: Shape, maker: str, input_name: str | None = None) -> int:
        self.values.append(Value(len(self.values), shape, maker=maker, input=input_name, folded=self.folded))
        return len(self.values) - 1

    def shape(self, value: int) -> Shape:
        return self.values[value].shape

    def say(self, severity: Severity, layer: Layer, message: str) -> None:
        text = f"{layer.name}: {message}"
        self.problems.append(Problem(severity, layer.line, layer.column, text, "meaning", layer.name))

    def broken(self, layer: Layer, message: str, *, kind: str) -> Stop:
        where = f"{layer.name} (layer {self.count})"
        said = f"{where}: {message}"
        self.problems.append(Problem(Severity.ERROR, layer.line, layer.column, said, kind, layer.name))
        return Stop()

    def graph(self) -> Graph:
        for value, each in zip(self.inputs, self.network.inputs, strict=True):
            if value not in self.used and value != self.current:
                said = f"input {self.values[value].maker} is not used by any layer"
                self.problems.append(Problem(Severity.WARNING, each.line, each.column, said, "meaning"))
        inputs = tuple(
            InputValue(value, each.name, self.shape(value), self.vocabulary.get(value))
            for value, each in zip(self.inputs, self.network.inputs, strict=True)
        )
        return Graph(
            self.network,
            inputs,
            tuple(self.values),
            tuple(self.steps),
            self.current,
            tuple(self.problems),
            lines=dict(self.network.lines),
        )
