"""Reading: every construct of both grammars, and mistakes that are shown where they are."""

from __future__ import annotations

import tracemalloc

import pytest

from neuraldbg.dsl import parse
from neuraldbg.dsl.problems import Source, render_all
from neuraldbg.errors import DslError

NETWORK = "network N {{ input: (4,) layers: {layers} loss: mse optimizer: adam }}"


def layers(text: str) -> list[str]:
    program = parse(NETWORK.format(layers=text))
    return [layer.name for layer in program.networks[0].each_layer()]


def mistakes(text: str) -> list[tuple[int, int, str]]:
    with pytest.raises(DslError) as caught:
        parse(text, "m.neural")
    return [(each.line, each.column, each.message) for each in caught.value.problems]


def test_comments_of_three_kinds_are_skipped() -> None:
    text = "# one\n// two\n/* three\n lines */ network N { input: (4,) # four\n layers: Dense(3) // five\n }"
    assert parse(text).networks[0].name == "N"


def test_a_url_in_a_string_is_no_comment() -> None:
    program = parse('research R { references { paper: "https://example.org/x" } }')
    assert program.research == [{"name": "R", "metrics": {}, "references": ["https://example.org/x"]}]


@pytest.mark.parametrize(
    "text", ["Dense(1) Dense(2)", "Dense(1); Dense(2);", "Dense(1), Dense(2)", "[Dense(1), Dense(2)]"]
)
def test_layers_are_separated_in_every_way_of_the_old_files(text: str) -> None:
    assert layers(text) == ["Dense_1", "Dense_2"]


def test_layer_names_do_not_mind_case_and_macros_do_come_first() -> None:
    assert layers("dense(1) DENSE(2) Flatten") == ["Dense_1", "Dense_2", "Flatten_1"]
    text = "define Dense { Dropout(0.1) } network N { input: (3) layers: Dense dense(2) }"
    assert [each.type for each in parse(text).networks[0].each_layer()] == ["Dropout", "Dense"]


def test_names_given_in_the_file_are_kept_and_made_unique() -> None:
    assert layers('Dense(1, name="a") Dense(2, name="a") Dense(3)') == ["a", "a_2", "Dense_3"]


@pytest.mark.parametrize(
    ("written", "shape"),
    [
        ("(28, 28, 1)", (28, 28, 1)),
        ("(None, 28, 28, 1)", (28, 28, 1)),
        ("(NONE, 512)", (512,)),
        ("(784,)", (784,)),
        ("(3)", (3,)),
        ("shape(1, 28, 20)", (28, 20, 1)),
    ],
)
def test_inputs_are_written_in_many_ways(written: str, shape: tuple[int, ...]) -> None:
    network = parse(f"network N {{ input: {written} layers: Dense(1) }}").networks[0]
    assert [each.shape for each in network.inputs] == [shape]


@pytest.mark.parametrize("written", ["[(2,), (3,)]", "(2,), (3,)", "{ a: (2,) b: (3,) }", "{ a: (2,), b: (3,) }"])
def test_several_inputs(written: str) -> None:
    network = parse(f"network N {{ input: {written} layers: Dense(1) }}").networks[0]
    assert [each.shape for each in network.inputs] == [(2,), (3,)]


@pytest.mark.parametrize(
    ("written", "name", "params"),
    [
        ("Adam(learning_rate=0.01, beta_1=0.8)", "Adam", {"learning_rate": 0.01, "beta_1": 0.8}),
        ('"adam"', "adam", {}),
        ('"Adam(learning_rate=1e-4)"', "Adam", {"learning_rate": 1e-4}),
        ("Adam", "Adam", {}),
        ('{ type: "SGD", params: { momentum: 0.9 } }', "SGD", {"momentum": 0.9}),
    ],
)
def test_optimizers_are_written_in_many_ways(written: str, name: str, params: dict[str, float]) -> None:
    setting = (
        parse(f"network N {{ input: (2) layers: Dense(1) optimizer: {written} train {{ epochs: 1 }} }}")
        .networks[0]
        .optimizer
    )
    assert setting is not None
    assert (setting.name, setting.params) == (name, params)


def test_the_words_of_the_language_do_not_mind_case() -> None:
    program = parse("Define Block { Dense(3) } NETWORK N { Input: (2) Layers: Block LOSS: mae Train { epochs: 2 } }")
    network = program.networks[0]
    assert network.loss is not None
    assert (network.loss.name, network.training) == ("mae", {"epochs": 2})


def test_sections_behind_layers_may_be_written_with_an_equals_sign() -> None:
    network = parse('network N { input = (2) layers: Dense(1) loss = "mae" optimizer = SGD(0.1) }').networks[0]
    assert network.loss is not None
    assert (network.loss.name, [layer.name for layer in network.each_layer()]) == ("mae", ["Dense_1"])


def test_macros_take_arguments_defaults_and_arithmetic() -> None:
    text = """define Inner(a, b=2) { Dense($a * $b + 1) }
    define Outer(n) { Inner($n) * 2 Inner(b=$n / 2, a=$n) }
    network N { input: (3) layers: Outer(6) }"""
    network = parse(text).networks[0]
    assert [layer.params["units"] for layer in network.each_layer()] == [13, 13, 19]


def test_the_model_dict_is_that_of_the_original_parser() -> None:
    text = """network M { input: (None, 8) layers: Dense(units=HPO(choice(4, 8)), activation="relu")
    Dropout(HPO(range(0.1, 0.5, step=0.1)))
    Output(2) { Flatten() } loss: "mse" optimizer: Adam(learning_rate=HPO(log_range(1e-4, 1e-2)))
    train { epochs: 3 batch_size: 16 search_method: "random" } execution { device: "gpu" } }"""
    assert parse(text).to_dicts() == [
        {
            "name": "M",
            "input": {"type": "Input", "shape": (8,)},
            "layers": [
                {
                    "type": "Dense",
                    "params": {"units": {"hpo": {"type": "categorical", "values": [4, 8]}}, "activation": "relu"},
                    "sublayers": [],
                },
                {
                    "type": "Dropout",
                    "params": {"rate": {"hpo": {"type": "range", "start": 0.1, "end": 0.5, "step": 0.1}}},
                    "sublayers": [],
                },
                {
                    "type": "Output",
                    "params": {"units": 2},
                    "sublayers": [{"type": "Flatten", "params": None, "sublayers": []}],
                },
            ],
            "loss": "mse",
            "optimizer": {
                "type": "Adam",
                "params": {"learning_rate": {"hpo": {"type": "log_range", "start": 1e-4, "end": 1e-2}}},
            },
            "training": {"epochs": 3, "batch_size": 16, "search_method": "random"},
            "execution": {"device": "gpu"},
            "execution_config": {"device": "gpu"},
        }
    ]


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_a_mistake_names_file_line_column_and_what_was_expected() -> None:
    text = "network N {\n    input: (4,)\n    layers:\n        Dense(3 4)\n}"
    with pytest.raises(DslError) as caught:
        parse(text, "m.neural")
    assert caught.value.listing == (
        "m.neural:4:17: error: expected ',' or ')' in the arguments of Dense, not '4'\n"
        " 4 |         Dense(3 4)\n"
        "   |                 ^"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("network A {\n input: (4,)\n layer:\n  Dense(1)\n}", [(3, "did you mean 'layers'?")]),
        ("network A {\n input: (4,\n layers:\n  Dense(1)\n}", [(3, "not ':'")]),
        ("network A {\n input: (4\n layers:\n  Dense(1)\n}", [(3, "not 'layers'")]),
        ("network A {\n input: (4,)\n layers:\n  Dense(1\n  Dense(2)\n}", [(5, "opened on line 4, not 'Dense'")]),
        (
            "network A {\n input: (4,)\n layers:\n  Dnse(1)\n optimizer: Adm\n}",
            [(4, "did you mean Dense?"), (5, "did you mean 'Adam'?")],
        ),
    ],
)
def test_one_mistake_is_told_once_and_several_in_one_run(text: str, said: list[tuple[int, str]]) -> None:
    with pytest.raises(DslError) as caught:
        parse(text)
    told = [(each.line, each.message) for each in caught.value.problems]
    assert [line for line, _ in told] == [line for line, _ in said]
    assert all(expected in message for (_, message), (_, expected) in zip(told, said, strict=True))


def test_one_run_shows_several_mistakes() -> None:
    text = (
        "network N {\n input: (4,)\n layers:\n  Dense(3 4)\n  Dropout(=)\n  Dense(5)\n los: mse\n optimizer: adam ]\n}"
    )
    found = mistakes(text)
    assert [line for line, _, _ in found] == [4, 5, 7, 8]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("network N { input: (4,) layers: Dnse(3) }", "no layer or macro 'Dnse'; did you mean Dense"),
        ("network N { input: (4,) layers: Dense(3) optimzer: adam }", "did you mean 'optimizer'"),
        ("netwrok N { }", "did you mean 'network'"),
        ("define M(rate) { Dense($rat) } network N { input: (4) layers: M(3) }", "did you mean $rate"),
        ("define M(rate) { Dense($rate) } network N { input: (4) layers: M(rat=3) }", "did you mean 'rate'"),
        ("define M(a) { Dense($a) } network N { input: (4) layers: M }", "needs a value for 'a'"),
        ("define M { Dense(1) } network N { input: (4) layers: M(1) }", "takes 0 arguments"),
        ("network N { layers: Dense(3) }", "has no input: section"),
        ("network N { input: (4,) }", "has no layers: section"),
        ("network N { input: (4,) input: (5,) layers: Dense(1) }", "already given on line 1"),
        ("network N { input: (4,) layers: Dense(3)", "expected '}' to close network N"),
        ('network N { input: (4,) layers: Dense(3, "relu) }', "no closing"),
        ("/* open", "no closing */"),
        ("network N { input: (4, 0) layers: Dense(3) }", "whole numbers above 0"),
        ("network N { input: (n,) layers: Dense(3) }", "'n' is not defined"),
        ("network N { input: (4,) layers: Dense(HPO(pick(3))) }", "HPO takes choice"),
        ("network N { input: (4,) layers: Dense(HPO(range(9, 3))) }", "holds no value"),
        ("network N { input: (4,) layers: Dense(4 / 0) }", "division by zero"),
        ("network N { input: (4,) layers: Dense(3) * x }", "how often"),
        ("", "holds no network"),
    ],
)
def test_mistakes_say_what_to_do(text: str, says: str) -> None:
    assert says in mistakes(text)[0][2]


def test_an_unknown_argument_is_a_warning_with_the_nearest() -> None:
    problems = parse("network N { input: (4,) layers: Dense(3, activaton=relu) }").problems
    assert [(each.severity.value, each.message) for each in problems] == [
        ("warning", "Dense has no argument 'activaton'; did you mean 'activation'?")
    ]


# -- bombs and speed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("network N { input: " + "(" * 50_000, "nested more than"),
        ("network N { input: (4) layers: " + "a: { " * 50_000, "nested more than"),
        ("network N { input: (4) layers: Dense(1" + "+1" * 50_000 + ") }", "operators in one expression"),
        ("network N { input: (4) layers: Dense(1) * 999999999 }", "repeats are refused"),
        ("define A { Dense(1) * 9999 } network N { input: (4) layers: A * 9999 }", "more than 20,000 layers"),
        ("define A { B * 2 } define B { A * 2 } network N { input: (4) layers: A }", "uses itself"),
        ("network N { input: (4) layers: Dense(1000000 * 1000000 * 1000000) }", "larger than"),
        ("network N { input: (4) layers: Dense(" + "9" * 5_000 + ") }", "characters is refused"),
        ("x" * 9_000_000, "are refused"),
    ],
)
def test_bombs_are_refused_with_a_reason_before_they_unfold(text: str, says: str) -> None:
    tracemalloc.start()
    try:
        assert says in mistakes(text)[0][2]
        unfolded = tracemalloc.get_traced_memory()[1] - 4 * len(text)
    finally:
        tracemalloc.stop()
    assert unfolded < 60_000_000


def test_deep_macro_chains_are_refused() -> None:
    chain = "".join(f"define M{n} {{ M{n + 1} * 2 }} " for n in range(60)) + "define M60 { Dense(1) } "
    found = mistakes(chain + "network N { input: (4) layers: M0 }")
    assert "refused" in found[0][2]


def test_ten_thousand_lines_are_read() -> None:
    """How fast is told by benchmarks/dsl_reading.py."""
    body = '        Dense(64, activation="relu", use_bias=true, name="layer")  # a comment\n' * 10_000
    text = "network N {\n    input: (4,)\n    layers:\n" + body + '    loss: "mse"\n}\n'
    assert sum(1 for _ in parse(text).networks[0].each_layer()) == 10_000


def test_long_and_strange_lines_are_shown_without_harm() -> None:
    source = Source("network N { " + "\x1b" * 500 + " }", "m.neural")
    with pytest.raises(DslError) as caught:
        parse(source.text, source.name)
    assert "\x1b" not in render_all(caught.value.problems, source)
    assert max(map(len, caught.value.listing.splitlines())) < 200
