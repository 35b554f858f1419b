"""Anomalies asked of a training in this process, the user's own numbers among them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neuraldbg import AnomalyDetector, NeuralDbg


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def trained(dbg: NeuralDbg, model: nn.Module, count: int = 30, **odd: Any) -> None:
    """Steps of a training; `accuracy_at={25: 0.0}` and `input_at={20: 1e4}` make one of them odd."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step in range(count):
        optimizer.zero_grad()
        inputs = torch.randn(16, 4) * odd.get("input_at", {}).get(step, 1.0)
        nn.functional.mse_loss(model(inputs), torch.randn(16, 1)).backward()
        optimizer.step()
        dbg.record_metric("accuracy", torch.tensor(odd.get("accuracy_at", {}).get(step, 0.8 + 0.01 * (step % 4))))


def test_a_number_of_the_users_own_is_stored_and_watched() -> None:
    model = nn.Linear(4, 1)
    with NeuralDbg(model, budget="full") as dbg:
        trained(dbg, model, accuracy_at={25: 0.0001, 28: math.nan})
        odd = [(each.step, each.layer) for each in dbg.anomalies() if each.metrics == ("user.accuracy",)]
        assert dbg.trace.history("user.accuracy", "scalar")["value"][25] == pytest.approx(0.0001)
    # written down after the update, when the next one is already counted
    assert odd == [(26, None), (29, None)]


def test_a_batch_far_from_the_others_shows_in_its_layers() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    with NeuralDbg(model, budget="full") as dbg:
        trained(dbg, model, count=30, input_at={20: 1e4})
        found = [each for each in dbg.anomalies() if each.step == 20]
    assert {"0"} <= {each.layer for each in found}
    assert any("mean_activation" in each.metrics for each in found if each.layer == "0")


def test_every_call_goes_on_where_the_last_one_ended() -> None:
    model = nn.Linear(4, 1)
    with NeuralDbg(model, budget="full") as dbg:
        assert dbg.anomalies() == []
        trained(dbg, model)
        first = dbg.anomalies()
        trained(dbg, model, accuracy_at={10: math.nan})
        second = dbg.anomalies()
    assert second[: len(first)] == first
    assert (41, ("user.accuracy",)) in [(each.step, each.metrics) for each in second]


class EveryFifth(AnomalyDetector):
    """Finds the loss of every fifth sample odd."""

    seen = 0

    def detect_custom_anomaly(self, layer_name: str, metrics: dict[str, float]) -> tuple[bool, float]:
        self.seen += "loss" in metrics
        return "loss" in metrics and self.seen % 5 == 0, 7.0


def test_a_detector_of_ones_own_looks_at_everything() -> None:
    model = nn.Linear(4, 1)
    with NeuralDbg(model, budget="full") as dbg:
        trained(dbg, model)
    own = [each for each in dbg.anomalies(EveryFifth(sensitivity=1.0)) if "custom" in each.methods]
    assert [each.step for each in own] == [4, 9, 14, 19, 24, 29]
    assert own[0].severity == 7.0


def test_the_configured_dial_is_used(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("anomaly_sensitivity: 1.0\n")
    model = nn.Linear(4, 1)
    with NeuralDbg(model, budget="full") as dbg:
        trained(dbg, model, accuracy_at={25: 0.0001})
    assert dbg.anomalies() == []
