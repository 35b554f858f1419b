"""What a loss is made of is read from its graph: whatever it is called and however it was imported."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as ce
from torch.nn.functional import mse_loss as distance
from watching import facts, net, train, watching

from neuraldbg.capture.torch.loss import anatomy_of

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, 5, (6,), generator=GENERATOR)
NUMBERS = torch.randn(6, 5, generator=GENERATOR)
SHARES = torch.softmax(NUMBERS, 1)
SIGNS = NUMBERS.sign()


def output() -> Tensor:
    """What a model hands out: a tensor with a graph behind it."""
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(1), requires_grad=True) * 1.0


def frames() -> Tensor:
    return torch.randn(10, 2, 5, requires_grad=True) * 1.0


TEN, THREE, WORDS = torch.tensor([10, 10]), torch.tensor([3, 3]), torch.tensor([[1, 2, 3], [3, 2, 1]])
KINDS: dict[str, list[Callable[[], Tensor]]] = {
    "cross_entropy": [
        lambda: F.cross_entropy(output(), LABELS),
        lambda: nn.CrossEntropyLoss()(output(), LABELS),
        lambda: ce(output(), LABELS),
        lambda: nn.CrossEntropyLoss(weight=torch.rand(5), ignore_index=2)(output(), LABELS),
        lambda: nn.NLLLoss()(F.log_softmax(output(), 1), LABELS),
        lambda: F.nll_loss(nn.LogSoftmax(dim=1)(output()), LABELS),
        lambda: F.cross_entropy(torch.randn(2, 5, 4, 4, requires_grad=True) * 1.0, torch.zeros(2, 4, 4).long()),
        lambda: F.cross_entropy(output().view(3, 2, 5).reshape(-1, 5), LABELS),
        lambda: F.cross_entropy(output(), SHARES),
        lambda: F.cross_entropy(output(), LABELS, label_smoothing=0.1),
        lambda: F.cross_entropy(output(), SHARES, label_smoothing=0.1),
        lambda: -(F.log_softmax(output(), 1) * SHARES).sum(1).mean(),
    ],
    "nll": [lambda: F.nll_loss(output(), LABELS), lambda: nn.NLLLoss()(output().softmax(1).log(), LABELS)],
    "mse": [
        lambda: F.mse_loss(output(), NUMBERS),
        lambda: nn.MSELoss()(output(), NUMBERS),
        lambda: distance(output(), NUMBERS),
        lambda: ((output() - NUMBERS) ** 2).mean(),
        lambda: (NUMBERS - output()).pow(2).sum(),
        lambda: (output() - NUMBERS).square().mean(),
        lambda: torch.mean(torch.square(torch.sub(output(), NUMBERS))),
        lambda: ((output() - NUMBERS) ** 2).sum() / 6,
        lambda: torch.sqrt(F.mse_loss(output(), NUMBERS)),
    ],
    "l1": [
        lambda: F.l1_loss(output(), NUMBERS),
        lambda: nn.L1Loss(reduction="sum")(output(), NUMBERS),
        lambda: (output() - NUMBERS).abs().mean(),
        lambda: torch.abs(NUMBERS - output()).sum(),
    ],
    "smooth_l1": [lambda: F.smooth_l1_loss(output(), NUMBERS), lambda: nn.SmoothL1Loss(beta=0.5)(output(), NUMBERS)],
    "huber": [lambda: F.huber_loss(output(), NUMBERS), lambda: nn.HuberLoss(delta=2.0)(output(), NUMBERS)],
    "bce": [
        lambda: F.binary_cross_entropy(output().sigmoid(), SHARES),
        lambda: nn.BCELoss()(torch.sigmoid(output()), SHARES),
    ],
    "bce_with_logits": [
        lambda: F.binary_cross_entropy_with_logits(output(), SHARES),
        lambda: nn.BCEWithLogitsLoss(pos_weight=torch.rand(5))(output(), SHARES),
    ],
    "kl_div": [
        lambda: F.kl_div(F.log_softmax(output(), 1), SHARES, reduction="batchmean"),
        lambda: nn.KLDivLoss(reduction="sum")(F.log_softmax(output(), 1), SHARES),
        lambda: nn.KLDivLoss(log_target=True, reduction="batchmean")(output().log_softmax(1), SHARES.log()),
    ],
    "ctc": [
        lambda: F.ctc_loss(frames().log_softmax(2), WORDS, TEN, THREE),
        lambda: nn.CTCLoss()(frames().log_softmax(2), WORDS, TEN, THREE),
    ],
    "multi_margin": [lambda: nn.MultiMarginLoss()(output(), LABELS)],
    "multilabel_margin": [lambda: nn.MultiLabelMarginLoss()(output(), torch.zeros(6, 5).long())],
    "soft_margin": [lambda: nn.SoftMarginLoss()(output(), SIGNS), lambda: F.soft_margin_loss(output(), SIGNS)],
    "custom": [
        lambda: output().mean(),
        lambda: nn.TripletMarginLoss()(output(), NUMBERS, NUMBERS + 1),
        lambda: nn.PoissonNLLLoss()(output(), SHARES),
        lambda: 1 - 2 * (output().sigmoid() * SHARES).sum() / (output().sigmoid().sum() + SHARES.sum()),
        lambda: output().exp().sum(),
        lambda: torch.tensor(1.0),
    ],
}
WAYS = [(kind, way) for kind, ways in KINDS.items() for way in ways]


@pytest.mark.parametrize(("kind", "way"), WAYS, ids=[f"{kind}-{KINDS[kind].index(way)}" for kind, way in WAYS])
def test_every_way_to_write_a_loss_has_one_name(kind: str, way: Callable[[], Tensor]) -> None:
    assert anatomy_of(way()).kinds == [kind]


@pytest.mark.parametrize("scale", [lambda x: x / 4, lambda x: 65536.0 * x, lambda x: -x, lambda x: x.mean() + 1])
def test_scaling_a_loss_does_not_change_what_it_is(scale: Callable[[Tensor], Tensor]) -> None:
    assert anatomy_of(scale(F.cross_entropy(output(), LABELS))).kinds == ["cross_entropy"]
    assert anatomy_of(scale(F.mse_loss(output(), NUMBERS))).kinds == ["mse"]


def test_a_sum_of_losses_names_every_part() -> None:
    out = output()
    loss = F.cross_entropy(out, LABELS) + 0.1 * F.mse_loss(out, NUMBERS) + (out - NUMBERS).abs().mean() / 2
    assert sorted(anatomy_of(loss).kinds) == ["cross_entropy", "l1", "mse"]


def test_many_terms_of_one_kind_are_counted_and_named_once() -> None:
    loss = torch.stack([F.smooth_l1_loss(output(), NUMBERS) for _ in range(35)]).sum()
    assert anatomy_of(loss).kinds == ["smooth_l1"]
    assert len(anatomy_of(loss).terms) == 35


def test_a_weight_penalty_does_not_hide_the_loss() -> None:
    weight = torch.ones(3, requires_grad=True)
    assert anatomy_of(F.cross_entropy(output(), LABELS) + 1e-4 * (weight**2).sum()).kinds == ["cross_entropy"]


@pytest.mark.parametrize(
    ("squash", "node"),
    [(lambda x: x.softmax(1), "SoftmaxBackward"), (torch.sigmoid, "SigmoidBackward"), (F.relu, "ReluBackward"),
     (lambda x: x.log_softmax(1), "LogSoftmaxBackward"), (lambda x: x.softmax(1).view(6, 5), "SoftmaxBackward"),
     (lambda x: x.softmax(1)[:4], "SoftmaxBackward"), (lambda x: x.softmax(1).double(), "SoftmaxBackward")],
)  # fmt: skip
@pytest.mark.parametrize("targets", ["labels", "shares", "smoothed"])
def test_what_feeds_a_cross_entropy_is_seen(squash: Callable[[Tensor], Tensor], node: str, targets: str) -> None:
    """A softmax in front of cross-entropy is a classic mistake, with labels and with mixed-up targets alike."""
    logits = squash(output())
    target = SHARES.to(logits.dtype)[: len(logits)] if targets == "shares" else LABELS[: len(logits)]
    loss = F.cross_entropy(logits, target, label_smoothing=0.1 if targets == "smoothed" else 0.0)
    assert node in [term.fed_by for term in anatomy_of(loss).terms]


def test_a_sigmoid_in_front_of_logits_is_seen() -> None:
    loss = F.binary_cross_entropy_with_logits(output().sigmoid(), SHARES)
    assert [term.fed_by for term in anatomy_of(loss).terms] == ["SigmoidBackward"]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_reduction_is_known(reduction: str) -> None:
    assert anatomy_of(F.cross_entropy(output(), LABELS, reduction=reduction)).reduction == reduction
    hand = (output() - NUMBERS).pow(2)
    assert anatomy_of(hand.mean() if reduction == "mean" else hand.sum()).reduction == reduction


def test_predictions_and_targets_are_at_hand() -> None:
    out = output()
    [term] = anatomy_of(F.mse_loss(out, NUMBERS)).terms
    assert term.inputs is not None
    assert term.target is not None
    assert torch.equal(term.inputs, out)
    assert torch.equal(term.target, NUMBERS)
    assert not term.inputs.requires_grad


def test_a_loss_whose_graph_is_used_up_is_still_named() -> None:
    loss = F.mse_loss(output(), NUMBERS)
    loss.backward()
    [term] = anatomy_of(loss).terms
    assert (term.kind, term.inputs) == ("mse", None)


def test_a_very_long_graph_is_read_near_its_root_only() -> None:
    deep = output()
    for _ in range(20_000):
        deep = deep + 1
    assert anatomy_of(F.mse_loss(deep, NUMBERS) + deep.sum()).kinds == ["mse"]


# -- under a capture ---------------------------------------------------------------------------------------------------


class OwnLoss(nn.Module):
    """As language models do: logits and loss come out together."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.fc(x)
        return logits, F.cross_entropy(logits, labels)


def _loss_fact(folder: Path, model: nn.Module, backward: Callable[[], Any]) -> dict[str, Any]:
    with watching(folder):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        backward()
        optimizer.step()
    [fact] = facts(folder, "loss")
    return fact


def test_a_loss_inside_the_model_is_named_and_placed(tmp_path: Path) -> None:
    model = OwnLoss()
    fact = _loss_fact(tmp_path, model, lambda: (model(torch.randn(6, 4), LABELS)[1] / 2).backward())
    assert (fact["kinds"], fact["in_model"]) == (["cross_entropy"], True)


@pytest.mark.parametrize("batch", [6, 1])
def test_a_loss_outside_the_model_is_outside_also_for_a_single_number(tmp_path: Path, batch: int) -> None:
    model = net()
    x = torch.randn(batch, 4)
    fact = _loss_fact(tmp_path, model, lambda: ((model(x) - 1.0) ** 2).mean().backward())
    assert (fact["kinds"], fact["in_model"]) == (["mse"], False)


def test_operations_inside_the_model_are_no_part_of_the_loss(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.fc(x)
            return (hidden - hidden.mean()).abs().log() + F.mse_loss(hidden, NUMBERS)

    model = Odd()
    fact = _loss_fact(tmp_path, model, lambda: F.cross_entropy(model(torch.randn(6, 4)), LABELS).backward())
    assert fact["kinds"] == ["cross_entropy"]


def test_the_fact_names_the_users_line(tmp_path: Path) -> None:
    model = net()
    fact = _loss_fact(tmp_path, model, lambda: F.mse_loss(model(torch.randn(6, 4)), torch.zeros(6, 1)).backward())
    assert fact["source"].startswith("tests/capture/test_loss_anatomy.py:") or "test_loss_anatomy.py:" in fact["source"]


def test_a_loss_that_changes_is_written_again(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        for kind in (F.mse_loss, F.mse_loss, F.l1_loss, F.l1_loss):
            kind(model(torch.randn(6, 4)), torch.zeros(6, 1)).backward()
    assert [fact["kinds"] for fact in facts(tmp_path, "loss")] == [["mse"], ["l1"]]


class Token:
    """Something a graph node holds and nothing else does."""


class Holding(torch.autograd.Function):
    tokens: list[weakref.ref[Token]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.token = Token()
        Holding.tokens.append(weakref.ref(ctx.token))
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def test_nothing_of_a_graph_outlives_the_users_own_references(tmp_path: Path) -> None:
    model = net()
    Holding.tokens.clear()
    with watching(tmp_path):
        train(model, 2)
        loss = F.mse_loss(Holding.apply(model(torch.randn(8, 4))), torch.zeros(8, 1))
        saved = weakref.ref(loss)
        anatomy_of(loss)
        loss.backward(retain_graph=True)
        assert Holding.tokens[0]() is not None
        del loss
        gc.collect()
        assert saved() is None
        assert Holding.tokens[0]() is None
