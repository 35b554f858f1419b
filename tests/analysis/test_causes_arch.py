"""Networks that cannot learn as they are built or started are told from those that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loss_programs import classes, run
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from watching import trace_of, watching

from neuraldbg.analysis.causes.arch_reading import Weight
from neuraldbg.analysis.causes.arch_start import _in_few_groups
from neuraldbg.analysis.diagnose import LOUD, diagnose
from neuraldbg.capture.torch.probes import runner
from neuraldbg.records import Finding

OURS = ("bad_init", "missing_activation")


@pytest.fixture(autouse=True)
def _without_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "NAMES", ())


def found(folder: Path, model: nn.Module, steps: int = 30) -> list[Finding]:
    with watching(folder):
        run(model, classes, cross_entropy, steps=steps)
    with trace_of(folder) as trace:
        judgement = diagnose(trace)
    assert {id: why for id, why in judgement.failed.items() if id in OURS} == {}
    return [one.finding for one in judgement.diagnoses if one.finding.severity in LOUD and one.finding.kind in OURS]


class Recurrent(nn.Module):
    def __init__(self, start: float | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(2, 16, batch_first=True)
        self.out = nn.Linear(16, 4)
        if start is not None:
            for weight in self.parameters():
                nn.init.constant_(weight, start)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x.reshape(len(x), 3, 2))
        out: Tensor = self.out(states[:, -1])
        return out


class Stack(nn.Module):
    """Two layers with something between them, and a head that may start at zero."""

    def __init__(self, between: str, *, zero: bool = False, start: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.between = between
        self.first, self.second, self.head = nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        if start is not None:
            for weight in self.parameters():
                nn.init.constant_(weight, start)
        if zero:
            nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.between == "dropout":
            x = nn.functional.dropout(x, 0.2, self.training)
        if self.between == "scaled":
            x = x * 0.5
        if self.between == "product":
            x = x * (x > 0)
        out: Tensor = self.head(torch.relu(self.second(x)))
        return out


def test_the_gates_of_a_constant_lstm_are_one_unit_each(tmp_path: Path) -> None:
    first, *_ = found(tmp_path, Recurrent(0.1))
    assert (first.kind, first.layer) == ("bad_init", "rnn")
    assert "4 different" in first.summary


@pytest.mark.parametrize(
    ("kind", "groups", "copies"),
    [
        ("LSTM", (4, 4), True),
        ("LSTM", (4, 8), True),  # where sums are added up otherwise
        ("GRU", (3, 5), True),
        ("LSTM", (4, None), False),  # more than a few
        ("LSTM", (6, 8), False),
        ("Embedding", (4, 8), False),  # rows come into use
    ],
)
def test_only_gates_may_come_apart_with_time(kind: str, groups: tuple[int | None, ...], copies: bool) -> None:
    weight = Weight(0, "rnn", 0, kind, (96, 2), 0.1, True, 0.1, 0.1)
    assert _in_few_groups(weight, [{"different": count, "moved": 0.1} for count in groups]) is copies


def test_units_are_copies_up_to_the_rounding_of_sums(tmp_path: Path) -> None:
    first, *_ = found(tmp_path, Stack("product", start=0.05), steps=200)
    assert (first.kind, first.layer) == ("bad_init", "first")


@pytest.mark.parametrize("model", [Recurrent(None), Stack("product", zero=True), Stack("product")])
def test_usual_starts_and_a_head_at_zero_are_left_alone(model: nn.Module, tmp_path: Path) -> None:
    assert found(tmp_path, model) == []


@pytest.mark.parametrize("between", ["", "dropout", "scaled"])
def test_a_dropout_or_a_factor_is_no_activation(between: str, tmp_path: Path) -> None:
    first, *_ = found(tmp_path, Stack(between))
    assert (first.kind, first.layer) == ("missing_activation", "first")


def test_a_filter_per_channel_and_what_mixes_them_are_one_convolution(tmp_path: Path) -> None:
    torch.manual_seed(0)
    depthwise = nn.Conv1d(8, 8, 3, padding=1, groups=8)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 8, 3, padding=1), nn.ReLU(), depthwise, nn.Conv1d(8, 8, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(48, 4),
    )  # fmt: skip
    assert found(tmp_path, model) == []
