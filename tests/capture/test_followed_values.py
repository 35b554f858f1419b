"""What a lost layer makes, followed by value; policy gradients in the graph; updates that a script leaves out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from watching import facts, trace_of, watching

from neuraldbg.analysis.diagnose import diagnose
from neuraldbg.capture.torch.evidence.data_windows import sequence_of
from neuraldbg.capture.torch.evidence.graph_walk import walk
from neuraldbg.capture.torch.evidence.score_terms import score_terms


def _data(h: Tensor) -> Tensor:
    return (h / h.norm(dim=1, keepdim=True)).data


def _numpy(h: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(h.detach().numpy()) + 0.5)


def _list(h: Tensor) -> Tensor:
    return torch.tensor([[2.0 * value for value in row] for row in h.tolist()])


@torch.no_grad()
def _switched_off(h: Tensor) -> Tensor:
    return h - h.mean(1, keepdim=True)


class Branches(nn.Module):
    def __init__(self, cut: Any) -> None:
        super().__init__()
        self.lost, self.kept, self.cut = nn.Linear(4, 3), nn.Linear(4, 3), cut

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(self.lost(x)) + self.kept(x)  # type: ignore[no-any-return]


def _train(model: nn.Module, steps: int = 4) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(torch.randn(6, 4))
        (out if isinstance(out, Tensor) else out[0]).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("cut", "op"), [(_data, "data"), (_numpy, "detach"), (_list, "tolist"), (_switched_off, "no_grad")]
)
def test_the_operation_that_lets_go_of_the_graph_is_named(tmp_path: Path, cut: Any, op: str) -> None:
    with watching(tmp_path):
        _train(Branches(cut))
    (fact,) = facts(tmp_path, "unreached")
    assert (fact["outputs_that_depend"], fact["with_graph"]) == (1, 0)
    assert fact["cuts"][0][0] == op
    assert "test_followed_values.py" in fact["cuts"][0][1]


def test_a_head_that_nobody_uses_is_not_cut(tmp_path: Path) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.main, self.spare = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.main(x), self.spare(x)

    with watching(tmp_path):
        _train(Heads())
    (fact,) = facts(tmp_path, "unreached")
    assert fact["with_graph"] == 1
    assert fact["cuts"] == []


def test_following_changes_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = Branches(_data)
    _train(plain)
    torch.manual_seed(0)
    with watching(tmp_path):
        watched = Branches(_data)
        _train(watched)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))


def test_sparse_gradients_flow(tmp_path: Path) -> None:
    with watching(tmp_path):
        table, head = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1)
        never, other = torch.optim.SparseAdam(table.parameters()), torch.optim.SGD(head.parameters(), lr=0.1)
        for _ in range(6):
            never.zero_grad()
            other.zero_grad()
            head(table(torch.randint(0, 20, (5,)))).sum().backward()
            other.step()
    flows = {fact["optimizer"]: fact for fact in facts(tmp_path, "gradient_flow")}
    missing = [flow for flow in flows.values() if not flow["updates"]]
    assert missing[0]["reached"] >= 5
    assert missing[0]["moved"] is False


# -- policy gradients ------------------------------------------------------------------------------------------------


def _signs(loss: Tensor) -> set[float]:
    return {term.sign for term in score_terms(walk(loss, 400))}


def test_the_sign_of_a_score_is_read_through_every_way_to_write_it() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(3, 4), torch.randn(8, 3)
    worth, action = torch.randn(8), torch.randint(0, 4, (8,))
    dist = Categorical(logits=net(x))
    assert _signs(-(dist.log_prob(action) * worth).mean()) == {-1.0}
    assert _signs((worth * torch.log_softmax(net(x), 1).gather(1, action[:, None]).squeeze(1)).sum()) == {1.0}
    assert _signs((nn.functional.cross_entropy(net(x), action, reduction="none") * worth).mean()) == {-1.0}
    normal = Normal(net(x)[:, 0], 1.0)
    assert _signs((normal.log_prob(torch.randn(8)) * worth).mean()) == {1.0}
    ratio = (dist.log_prob(action) - torch.randn(8)).exp()
    assert _signs(-torch.min(ratio * worth, ratio.clamp(0.8, 1.2) * worth).mean()) == {-1.0}
    assert _signs(0.5 * (net(x)[:, 0] - worth).square().mean()) == set()


@pytest.mark.parametrize("reward", [lambda n: torch.randn(n), lambda n: torch.rand(n)], ids=["either", "positive"])
def test_the_curve_of_a_policy_gradient_is_not_judged(tmp_path: Path, reward: Callable[[int], Tensor]) -> None:
    """Worths of either sign make a loss whose value tells nothing; weights of one sign are a weighted likelihood."""
    torch.manual_seed(0)
    net = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with watching(tmp_path):
        for _ in range(30):
            dist = Categorical(logits=net(torch.randn(8, 3)))
            worth = reward(8)
            optimizer.zero_grad()
            (-(dist.log_prob(dist.sample()) * worth).mean()).backward()
            optimizer.step()
    with trace_of(tmp_path) as trace:
        judgement = diagnose(trace)
    either = bool((reward(99) < 0).any())
    assert ("no_learning" in {one.finding.kind for one in judgement.diagnoses}) is not either
    assert ("no_learning" in judgement.unchecked) is either


def test_a_baseline_with_a_graph_is_seen_and_a_focal_loss_is_none() -> None:
    torch.manual_seed(0)
    actor, critic, x = nn.Linear(3, 4), nn.Linear(3, 1), torch.randn(8, 3)
    reward, action = torch.randn(8), torch.randint(0, 4, (8,))
    logp, value = Categorical(logits=actor(x)).log_prob(action), critic(x).squeeze(-1)
    fitted = nn.functional.mse_loss(value, reward)
    open_graph = -(logp * (reward - value)).mean() + fitted
    assert any(term.baseline for term in score_terms(walk(open_graph, 400)))
    cut = -(logp * (reward - value.detach())).mean() + fitted
    assert not any(term.baseline for term in score_terms(walk(cut, 400)))
    p = torch.softmax(actor(x), 1).gather(1, action[:, None]).squeeze(1)
    focal = -((1 - p).pow(2) * p.log()).mean()
    assert not any(term.baseline for term in score_terms(walk(focal, 400)))


# -- updates that the script leaves out, batches from a sequence -------------------------------------------------------


def test_gradients_of_updates_that_are_left_out_are_looked_at(tmp_path: Path) -> None:
    with watching(tmp_path):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 4)).sub(model(torch.zeros(4, 4))).mul(0.0).sum().sqrt()
            loss.backward()
            if bool(torch.isfinite(model.weight.grad).all()):  # type: ignore[arg-type]
                optimizer.step()
    (origin,) = facts(tmp_path, "origin")
    assert origin["update_skipped"] is True


def test_a_batch_is_found_in_a_text_and_in_a_series() -> None:
    rng = np.random.default_rng(0)
    text, series = rng.integers(0, 9, 500), rng.normal(size=(400, 2)).astype(np.float32)
    words = np.stack([text[at : at + 8] for at in (3, 77, 200)])
    pieces = np.stack([series[at : at + 6] for at in (5, 50)])
    names = [("text", text), ("series", series), ("words", words)]
    assert sequence_of(words, iter(names)) == {"name": "text", "length": 500, "batch": 3, "window": 8}
    assert (sequence_of(pieces, iter(names)) or {})["name"] == "series"
    assert sequence_of(rng.integers(0, 9, (3, 8)), iter(names)) is None
