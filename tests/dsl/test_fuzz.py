"""Any file: a valid one comes through formatting unchanged in meaning, a broken one gets an error with a position."""

from __future__ import annotations

from corpus import FILES, train_one_step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuraldbg.dsl import parse
from neuraldbg.dsl.check import check
from neuraldbg.dsl.formatting import format_text
from neuraldbg.errors import DslError

TEXTS = [file.read_text() for file in FILES]
RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name not in ("true", "false", "none", "null", "hpo", "x")
)
numbers = st.one_of(st.integers(1, 64), st.floats(0.001, 0.9, allow_nan=False).map(lambda v: round(v, 4)))
strings = st.sampled_from(['"relu"', "'tanh'", '"a \\"b\\" // c"', "relu"])
spaces = st.sampled_from([" ", "\n    ", "  # note\n    ", " /* note */ ", " // note\n    "])


def joined(parts: list[str]) -> str:
    return ", ".join(parts)


values = st.recursive(
    st.one_of(numbers.map(str), strings, st.sampled_from(["true", "False", "None", "-3", "1e-4", "2 * 3 + 1", "(4)"])),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({joined(parts)})"),
        st.lists(inner, max_size=3).map(lambda parts: f"[{joined(parts)}]"),
        st.lists(numbers.map(str), min_size=1, max_size=3).map(lambda parts: f"HPO(choice({joined(parts)}))"),
        inner.map(lambda value: f"L2(amount={value})"),
        st.tuples(names, inner).map(lambda pair: f"{{ {pair[0]}: {pair[1]} }}"),
    ),
    max_leaves=5,
)
arguments = st.lists(st.tuples(names, values, st.sampled_from(["=", ": ", " = "])), max_size=3).map(
    lambda found: joined([f"{name}{sign}{value}" for name, value, sign in found])
)
kinds = st.sampled_from(["Dense", "Conv2D", "Dropout", "Flatten", "LSTM", "MyLayer", "Output"])


@st.composite
def items(draw: st.DrawFn, depth: int = 2) -> str:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        text = draw(kinds)
        text += f"({draw(arguments)})" if draw(st.booleans()) else ""
        text += ' @ "cuda:0"' if draw(st.booleans()) else ""
        if depth and draw(st.integers(0, 3)) == 0:
            text += f" {{ {draw(items(depth - 1))} }}"
        text += f" * {draw(st.integers(1, 3))}" if draw(st.integers(0, 3)) == 0 else ""
        if depth and draw(st.integers(0, 5)) == 0:
            text = f"{draw(names)}_branch: {{ {draw(items(depth - 1))} }}"
        found.append(text + draw(st.sampled_from(["", ";", ","])))
    return draw(spaces).join(found)


@st.composite
def files(draw: st.DrawFn) -> str:
    space = draw(spaces)
    parts = [f"define M{n}{space}{{ {draw(items())}\n }}" for n in range(draw(st.integers(0, 2)))]
    for n in range(draw(st.integers(1, 2))):
        sections = [
            f"input: ({draw(st.integers(1, 9))},)",
            f"layers: {draw(items())}\n",
            f"loss: {draw(st.sampled_from(['mse', chr(34) + 'mae' + chr(34)]))}",
            f"optimizer: Adam({draw(arguments)})",
            f"train {{ epochs: {draw(st.integers(1, 9))}{space}batch_size: 4 }}",
        ]
        parts.append(f"network N{n} {{{space}{space.join(draw(st.permutations(sections)))}\n }}")
    return "\n".join(draw(st.permutations(parts)))


@RELAXED
@given(files())
def test_valid_files_come_through_formatting(text: str) -> None:
    program = parse(text)
    once = format_text(text)
    assert parse(once).to_dicts() == program.to_dicts()
    assert format_text(once) == once
    assert sorted(text.count(mark) for mark in ("# note", "// note", "/* note */")) == sorted(
        once.count(mark) for mark in ("# note", "// note", "/* note */")
    )


def refusal_of(text: str) -> DslError | None:
    try:
        check(parse(text, "fuzzed.neural"))
    except DslError as error:
        return error
    return None


def judged(text: str) -> None:
    """Read and checked, or refused with a place in the file; nothing else."""
    error = refusal_of(text)
    if error is None:
        return
    lines = text.count("\n") + 1
    assert error.problems
    assert all(1 <= each.line <= lines and each.column >= 1 and each.message for each in error.problems)
    assert "fuzzed.neural:" in error.listing


PIECES = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ",",
    ":",
    "=",
    "*",
    "@",
    "$",
    '"',
    "/*",
    "#",
    "-",
    "1e999",
    "None",
    "layers:",
    "9",
]


@RELAXED
@given(
    st.sampled_from(TEXTS),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(["", *PIECES])), min_size=1, max_size=4),
)
def test_mutated_files_get_an_error_with_a_position(text: str, edits: list[tuple[float, int, str]]) -> None:
    for place, cut, piece in edits:
        at = int(place * len(text))
        text = text[:at] + piece + text[at + cut :]
    judged(text)


@RELAXED
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    judged(text)


@RELAXED
@given(
    st.lists(
        st.sampled_from([*PIECES, "network", "N", "input", "define", "Dense", "HPO", "choice", "loss", " "]),
        max_size=60,
    )
)
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    judged(" ".join(words))


LAYERS = [
    "Dense(6, 'relu')",
    "Conv2D(4, 3, padding='same')",
    "Conv2D(3, 2, strides=2)",
    "Conv1D(4, 3, padding='same')",
    "MaxPooling2D(3, strides=2, padding='same')",
    "AveragePooling2D(2, padding='same')",
    "Flatten()",
    "Reshape((-1, 2))",
    "BatchNormalization()",
    "LayerNormalization()",
    "GroupNormalization(groups=1)",
    "Activation('softmax')",
    "LSTM(4, return_sequences=true)",
    "Bidirectional(GRU(3))",
    "TimeDistributed(Dense(3))",
    "TimeDistributed(LSTM(3))",
    "Embedding(20, 6)",
    "MultiHeadAttention(2, 3)",
    "TransformerEncoder(2, 8)",
    "TransformerDecoder(2, 8)",
    "Add()",
    "Multiply()",
    "Concatenate()",
    "ResidualConnection { Dense(5) }",
    "SqueezeExcitation(2)",
    "GlobalAveragePooling2D()",
    "GlobalMaxPooling1D()",
    "UpSampling2D()",
    "Conv2DTranspose(3, 3, strides=2, padding='same')",
    "a: { Dense(4) } b: { Dense(4) }",
    "Block(5) * 2",
    "Output(3, 'softmax')",
]
INPUTS = ["(8,)", "(9, 4)", "(8, 8, 2)", "(3, 6, 6, 2)", "(None, 7)", "{ a: (8,) b: (8,) }", "(5, 5)"]
LOSSES = ["mse", "categorical_crossentropy", "binary_crossentropy", "huber"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.sampled_from(INPUTS), st.lists(st.sampled_from(LAYERS), min_size=1, max_size=5), st.sampled_from(LOSSES))
def test_what_passes_the_check_can_be_trained(input: str, layers: list[str], loss: str) -> None:
    macro = "define Block(n) { Dense($n) Dropout(0.1) Dense($n) Add() }"
    text = f"{macro} network N {{ input: {input} layers: {' '.join(layers)} loss: {loss} optimizer: adam }}"
    if refusal_of(text) is not None:
        return
    graph = check(parse(text))[0][0]
    if 0 < graph.parameters < 500_000 and graph.flops < 10**7:
        model, _ = train_one_step(graph)
        assert sum(p.numel() for p in model.parameters()) == graph.parameters
