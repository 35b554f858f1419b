"""Shapes, counts and the meanings the language leaves open, before anything runs."""

from __future__ import annotations

import pytest

from neuraldbg.dsl import parse
from neuraldbg.dsl.check import check
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.problems import render_all
from neuraldbg.errors import DslError, ShapeMismatch

TEXT = """network N {{
    input: {input}
    layers:
{layers}
    loss: "{loss}"
    optimizer: "adam"
}}"""


def graph_of(input: str, *layers: str, loss: str = "mse", before: str = "") -> tuple[Graph, list[str]]:
    """The graph, and what was said above info."""
    text = before + TEXT.format(input=input, layers="\n".join(f"        {layer}" for layer in layers), loss=loss)
    graphs, problems = check(parse(text, "n.neural"))
    return graphs[0], [each.message for each in problems if each.severity.value != "info"]


def shape(input: str, *layers: str) -> tuple[int, ...]:
    return graph_of(input, *layers)[0].shape


@pytest.mark.parametrize(
    ("input", "layer", "made"),
    [
        ("(28, 28, 1)", "Conv2D(8, 3)", (26, 26, 8)),
        ("(28, 28, 1)", "Conv2D(8, (3, 5), strides=2)", (13, 12, 8)),
        ("(28, 28, 1)", 'Conv2D(8, 3, strides=2, padding="same")', (14, 14, 8)),
        ("(28, 28, 1)", "Conv2D(8, 3, dilation_rate=2)", (24, 24, 8)),
        ("(28, 28, 1)", "MaxPooling2D(3)", (9, 9, 1)),
        ("(28, 28, 1)", 'AveragePooling2D(3, padding="same")', (10, 10, 1)),
        ("(7, 7, 4)", 'Conv2DTranspose(2, 3, strides=2, padding="same")', (14, 14, 2)),
        ("(7, 7, 4)", "Conv2DTranspose(2, 3, strides=2)", (15, 15, 2)),
        ("(7, 7, 4)", "Conv2DTranspose(2, 2, strides=3)", (21, 21, 2)),
        ("(20, 3)", 'Conv1D(4, 5, padding="causal")', (20, 4)),
        ("(4, 5, 6)", "Flatten()", (120,)),
        ("(4, 5, 6)", "Reshape((-1, 6))", (20, 6)),
        ("(20, 3)", "LSTM(8)", (8,)),
        ("(20, 3)", "LSTM(8, return_sequences=true)", (20, 8)),
        ("(20, 3)", "Bidirectional(GRU(8))", (16,)),
        ("(20,)", "Embedding(100, 8)", (20, 8)),
        ("(20, 8)", "TransformerEncoder(2, 16)", (20, 8)),
        ("(6, 8, 8, 3)", "TimeDistributed(Conv2D(4, 3))", (6, 6, 6, 4)),
        ("(8, 8, 3)", "GlobalAveragePooling2D()", (3,)),
        ("(8, 8, 3)", "UpSampling2D((2, 3))", (16, 24, 3)),
    ],
)
def test_layers_make_the_shapes_of_keras(input: str, layer: str, made: tuple[int, ...]) -> None:
    assert shape(input, layer) == made


def test_a_layer_that_breaks_is_named_with_line_and_shapes() -> None:
    with pytest.raises(ShapeMismatch) as caught:
        graph_of("(8, 8, 1)", "Conv2D(4, 6)", "Conv2D(4, (5, 5))")
    problem = caught.value.problems[0]
    assert (problem.line, problem.column, problem.layer) == (5, 9, "Conv2D_2")
    assert problem.message == "Conv2D_2 (layer 2): kernel 5x5 does not fit the 3x3 input"
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("input", "layer", "says"),
    [
        ("(4,)", "Conv2D(4, 3)", "needs (height, width, channels) and its input is 4"),
        ("(4, 4, 2)", "Reshape((5, 5))", "does not hold the 32 values of its 4x4x2 input"),
        ("(4, 4, 2)", "MaxPooling2D(5)", "pool 5x5 does not fit the 4x4 input"),
        ("(4, 4, 3)", "GroupNormalization(groups=2)", "3 channels cannot be put into 2 groups"),
        ("(5,)", "Concatenate(nothing)", "no layer, branch or input 'nothing'"),
    ],
)
def test_what_does_not_fit_says_why(input: str, layer: str, says: str) -> None:
    with pytest.raises(DslError) as caught:
        graph_of(input, layer)
    assert says in caught.value.problems[0].message


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        ("Dense(0)", "units must be above 0"),
        ("Dense(-3)", "units must be above 0"),
        ("Dense(2.5)", "whole number"),
        ("Dense(vocab_size)", "'vocab_size' is not defined"),
        ("Dense(activation=relu)", "Dense needs units"),
        ("Dropout(1.5)", "between 0 and 1"),
        ("Dense(3, reloo)", "did you mean 'relu'"),
        ("MultiHeadAttention(num_heads=0)", "num_heads must be above 0"),
        ('Lambda("__import__(x)")', "'__import__' is not one of"),
        ('Lambda("x.__class__(x)")', "only plain functions"),
        ('Lambda("x ** x")', "** takes x on its left and a number"),
        ('Lambda("9 ** 999999999")', "does not use x"),
    ],
)
def test_values_have_rules(layer: str, says: str) -> None:
    with pytest.raises(DslError) as caught:
        graph_of("(4,)", layer)
    assert says in caught.value.problems[0].message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("train { epochs: 0 }", "epochs must be a whole number above 0"),
        ("train { validation_split: 1.5 }", "between 0 and 1"),
        ("train { batch_size: big }", "batch_size must be a whole number above 0, not big"),
        ("optimizer: Adm(0.1)", "did you mean 'Adam'"),
        ("optimizer: Adam(learning_rate=0)", "learning_rate must be a number above 0"),
        ("execution { device: gqu }", "did you mean 'gpu'"),
    ],
)
def test_settings_have_rules(section: str, says: str) -> None:
    with pytest.raises(DslError) as caught:
        check(parse(f"network N {{\n input: (4,)\n layers: Dense(1)\n {section}\n}}"))
    assert says in caught.value.problems[0].message
    assert caught.value.problems[0].line == 4


def test_values_that_are_wrong_behind_a_layer_that_breaks_are_told_in_the_same_run() -> None:
    with pytest.raises(DslError) as caught:
        graph_of("(4,)", "Dense(-5)", "Dropout(1.5)", "LSTM(0, recurrent_dropout=3)", "Dense(9, reluu)", "Output(2)")
    assert [(each.line, each.message.partition(": ")[2]) for each in caught.value.problems] == [
        (4, "units must be above 0, not -5"),
        (5, "rate must lie between 0 and 1, not 1.5"),
        (6, "units must be above 0, not 0"),
        (6, "recurrent_dropout must lie between 0 and 1, not 3"),
        (7, "there is no activation 'reluu'; did you mean 'relu'?"),
    ]


@pytest.mark.parametrize(("device", "fine"), [("cuda:1", True), ("GPU", True), ("quantum:0", False), ("cuda:x", False)])
def test_the_device_of_a_layer_is_one_that_exists(device: str, fine: bool) -> None:
    program = parse(f'network N {{ input: (4,) layers: Dense(1) @ "{device}" loss: mse optimizer: adam }}')
    if fine:
        check(program)
        return
    with pytest.raises(DslError) as caught:
        check(program)
    assert f"Dense_1: there is no device '{device}'" in caught.value.problems[0].message


@pytest.mark.parametrize(
    ("section", "level", "says"),
    [
        ("train { epoch: 5 }", "warning", "train has no 'epoch'; did you mean 'epochs'?"),
        ("train { verbose: 1 class_weight: { 0: 1.0 } }", "info", "train has no 'verbose'; it has no effect here"),
        ("execution { devise: gpu }", "warning", "execution has no 'devise'; did you mean 'device'?"),
        ("optimizer: SGD(0.1, momentm=0.9)", "warning", "SGD has no 'momentm'; did you mean 'momentum'?"),
        ('metrics: ["mae", "auc"]', "info", "not computed for this loss: auc; mae, mse are"),
    ],
)
def test_what_changes_nothing_does_not_go_unnoticed(section: str, level: str, says: str) -> None:
    optimizer = "" if "optimizer" in section else "optimizer: adam"
    text = f"network N {{\n input: (4,)\n layers: Dense(1)\n loss: mse {optimizer}\n {section}\n}}"
    said = [(each.severity.value, each.line, each.message) for each in check(parse(text))[1]]
    assert (level, 5) == said[0][:2]
    assert says in said[0][2]


def test_an_argument_of_keras_that_is_not_applied_is_said() -> None:
    assert graph_of("(4,)", 'Dense(3, kernel_constraint="max_norm", bias_initializer="zeros")')[1] == [
        "Dense_1: kernel_constraint is not applied"
    ]


def test_a_whole_number_written_as_a_float_warns() -> None:
    assert graph_of("(4,)", "Dense(3.0)")[1] == ["Dense_1: units=3.0 is taken as 3"]


# -- the seven meanings ------------------------------------------------------------------------------------------------


def test_add_without_operands_reaches_back_to_the_start_of_its_macro() -> None:
    graph, said = graph_of("(8,)", "Dense(8)", "Block", before="define Block { Dense(8) Dense(8) Add() }\n")
    add = graph.steps[-1]
    assert add.inputs == (graph.steps[2].output, graph.steps[0].output)
    assert said == []


def test_add_of_different_shapes_is_projected_and_said() -> None:
    before = 'define Block { Conv2D(6, 3, strides=2, padding="same") Add() }\n'
    graph, said = graph_of("(9, 9, 3)", "Block", before=before)
    assert [step.op for step in graph.steps] == ["conv", "conv", "add"]
    assert said == ["Add_1: shapes 5x5x6 and 9x9x3 differ: the second is projected"]


def test_output_flattens_images_and_takes_the_last_axis_of_sequences() -> None:
    assert shape("(4, 4, 2)", "Output(3)") == (3,)
    assert shape("(7, 5)", "Output(3)") == (7, 3)


def test_a_size_behind_the_tokens_of_an_embedding_is_the_authors_note() -> None:
    graph, said = graph_of("(20, 64)", "Embedding(100, 8)")
    assert (graph.shape, graph.inputs[0].shape, graph.inputs[0].vocabulary) == ((20, 8), (20,), 100)
    assert "only the 20 positions count" in said[0]


def test_dense_behind_a_convolution_is_flattened_with_a_warning() -> None:
    graph, said = graph_of("(6, 6, 1)", "Conv2D(2, 3)", "Dense(5)")
    assert graph.shape == (5,)
    assert said == ["Dense_1: Dense takes vectors and its input is 4x4x2: it is flattened first"]


def test_a_transformer_makes_patches_of_an_image() -> None:
    assert shape("(4, 4, 8)", "TransformerEncoder(2, 16)") == (16, 8)


def test_a_block_inside_an_encoder_runs_after_it() -> None:
    graph, _ = graph_of("(4, 8)", "TransformerEncoder(2, 16) { Dense(3) }")
    assert [step.op for step in graph.steps] == ["encoder", "dense"]


def test_a_convolution_behind_a_transformer_gets_its_image_back() -> None:
    layers = ("TransformerEncoder(2, 16)", "LayerNormalization()", "Conv2D(5, 3)")
    assert shape("(6, 4, 8)", *layers) == (4, 2, 5)
    assert shape("(24, 8)", *layers) == (22, 6, 5)  # never an image: one channel


def test_the_block_of_a_transformer_can_be_repeated() -> None:
    """Its Dense works on every position: the next transformer has something to attend over."""
    graph, _ = graph_of("(9, 9, 4)", "TransformerEncoder(2, 16) { Conv2D(6, 3) Dense(8) } * 3", "GlobalMaxPooling2D()")
    assert [step.shape for step in graph.steps if step.op == "dense"] == [(49, 8), (25, 8), (9, 8)]
    assert graph.shape == (8,)


def test_a_vector_is_one_pixel_for_a_convolution_that_looks_at_one() -> None:
    graph, said = graph_of("(6,)", "Conv2D(4, (1, 1))")
    assert graph.shape == (1, 1, 4)
    assert said == ["Conv2D_1: its input is 6: it is taken for an image of one pixel"]


def test_a_second_embedding_reads_the_input_that_nothing_has_read() -> None:
    block = "define Block { Dense(8) Add() }\n"
    inputs = "{ source: (5,) target: (5,) }"
    graph, said = graph_of(inputs, "Embedding(10, 8)", "Block", "Embedding(12, 8)", "Block", before=block)
    assert [(each.name, each.vocabulary) for each in graph.inputs] == [("source", 10), ("target", 12)]
    assert [step.op for step in graph.steps] == ["embedding", "dense", "add", "embedding", "add", "dense", "add"]
    told = "it reads input target, which nothing has read before it; what Add_1 makes is added"
    assert said == [f"Embedding_2: {told}"]


def test_a_second_embedding_before_a_decoder_leaves_what_was_encoded_to_it() -> None:
    layers = ("Embedding(10, 8)", "TransformerEncoder(2, 16)", "Embedding(12, 8)", "TransformerDecoder(2, 16)")
    graph, _ = graph_of("{ source: (5,) target: (7,) }", *layers)
    decoder = graph.steps[-1]
    assert (decoder.op, decoder.shapes_in) == ("decoder", ((7, 8), (5, 8)))


def test_a_branch_that_another_one_looks_at_is_not_joined_again() -> None:
    source = "source: { Embedding(10, 8) TransformerEncoder(2, 16) }"
    target = 'target: { Embedding(12, 8) TransformerDecoder(2, 16, inputs=["source"]) }'
    graph, said = graph_of("{ source: (5,) target: (7,) }", source, target, "Output(12)")
    assert (graph.shape, said) == ((7, 12), [])
    assert graph.steps[-2].shapes_in == ((7, 8), (5, 8))


def test_attention_over_very_many_positions_keeps_no_weights_for_dropout() -> None:
    graph, said = graph_of("(5000, 8)", "TransformerEncoder(2, 16, dropout=0.2)")
    assert graph.steps[0].options["drops_weights"] is False
    assert "those of 5,000 positions would not fit" in said[0]
    assert graph_of("(5000, 8)", "TransformerEncoder(2, 16, dropout=0)")[1] == []
    assert graph_of("(500, 8)", "TransformerEncoder(2, 16)")[0].steps[0].options["drops_weights"] is True


def test_notes_on_a_repeated_layer_are_told_once_for_its_line() -> None:
    program = parse(TEXT.format(input="(9,)", layers="Dense(4.0) * 3 Dense(5.0)", loss="mse"))
    told = render_all(check(program)[1], program.source)
    assert "Dense_1: units=4.0 is taken as 4 (and 2 more like it)\n" in told
    assert "Dense_4: units=5.0 is taken as 5\n" in told
    assert told.count(" is taken as ") == 2


@pytest.mark.parametrize(
    "layers", [('Output(4, "softmax")',), ("Output(4)", 'Activation("softmax")'), ("Dense(4)", "Softmax()")]
)
def test_a_softmax_before_a_cross_entropy_is_left_out_and_reported(layers: tuple[str, ...]) -> None:
    graphs, problems = check(parse(TEXT.format(input="(3,)", layers=" ".join(layers), loss="categorical_crossentropy")))
    assert graphs[0].steps[-1].activation is None
    assert [each.kind for each in problems] == ["softmax_before_cross_entropy"]


@pytest.mark.parametrize("loss", ["", "loss: nobody_knows_this"])
def test_a_loss_that_is_only_assumed_has_no_softmax_before_it_either(loss: str) -> None:
    network = f"network N {{ input: (3,) layers: Output(4, 'softmax') {loss} optimizer: adam }}"
    graphs, problems = check(parse(network))
    assert graphs[0].steps[-1].activation is None
    assert "softmax_before_cross_entropy" in [each.kind for each in problems]
    assert any("cross_entropy, which suits its last layer, is taken" in each.message for each in problems)


def test_a_softmax_elsewhere_stays() -> None:
    graph, _ = graph_of("(3,)", 'Output(4, "softmax")', loss="mse")
    assert graph.steps[-1].activation == "softmax"


# -- counts ------------------------------------------------------------------------------------------------------------


def test_operations_are_counted_two_for_a_multiplication_and_an_addition() -> None:
    graph, _ = graph_of("(8, 8, 3)", "Conv2D(4, 3)", "Flatten()", "Dense(10)")
    assert graph.flops == 36 * (2 * 27 * 4 + 4) + 10 * (2 * 144 + 1)
    assert graph.parameters == 3 * 9 * 4 + 4 + 144 * 10 + 10


def test_what_is_left_to_a_search_is_said() -> None:
    _, problems = check(parse("network N { input: (4,) layers: Dense(HPO(choice(8, 16))) loss: mse optimizer: sgd }"))
    assert [each.message for each in problems] == [
        "Dense_1.units is left to a search; without one its first choice is taken: 8"
    ]
