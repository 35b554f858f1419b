"""What is built computes what the language means: channels last, the padding of Keras, lines of the `.neural` file."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest
import torch

from neuraldbg.dsl import parse
from neuraldbg.dsl.build.built import Built
from neuraldbg.dsl.build.torch_model import build
from neuraldbg.dsl.check import check


def built(layers: str, input: str, *, loss: str = "mse", rest: str = "") -> Built:
    head, tail = f"network N {{\n input: {input}\n layers:\n", f"\n loss: {loss}\n optimizer: SGD(learning_rate=0.1)\n"
    text = f"{head}{layers}{tail}{rest}\n}}"
    return build(check(parse(text, "n.neural"))[0][0], "n.neural")


def run(one: Built, *inputs: Any) -> Any:
    torch.manual_seed(0)
    model = one.make().eval()
    with torch.no_grad():
        return model, model(*(torch.as_tensor(each) for each in inputs)).numpy()


def convolved(x: Any, weight: Any, bias: Any, stride: int, pads: tuple[int, int]) -> Any:
    """A convolution over (height, width, channels), written out; weight is (out, in, k, k)."""
    x = np.pad(x, ((0, 0), pads, pads, (0, 0)))
    k = weight.shape[-1]
    size = (x.shape[1] - k) // stride + 1
    out = np.zeros((len(x), size, size, len(weight)))
    for i in range(size):
        for j in range(size):
            patch = x[:, i * stride : i * stride + k, j * stride : j * stride + k]
            out[:, i, j] = np.einsum("nhwc,ochw->no", patch, weight) + bias
    return out


@pytest.mark.parametrize(
    ("arguments", "stride", "pads"),
    [("", 1, (0, 0)), ('padding="same"', 1, (1, 1)), ('strides=2, padding="same"', 2, (0, 1))],
)
def test_convolutions_read_channels_last_and_pad_as_keras_does(
    arguments: str, stride: int, pads: tuple[int, int]
) -> None:
    x = np.random.default_rng(0).standard_normal((2, 6, 6, 3)).astype(np.float32)
    model, out = run(built(f"Conv2D(4, 3, {arguments})", "(6, 6, 3)"), x)
    weight, bias = (p.detach().numpy() for p in model.Conv2D_1.parameters())
    assert np.allclose(out, convolved(x, weight, bias, stride, pads), atol=1e-5)


def test_flatten_keeps_the_order_of_channels_last() -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 4, 3)).astype(np.float32)
    _, image = run(built("Conv2D(5, 3)", "(4, 4, 3)"), x)
    _, flat = run(built("Conv2D(5, 3) Flatten()", "(4, 4, 3)"), x)
    _, shaped = run(built("Conv2D(5, 3) Reshape((4, 5))", "(4, 4, 3)"), x)
    assert np.array_equal(flat, image.reshape(2, -1))
    assert np.array_equal(shaped, image.reshape(2, 4, 5))


def test_joining_images_joins_their_channels() -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 4, 3)).astype(np.float32)
    model, out = run(built("a: { Conv2D(2, 1) } b: { MaxPooling2D(1) } Concatenate()", "(4, 4, 3)"), x)
    assert out.shape == (2, 4, 4, 5)
    assert np.array_equal(out[..., 2:], x)
    assert model.Conv2D_1.out_channels == 2


def test_a_vector_weighs_the_channels_of_an_image() -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 4, 3)).astype(np.float32)
    _, out = run(built('Conv2D(3, 1, name="c") GlobalAveragePooling2D() Multiply("c")', "(4, 4, 3)"), x)
    _, image = run(built("Conv2D(3, 1)", "(4, 4, 3)"), x)
    assert np.allclose(out, image * image.mean((1, 2))[:, None, None, :], atol=1e-6)


def test_pooling_at_the_border_counts_only_what_is_there() -> None:
    x = np.full((1, 5, 5, 1), 2, dtype=np.float32)
    for arguments, size in (("2", 3), ("2, strides=1", 5), ("3, strides=2", 3), ("4, strides=3", 2)):
        for kind, sign in (("Max", -1), ("Average", 1)):
            _, out = run(built(f'{kind}Pooling2D({arguments}, padding="same")', "(5, 5, 1)"), sign * x)
            assert np.allclose(out, np.full((1, size, size, 1), sign * 2))


def test_a_causal_convolution_sees_no_later_position() -> None:
    x = np.random.default_rng(0).standard_normal((1, 8, 2)).astype(np.float32)
    one = built('Conv1D(3, 3, padding="causal")', "(8, 2)")
    _, before = run(one, x)
    x[:, 5:] += 1
    _, after = run(one, x)
    assert np.array_equal(before[:, :5], after[:, :5])
    assert not np.array_equal(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("layer", ["TransformerDecoder(2, 8)", "MultiHeadAttention(2, 4, use_causal_mask=true)"])
def test_a_decoder_sees_no_later_position(layer: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 6, 4)).astype(np.float32)
    one = built(layer, "(6, 4)")
    _, before = run(one, x)
    x[:, 4:] += 1
    _, after = run(one, x)
    assert np.allclose(before[:, :4], after[:, :4], atol=1e-6)


def test_both_directions_end_where_each_has_read_everything() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    model, out = run(built("Bidirectional(LSTM(4))", "(5, 3)"), x)
    _, (state, _) = model.Bidirectional_1(torch.as_tensor(x))
    assert np.allclose(out, torch.cat((state[0], state[1]), -1).detach().numpy(), atol=1e-6)


def test_layers_are_called_as_in_the_file() -> None:
    model = built('Dense(4, "relu") Dense(3, name="head")', "(2,)").make()
    assert [name for name, _ in model.named_children()] == ["Dense_1", "Dense_1_relu", "head"]


def test_weights_start_as_the_file_says_and_frozen_layers_stay() -> None:
    one = built('Dense(4, kernel_initializer="zeros") Dense(2, trainable=false)', "(3,)")
    model = one.make()
    assert not model.Dense_1.weight.any()
    assert [p.requires_grad for p in model.Dense_2.parameters()] == [False, False]


def test_regularizers_add_to_what_is_minimised() -> None:
    one = built("Dense(2, kernel_regularizer=L2(0.5)) Dense(1, kernel_regularizer=L1(0.25))", "(2,)")
    model = one.make()
    expected = 0.5 * model.Dense_1.weight.square().sum() + 0.25 * model.Dense_2.weight.abs().sum()
    assert torch.equal(model.penalty(), expected)


def test_a_failure_while_training_shows_the_line_of_the_neural_file() -> None:
    one = built("Dense(4)\nDense(3)", "(2,)")
    with pytest.raises(RuntimeError) as caught:
        one.make()(torch.zeros(1, 5))
    frames = [
        frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename.endswith("n.neural")
    ]
    assert [frame.lineno for frame in frames] == [4]


def test_the_loop_clips_schedules_and_stops_where_the_file_says() -> None:
    rest = " train { epochs: 50 gradient_clip: 0.5 early_stopping: { patience: 2 } }\n lr_schedule: StepDecay(0.5, 1)"
    one = built("Dense(1)", "(2,)", rest=rest)
    told: list[dict[str, float]] = []
    model = one.make()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    one.train(model, [(torch.zeros(4, 2), torch.zeros(4, 1))] * 2, epochs=50, report=told.append)
    assert len(told) < 50


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("ExponentialDecay(0.1, 10, 0.5)", 0.1 * 0.5),
        ("CosineDecay(0.1, 10)", 0.0),
        ("PolynomialDecay(0.1, 10, 0.02)", 0.02),
        ("InverseTimeDecay(0.1, 10, 1.0)", 0.05),
    ],
)
def test_schedules_reach_what_they_promise(schedule: str, after: float, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"network N {{ input: (2,) layers: Dense(1) loss: mse optimizer: SGD(learning_rate={schedule}) }}"
    one = build(check(parse(text))[0][0])
    rates: list[float] = []
    step = torch.optim.SGD.step

    def noted(self: Any, *args: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args)

    monkeypatch.setattr(torch.optim.SGD, "step", noted)
    one.train(one.make(), [(torch.zeros(1, 2), torch.zeros(1, 1))] * 11, epochs=1, report=lambda told: None)
    assert rates[0] == pytest.approx(0.1)
    assert rates[10] == pytest.approx(after, abs=1e-6)


def evaluated(one: Built, weight: Any, inputs: Any, targets: Any) -> dict[str, float]:
    """What a network of one layer tells of two batches; its weight is given, its bias is 0."""
    model = one.make()
    with torch.no_grad():
        model.Output_1.weight.copy_(torch.as_tensor(weight))
        model.Output_1.bias.zero_()
    batches = [[inputs[:3], targets[:3]], [inputs[3:], targets[3:]]]
    found: dict[str, float] = one.namespace["evaluate"](model, lambda outputs, _: outputs.sum(), batches)
    return found


def test_precision_and_recall_count_over_all_batches() -> None:
    metrics = 'metrics: ["accuracy", "precision", "recall"]'
    one = built('Output(1, "sigmoid")', "(1,)", loss="binary_crossentropy", rest=metrics)
    inputs = torch.tensor([[1.0], [2.0], [-1.0], [3.0], [-2.0]])
    targets = torch.tensor([[1.0], [0.0], [1.0], [1.0], [1.0]])
    told = evaluated(one, [[1.0]], inputs, targets)
    assert told["val_accuracy"] == pytest.approx(2 / 5)
    assert (told["val_precision"], told["val_recall"]) == (pytest.approx(2 / 3), 0.5)


def test_top_five_accuracy_looks_at_five_classes() -> None:
    metrics = 'metrics: ["top_k_accuracy"]'
    one = built('Output(6, "softmax")', "(1,)", loss="categorical_crossentropy", rest=metrics)
    inputs, targets = torch.ones(4, 1), torch.tensor([0, 1, 0, 5])
    told = evaluated(one, [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]], inputs, targets)
    assert told["val_top_5_accuracy"] == pytest.approx(0.5)
