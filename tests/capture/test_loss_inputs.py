"""What goes into a loss is read from its graph: signs, makers, shapes, tokens; and nothing of it is kept or changed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from watching import facts, net, train, watching

from neuraldbg.capture.torch.evidence import graph_walk
from neuraldbg.capture.torch.evidence.attention import attentions_of, of_seen
from neuraldbg.capture.torch.evidence.graph_walk import walk
from neuraldbg.capture.torch.evidence.leaks import Columns
from neuraldbg.capture.torch.evidence.loss_terms import activation_of, operands_of, terms_of
from neuraldbg.capture.torch.evidence.loss_values import FEWER, of_target
from neuraldbg.capture.torch.evidence.penalties import penalties_of
from neuraldbg.capture.torch.evidence.positions import pattern_of
from neuraldbg.capture.torch.evidence.sequences import padding_of, shift_of
from neuraldbg.capture.torch.probes import runner

LABELS = torch.arange(8) % 4
NUMBERS = torch.linspace(-2, 2, 32).reshape(8, 4)


@pytest.fixture(autouse=True)
def _without_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "NAMES", ())


def out(*shape: int) -> Tensor:
    made = torch.randn(*(shape or (8, 4)), generator=torch.Generator().manual_seed(0), requires_grad=True) * 1.0
    node: Any = made.grad_fn
    node.metadata["neuraldbg_pass"] = 0
    return made


def only_term(loss: Tensor) -> Any:
    [term] = terms_of(walk(loss, 200))
    return term


@pytest.mark.parametrize(
    ("write", "sign"),
    [
        (lambda loss: loss, 1),
        (lambda loss: -loss, -1),
        (lambda loss: 3 - 2 * loss, -1),
        (lambda loss: torch.tensor(5.0) - loss, -1),
        (lambda loss: -(1 - loss) / 4, 1),
        (lambda loss: torch.stack([loss, loss * 2]).mean() * -0.5, -1),
        (lambda loss: loss.sqrt(), 1),
        (lambda loss: loss * torch.tensor([1.0, -1.0]).sum(), None),  # times 0
        (lambda loss: (loss * torch.tensor([1.0, -1.0])).sum(), None),  # weights of both signs: an advantage
        (torch.sin, None),
    ],
)
def test_the_sign_of_a_term_is_followed_from_the_loss_down(write: Callable[[Tensor], Tensor], sign: int | None) -> None:
    assert only_term(write(F.mse_loss(out(), NUMBERS))).sign == sign


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_sign_of_a_gaussian_divergence_is_seen(sign: float) -> None:
    mean, logvar = out(), out()
    right = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp(), dim=1).mean()
    loss = F.mse_loss(mean, NUMBERS) + 0.1 * sign * right
    assert [one["sign"] for one in penalties_of(walk(loss, 200))] == [sign]


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda x: x.softmax(1), "Softmax"),
        (lambda x: x.softmax(1).clamp(1e-6, 1).view(8, 4), "Softmax"),
        (lambda x: x.log_softmax(1).exp(), "Softmax"),
        (lambda x: x.softmax(1).log(), "LogSoftmax"),
        (lambda x: x.softmax(1) + 1e-9, "Softmax"),
        (torch.tanh, "Tanh"),
        (lambda x: x.relu() * 2, None),
        (lambda x: x, None),
    ],
)
def test_what_squashed_the_input_of_a_loss_is_named(made: Callable[[Tensor], Tensor], name: str | None) -> None:
    graph = walk(F.cross_entropy(made(out()), LABELS), 200)
    [term] = terms_of(graph)
    found = activation_of(term, graph)
    assert (None if found is None else found[1]) == name


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("loss", "shapes"),
    [
        (lambda: F.mse_loss(out(8, 1), torch.randn(8)), ((8, 1), (8,), (8, 8))),
        (lambda: F.smooth_l1_loss(out(8), torch.randn(8, 1)), ((8,), (8, 1), (8, 8))),
        (lambda: ((out(8, 1) - torch.randn(8)) ** 2).mean(), ((8, 1), None, (8, 8))),
        (lambda: (torch.randn(8, 1) - out(8)).abs().sum(), ((8,), None, (8, 8))),
        (lambda: F.mse_loss(out(8, 4), NUMBERS), ((8, 4), (8, 4), (8, 4))),
    ],
)
def test_shapes_are_those_before_broadcasting(loss: Callable[[], Tensor], shapes: tuple[Any, ...]) -> None:
    graph = walk(loss(), 200)
    operands = operands_of(terms_of(graph)[0], graph)
    assert operands is not None
    assert (operands.prediction, operands.target, operands.result) == shapes


class Attending(nn.Module):
    def __init__(self, dim: int, how: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.dim, self.how = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), dim, how

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-2, -1)
        weights = scores.softmax(self.dim)
        if self.how == "einsum":
            return torch.einsum("bqk,bkd->bqd", weights, self.v(x))
        if self.how == "dropped":
            weights = F.dropout(weights, 0.1)
        if self.how == "renormalised":
            weights = weights / weights.sum(-1, keepdim=True)
        return torch.matmul(weights, self.v(x))


@pytest.mark.parametrize("how", ["plain", "einsum", "dropped"])
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_the_axis_that_weights_are_summed_over_is_the_keys(dim: int, how: str) -> None:
    [one] = attentions_of(walk(Attending(dim, how)(torch.randn(3, 5, 8)).sum(), 500))
    assert one.facts["attention"]
    assert (one.facts["summed_dim"], one.facts["dim"]) == (2, dim % 3)


def test_weights_that_are_normalised_again_are_nobodys_mistake() -> None:
    """Slot attention: a softmax over the queries, then a mean over the keys."""
    [one] = attentions_of(walk(Attending(1, "renormalised")(torch.randn(3, 5, 8)).sum(), 500))
    assert one.facts["summed_dim"] is None


def test_a_mask_is_read_as_what_it_lets_through() -> None:
    ids = np.array([[5, 6, 7, 0, 0], [5, 8, 0, 0, 0], [4, 3, 2, 1, 0]])
    real = np.repeat((ids != 0)[:, None], 5, 1)
    right, inverted = of_seen(real, ids), of_seen(~real, ids)
    assert (right["real_seen"], right["pad_seen"]) == (1.0, 0.0)
    assert (inverted["real_seen"], inverted["pad_seen"]) == (0.0, 1.0)
    assert of_seen(np.tril(np.ones((1, 6, 6), bool)), None)["future_share"] == 0.0


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_targets_are_compared_with_the_tokens_they_came_from(shift: int) -> None:
    ids = np.random.default_rng(0).integers(0, 30, (6, 20))
    found = shift_of(ids[:, : 20 - shift] if shift else ids, ids[:, shift:], 0, None)
    assert found is not None
    assert (found["shift"], found["shift_match"]) == (shift, 1.0)


def test_padding_is_a_run_of_one_token_that_is_found_nowhere_else() -> None:
    ids = np.array([[5, 6, 7, 8], [5, 8, 0, 0], [4, 0, 0, 0]])
    right, left = padding_of(ids), padding_of(ids[:, ::-1])
    assert right is not None
    assert left is not None
    assert (right["side"], right["token"], right["lengths"].tolist()) == ("right", 0, [0, 2, 3])
    assert left["side"] == "left"
    assert padding_of(np.random.default_rng(0).integers(0, 9, (8, 12))) is None


def test_positions_are_told_from_tokens_and_types() -> None:
    ids = np.array([[0, 0, 5, 6], [0, 7, 8, 9], [0, 0, 0, 4]])
    found = pattern_of(np.arange(4), ids, False)
    assert found is not None
    assert (found["pattern"], found["start_of_text_min"], found["start_of_text_max"]) == ("counting", 1, 3)
    assert pattern_of(ids, ids, False) is None
    assert pattern_of(np.zeros((3, 4), int), ids, False) is None  # types of segments
    assert pattern_of(np.zeros((3, 4), int), ids, True)["pattern"] == "constant"  # type: ignore[index]


def rows(column: Callable[[Any, Any], Any], labels: bool = False) -> dict[str, Any] | None:
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 4))
    y = x[:, 0] + x[:, 1] + random.normal(size=400)
    y = (y > 0).astype(float) if labels else y
    kept = Columns()
    kept.add(np.column_stack([x, column(y, random)]), y)
    return kept.judge()


def test_a_column_that_is_the_target_in_other_clothes_is_found() -> None:
    assert rows(lambda y, _: 3 * y - 1) is not None
    assert rows(lambda y, _: np.exp(y)) is not None
    assert rows(lambda y, random: y * random.uniform(0.8, 1.2, 400), labels=True) is not None
    assert rows(lambda y, random: y + 0.1 * random.normal(size=400)) is None
    assert rows(lambda y, random: 8 * y + random.normal(size=400), labels=True) is None  # two clouds far apart


def test_a_run_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    bare = train(net(), 30)
    with watching(tmp_path):
        assert train(net(), 30) == bare
    [first, *_] = facts(tmp_path, "loss_input")
    assert (first["kind"], first["prediction_shape"], first["sign"]) == ("mse", [8, 1], 1.0)


def test_the_graph_of_a_loss_goes_when_the_user_lets_it_go(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        for _ in range(3):
            predicted = model(torch.randn(8, 4))
            loss = F.mse_loss(predicted, torch.zeros(8, 1))
            loss.backward()
            forgotten = [weakref.ref(predicted), weakref.ref(loss)]
            del predicted, loss
            gc.collect()
            assert [ref() for ref in forgotten] == [None, None]


def test_facts_stay_few_however_long_the_run_and_the_last_one_is_late(tmp_path: Path) -> None:
    with watching(tmp_path):
        train(net(), 400)
    found = facts(tmp_path, "loss_input")
    assert len(found) < 16
    assert found[-1]["at_step"] > 250


@pytest.mark.parametrize("loss", [lambda y: y.abs().sum(), lambda y: (y * 1j).abs().sum(), lambda y: y[:0].sum()])
def test_odd_losses_are_taken_as_they_are(loss: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with watching(tmp_path):
        loss(model(torch.randn(3, 2))).backward()
    assert [fact["text"] for fact in facts(tmp_path, "note")] == []


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.bool_])
def test_few_targets_are_described_as_many_are(kind: Any) -> None:
    few = (np.arange(FEWER // 3) % 7 % 5).astype(kind)
    many = np.tile(few, 8)
    assert len(few) <= FEWER < len(many)
    small, large = of_target(few), of_target(many)
    assert small.keys() == large.keys()
    assert all(small[name] == pytest.approx(large[name]) for name in small)


@pytest.mark.parametrize(("short_ns", "expected"), [(0, [0, 1, 2, 22]), (10**18, [0, 1, 22])])
def test_where_steps_are_long_a_loss_is_looked_at_when_all_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_ns: int, expected: list[int]
) -> None:
    monkeypatch.setattr("neuraldbg.capture.torch.core.LONG_STEP_NS", 0)
    monkeypatch.setattr("neuraldbg.capture.torch.core.SHORT_STEP_NS", short_ns)
    looks: list[int] = []
    with watching(tmp_path, budget=0.01) as capture:
        walked = graph_walk.walk
        monkeypatch.setattr(graph_walk, "walk", lambda *a: looks.append(capture.core.recorder.step) or walked(*a))
        train(net(), 24)
    assert sorted(set(looks)) == expected
