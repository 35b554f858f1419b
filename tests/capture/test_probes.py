"""Experiments after the run: they leave everything as it was, and their answers are right."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from watching import facts, net, watching

from neuraldbg.capture.torch.probes import runner
from neuraldbg.capture.torch.probes.loss_replay import Tape
from neuraldbg.capture.torch.probes.sample import Sample, Specimen

Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """What experiments find must not depend on how busy the machine is."""
    monkeypatch.setattr(runner, "LEAST_SECONDS", 20.0)
    monkeypatch.setattr(runner, "MOST_SECONDS", 60.0)


def probes(folder: Path) -> dict[str, dict[str, Any]]:
    return {fact["name"]: fact for fact in facts(folder, "probe")}


def learn(
    model: nn.Module,
    batch: Callable[[], Batch],
    loss_of: Callable[[Any, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int = 24,
) -> None:
    for _ in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()


def line(n: int = 16) -> Batch:
    x = torch.randn(n, 4)
    return x, x.sum(1, keepdim=True)


def classes(n: int = 16) -> Batch:
    x = torch.randn(n, 4)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def run_of(tmp_path: Path, model: nn.Module, batch: Any, loss_of: Any, **settings: Any) -> dict[str, dict[str, Any]]:
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.05, **settings})
        learn(model, batch, loss_of, optimizer)
    return probes(tmp_path)


class Counting(nn.Module):
    """Writes to itself in every way a forward may."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.calls = 0
        self.seen: list[int] = []
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(len(x))
        self.total += 1
        self.last = x.shape
        print("forward")
        return self.body(x)


def test_experiments_leave_model_optimizer_and_random_numbers_as_they_were(tmp_path: Path, capsys: Any) -> None:
    torch.manual_seed(3)
    model = Counting()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    capture = watching(tmp_path)
    capture.__enter__()
    learn(model, line, functional.mse_loss, optimizer)
    model.body[0].weight.grad = torch.full_like(model.body[0].weight, 7.0)
    model.eval()
    before = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    attributes = (model.calls, list(model.seen), model.last)
    seen = model.seen
    random = torch.get_rng_state()
    capsys.readouterr()
    capture.__exit__(None, None, None)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.calls, list(model.seen), model.last) == attributes
    assert model.seen is seen
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module.training for module in model.modules())
    assert torch.equal(model.body[0].weight.grad, torch.full_like(model.body[0].weight, 7.0))
    now = optimizer.state_dict()["state"]
    assert all(torch.equal(now[key]["exp_avg"], state["state"][key]["exp_avg"]) for key in now)
    assert capsys.readouterr().out == ""
    assert "skipped" not in probes(tmp_path)["overfit"]


def trained_and_forgotten() -> weakref.ref[nn.Module]:
    model = net()
    learn(model, line, functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.05), steps=10)
    return weakref.ref(model)


def test_the_last_trained_model_is_kept_for_the_experiments_and_no_longer(tmp_path: Path) -> None:
    with watching(tmp_path):
        gone = trained_and_forgotten()
        gc.collect()
        kept = gone() is not None
    gc.collect()
    assert (kept, gone() is None) == (True, True)
    assert probes(tmp_path)["overfit"]["from_initial"]


def test_another_model_takes_the_place_of_the_first(tmp_path: Path) -> None:
    with watching(tmp_path):
        first = trained_and_forgotten()
        second = trained_and_forgotten()
        gc.collect()
        kept = (first() is not None, second() is not None)
    assert kept == (False, True)


LOSSES: dict[str, tuple[Callable[[], Batch], Callable[[Tensor, Tensor], Tensor], int]] = {
    "mse": (line, functional.mse_loss, 1),
    "mse by hand": (line, lambda p, y: ((p - y) ** 2).mean(), 1),
    "halved sum": (line, lambda p, y: 0.5 * (p - y).pow(2).sum() / len(y), 1),
    "l1": (line, functional.l1_loss, 1),
    "huber": (line, functional.huber_loss, 1),
    "cross entropy": (classes, functional.cross_entropy, 3),
    "smoothed": (classes, lambda p, y: functional.cross_entropy(p, y, label_smoothing=0.1), 3),
    "nll": (classes, lambda p, y: functional.nll_loss(p.log_softmax(-1), y), 3),
    "picked": (classes, lambda p, y: -p.log_softmax(1)[torch.arange(len(y)), y].mean(), 3),
    "bce": (line, lambda p, y: functional.binary_cross_entropy(p.sigmoid(), (y > 0).float()), 1),
    "bce with logits": (line, lambda p, y: functional.binary_cross_entropy_with_logits(p, (y > 0).float()), 1),
    "kl": (classes, lambda p, y: functional.kl_div(p.log_softmax(1), functional.one_hot(y, 3).float() * 0.9 + 0.03,
                                                   reduction="batchmean"), 3),
    "norm": (line, lambda p, y: (p - y).norm(dim=1).mean(), 1),
    "penalty": (line, lambda p, y: functional.mse_loss(p, y) + 0.01 * p.abs().mean(), 1),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOSSES)
def test_losses_of_many_kinds_are_computed_again(tmp_path: Path, kind: str) -> None:
    batch, loss_of, width = LOSSES[kind]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, width))
    found = run_of(tmp_path, model, batch, loss_of)["overfit"]
    assert "skipped" not in found
    assert found["run_first_loss"] > found["final_loss"]


def test_a_penalty_on_the_weights_is_part_of_the_loss(tmp_path: Path) -> None:
    model = net()
    penalised = lambda p, y: functional.mse_loss(p, y) + 1e-3 * model[0].weight.pow(2).sum()  # noqa: E731
    assert "skipped" not in run_of(tmp_path, model, line, penalised)["overfit"]


def test_two_models_in_a_row_are_run_again_together(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(4, 3), nn.Linear(3, 4)
    with watching(tmp_path):
        optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
        for _ in range(24):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            functional.mse_loss(decoder(torch.tanh(encoder(x)) + 1.0), x).backward()
            optimizer.step()
    found = probes(tmp_path)
    assert "skipped" not in found["overfit"]
    assert found["cross_sample"]["leaks"] is False


def test_a_loss_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    found = run_of(tmp_path, net(), line, lambda p, y: torch.erf(p - y).pow(2).mean())
    assert "Erf" in found["overfit"]["skipped"]


def test_hooks_of_the_user_are_never_called_by_experiments(tmp_path: Path) -> None:
    model, called = net(), []
    with watching(tmp_path):
        handle = model[0].register_forward_hook(lambda *_: called.append(1))
        learn(model, line, functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.05))
    handle.remove()
    assert len(called) == 24
    assert "hooks" in probes(tmp_path)["overfit"]["skipped"]


def test_a_short_run_is_left_alone(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        learn(model, line, functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.05), steps=3)
    assert "fewer than" in probes(tmp_path)["overfit"]["skipped"]


def test_an_interrupted_run_is_left_alone(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path) as capture:
        learn(model, line, functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.05))
        capture.close(signal=2)
    assert "interrupted" in probes(tmp_path)["overfit"]["skipped"]


class BatchSoftmax(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score, self.value, self.dim = nn.Linear(4, 1), nn.Linear(4, 1), dim

    def forward(self, x: Tensor) -> Tensor:
        return self.value(x) * torch.softmax(self.score(x), dim=self.dim)


def test_a_softmax_over_the_batch_lets_samples_see_each_other(tmp_path: Path) -> None:
    found = run_of(tmp_path, BatchSoftmax(0), line, functional.mse_loss)["cross_sample"]
    assert found["leaks"]
    assert (found["op"], found["op_dim"], found["layer_class"]) == ("softmax", 0, "BatchSoftmax")
    assert found["source"].rpartition("/")[2].startswith("test_probes.py:")


def test_a_softmax_over_features_does_not(tmp_path: Path) -> None:
    found = run_of(tmp_path, BatchSoftmax(1), line, functional.mse_loss)["cross_sample"]
    assert not found["leaks"]
    assert found["leak"] == 0.0


class LastStep(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 8, batch_first=batch_first)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def sequences(n: int = 12) -> Batch:
    x = torch.randn(n, 7, 3)
    return x, (x.sum((1, 2)) > 0).long()


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_recurrent_layer_along_the_wrong_axis_mixes_samples(tmp_path: Path, batch_first: bool) -> None:
    model = LastStep(batch_first=batch_first)
    found = run_of(tmp_path, model, sequences, functional.cross_entropy)["cross_sample"]
    assert found["leaks"] is not batch_first
    assert batch_first or found["layer"] == "rnn"


def test_batchnorm_is_no_leak(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    assert run_of(tmp_path, model, line, functional.mse_loss)["cross_sample"]["leaks"] is False


class Attention(nn.Module):
    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.embed, self.attend, self.head = (
            nn.Embedding(11, 8),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 11),
        )
        self.causal = causal

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        mask = torch.triu(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool), 1) if self.causal else None
        return self.head(self.attend(x, x, x, attn_mask=mask)[0])


def text(n: int = 6) -> Batch:
    ids = torch.randint(0, 11, (n, 9))
    return ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize("causal", [True, False])
def test_attention_without_a_mask_sees_the_future(tmp_path: Path, causal: bool) -> None:
    loss_of = lambda p, y: functional.cross_entropy(p.flatten(0, 1), y.flatten())  # noqa: E731
    found = run_of(tmp_path, Attention(causal=causal), text, loss_of)
    assert found["future_token"]["leaks"] is not causal
    assert found["future_token"]["target_shift"] == 1
    assert not found["cross_sample"]["leaks"]


def test_dropout_and_batchnorm_are_told_apart(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.9), nn.Linear(32, 1))
    found = run_of(tmp_path, model, line, functional.mse_loss, lr=1e-3)["train_eval"]
    assert (found["dropouts"], found["batchnorms"], found["largest_dropout"]) == (1, 0, 0.9)
    assert found["train_repeat"] == 0.0
    assert found["train_noise"] > 0.1
    assert found["norm_effect"] == 0.0
    assert found["loss_eval"] < found["loss_train"]


def test_labels_that_follow_from_the_inputs_are_related(tmp_path: Path) -> None:
    found = run_of(tmp_path, net(), line, functional.mse_loss, lr=0.1)["label_permutation"]
    assert found["related"] is True
    assert found["held_true"] < found["held_permuted"]


def test_padding_and_real_tokens_are_told_apart(tmp_path: Path) -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 2)

        def forward(self, ids: Tensor) -> Tensor:
            real = (ids != 0).unsqueeze(-1)
            return self.head((self.embed(ids) * real).sum(1) / real.sum(1))

    def padded() -> Batch:
        ids, length = torch.randint(1, 11, (8, 6)), torch.arange(8) % 5 + 2
        ids[torch.arange(6)[None] >= length[:, None]] = 0
        return ids, length % 2

    found = run_of(tmp_path, Bag(), padded, functional.cross_entropy)["token_dependence"]
    assert (found["pad_id"], found["side"], found["embedding"]) == (0, "right", "embed")
    assert found["pad_gradient"] == 0.0
    assert found["real_gradient"] > 0


class OwnLoss(nn.Module):
    """Is given the labels first, and puts out its loss."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.inner = Attention(causal=causal)

    def forward(self, labels: Tensor, ids: Tensor) -> Tensor:
        return functional.cross_entropy(self.inner(ids).transpose(1, 2), labels)


@pytest.mark.parametrize("causal", [True, False])
def test_a_model_that_puts_out_its_loss_is_read_at_its_last_layer(tmp_path: Path, causal: bool) -> None:
    model = OwnLoss(causal=causal)
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(24):
            ids, target = text()
            optimizer.zero_grad()
            model(target, ids).backward()
            optimizer.step()
    told = probes(tmp_path)["future_token"]
    assert told["leaks"] is not causal


class OverNodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.edges = torch.eye(16).roll(1, 0) + torch.eye(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.edges @ self.first(x)


def test_the_nodes_of_a_graph_are_joined_on_purpose(tmp_path: Path) -> None:
    told = run_of(tmp_path, OverNodes(), classes, functional.cross_entropy)["cross_sample"]
    assert told["leaks"]
    assert told["given"]


def test_a_large_batch_hides_no_attention_over_it(tmp_path: Path) -> None:
    attends = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
    model = nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 16), attends, nn.Flatten(), nn.Linear(32, 3))
    told = run_of(tmp_path, model, lambda: classes(400), functional.cross_entropy)["cross_sample"]
    assert told["leaks"]
    assert told["layer_class"] in ("MultiheadAttention", "TransformerEncoderLayer")


def test_samples_are_spread_evenly_and_few_are_taken_in_vain() -> None:
    own, taken = Specimen([]), []
    for step in range(18):
        if own.wants:
            taken.append(step)
            own.offer(Sample(Tape(), step, 0, 1))
        else:
            own.offered += 1
        if step == 8:
            assert [one.step for one in own.samples] == [0, 2, 4, 6, 8]
    assert [one.step for one in own.samples] == [0, 4, 8, 12, 16]
    assert taken == [0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16]
