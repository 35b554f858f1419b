"""Where steps are long few of the first updates are looked at: what they show is told in a run that is soon over, too.

Where a look is put off, it is judged later by what was there then.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from watching import facts, net, watching

from neuraldbg.capture.torch.evidence.data_relation import MOST_ROWS

BUDGET = 0.01


@pytest.fixture(autouse=True)
def _steps_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraldbg.capture.torch.core.LONG_STEP_NS", 0)
    monkeypatch.setattr("neuraldbg.capture.torch.core.SHORT_STEP_NS", 0)
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.MOST_SECONDS", 0.0)


def twice_cleared(model: nn.Module, steps: int) -> None:
    """The first of two backwards is for nothing. The optimizer is gone afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        for _ in range(2):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
        optimizer.step()


class WithNothing(nn.Module):
    """One of its parameters has no elements, and is used."""

    def __init__(self) -> None:
        super().__init__()
        self.none, self.some = nn.Parameter(torch.zeros(0, 3)), net()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.some(x) + self.none.sum()
        return out


@pytest.mark.parametrize("make", [net, WithNothing])
def test_lost_gradients_are_told_of_six_updates(tmp_path: Path, make: Any) -> None:
    with watching(tmp_path, budget=BUDGET):
        twice_cleared(make(), 6)
        gc.collect()
    (fact,) = facts(tmp_path, "gradients_lost")
    assert fact["count"] == fact["updates"] == 3


def test_graphs_that_stay_are_counted_in_a_run_of_twenty_updates(tmp_path: Path) -> None:
    kept = []
    with watching(tmp_path, budget=BUDGET):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(20):
            optimizer.zero_grad()
            loss = F.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 1))
            loss.backward()
            optimizer.step()
            kept.append(loss)
    told = facts(tmp_path, "graphs_kept")
    assert told[0]["count"] >= 8
    assert told[0]["holder"]["name"] == "kept"


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.runs = nn.Linear(8, 5), 0

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        self.runs += 1
        return F.cross_entropy(self.last(hidden), labels)


def test_nobody_looks_at_labels_inside_of_checkpoints(tmp_path: Path) -> None:
    """It would run the forward once more."""
    first, head = nn.Linear(4, 8), Head()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = first, head

        def forward(self, x: Tensor, labels: Tensor) -> Any:
            return checkpoint(self.head, self.first(x).tanh(), labels, use_reentrant=False)

    model = Model()
    with watching(tmp_path, budget=BUDGET):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4), torch.randint(0, 5, (8,))).backward()
            optimizer.step()
    assert head.runs == 12


@pytest.mark.parametrize("drawn", [833, 2561, 3201])
def test_enough_pairs_are_enough_whatever_comes_after_them(tmp_path: Path, drawn: int) -> None:
    """Drawn with replacement. The last batch has one row: of fewer pairs than are wanted, nothing is said then."""
    torch.manual_seed(0)
    inputs, order = torch.randn(5000, 4), torch.randint(0, 5000, (drawn,))
    model = nn.Linear(4, 2)
    with watching(tmp_path, budget=BUDGET):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for rows in order.split(64):
            x = inputs[rows]
            F.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = [fact["rows"] for fact in facts(tmp_path, "relation")]
    assert found == ([MOST_ROWS] if len(order.unique()) > MOST_ROWS else [])


def test_later_looks_at_first_layers_are_told_before_the_end(tmp_path: Path) -> None:
    with watching(tmp_path, budget=BUDGET) as capture:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(22):
            optimizer.zero_grad()
            x = torch.full((8, 4), float(step)) + torch.randn(8, 4) * 1e-3
            F.mse_loss(model(x), torch.zeros(8, 1)).backward()
            optimizer.step()
            x.zero_()  # what was kept of it is ours
        capture.core.recorder.writer.flush()  # type: ignore[union-attr]
        told = facts(tmp_path, "entry_layer")
    assert [(fact["look"], fact["step"], round(fact["rms"])) for fact in told] == [(1, 0, 0), (2, 1, 1), (3, 2, 2)]
