"""Asking a session why: hypotheses, chains, events, couplings, exports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from neuraldbg import NeuralDbg
from neuraldbg.errors import UnknownName, UsageError


def train(dbg: NeuralDbg, model: nn.Module, *, clear: bool, steps: int = 30) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    for step in range(steps):
        if clear:
            optimizer.zero_grad()
        rows = torch.randint(0, 64, (16,))
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
        dbg.capture_step(step)


@pytest.fixture
def failed(tmp_path: Path) -> NeuralDbg:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    with NeuralDbg(model, out=tmp_path / "run", budget="full") as dbg:
        train(dbg, model, clear=False)
    return dbg


@pytest.fixture
def healthy(tmp_path: Path) -> NeuralDbg:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    with NeuralDbg(model, out=tmp_path / "run", budget="full") as dbg:
        train(dbg, model, clear=True)
    return dbg


def test_the_cause_comes_first_with_its_evidence(failed: NeuralDbg) -> None:
    verdict = failed.diagnose()
    assert verdict.state == "critical"
    assert verdict.findings[0]["kind"] == "missing_zero_grad"
    first = failed.get_root_causes()[0]
    assert first.evidence["kind"] == "missing_zero_grad"
    assert first.confidence is not None
    assert first.confidence > 0.9
    assert failed.get_causal_hypotheses()[0].description == first.description


def test_the_findings_are_kept_in_the_run(failed: NeuralDbg) -> None:
    failed.diagnose()
    assert next(one["kind"] for one in failed.trace.findings()) == "missing_zero_grad"


def test_a_patch_names_the_users_own_variables(failed: NeuralDbg) -> None:
    patches = [each["patch"] for each in failed.diagnose().findings[0]["suggestions"] if each["patch"]]
    assert "+        optimizer.zero_grad()" in patches[0]


def test_a_chain_begins_with_the_cause(failed: NeuralDbg) -> None:
    assert failed.trace_causal_chain()[0].startswith("missing_zero_grad")
    assert failed.explain_failure("missing_zero_grad")


def test_a_healthy_run_has_no_hypotheses_chain_or_graph(healthy: NeuralDbg) -> None:
    assert healthy.diagnose().state == "healthy"
    assert healthy.get_root_causes() == []
    assert healthy.trace_causal_chain() == []
    assert "nothing above info" in healthy.export_mermaid_causal_graph()


def test_an_unknown_failure_type_answers_with_the_nearest(healthy: NeuralDbg) -> None:
    with pytest.raises(UnknownName, match="vanishing_gradients"):
        healthy.explain_failure("vanishing_gradiens")


def test_a_run_broken_from_the_start_has_its_events_at_the_first_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[part for _ in range(12) for part in (nn.Linear(16, 16), nn.Sigmoid())], nn.Linear(16, 1))
    with NeuralDbg(model, out=tmp_path / "run", budget="full") as dbg:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(torch.randn(8, 16)), torch.randn(8, 1)).backward()
            optimizer.step()
    events = dbg.get_events()
    assert events
    assert events[0].step == 0
    assert {event.to_state for event in events} >= {"vanishing"}
    assert dbg.explain_failure("vanishing_gradients")
    assert all(pair.first_step <= pair.second_step for pair in dbg.detect_coupled_failures())


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x).detach())
        return out


def test_a_layer_that_no_gradient_reaches_is_missing_and_coupled_with_its_cause(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Cut()
    with NeuralDbg(model, out=tmp_path / "run", budget="full") as dbg:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
            optimizer.step()
    health = dbg.analyze_gradient_health()
    assert (health.layers["first"].status, health.missing_layers) == ("missing", ("first",))
    assert health.overall != "healthy"
    pairs = {(pair.first, pair.second) for pair in dbg.detect_coupled_failures()}
    assert ("detached_graph", "vanishing_gradients") in pairs
    ids = [event.id for event in dbg.get_events()]
    assert len(ids) == len(set(ids)) > 0


def test_mermaid_and_package_are_written(failed: NeuralDbg, tmp_path: Path) -> None:
    graph = failed.export_mermaid_causal_graph(tmp_path / "causes.mmd")
    assert (tmp_path / "causes.mmd").read_text() == graph
    assert graph.startswith("graph TD")
    assert "missing_zero_grad" in graph
    package = json.loads(failed.export_aquarium_package(tmp_path / "package.json").read_text())
    assert set(package) == {
        "events", "hypotheses", "couplings", "first_failure_layer", "first_failure_step", "loss_history",
    }  # fmt: skip
    assert len(package["loss_history"]) == 30
    assert package["hypotheses"][0]["causal_chain"][0].startswith("missing_zero_grad")


def test_a_container_can_be_watched_as_a_whole(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.body(x)
            return out

    model = Net()
    with NeuralDbg(model, out=tmp_path / "run", budget="full") as dbg:
        model(torch.randn(2, 4))
        dbg.register_composite_hook(model.body)
        model(torch.randn(2, 4)).sum().backward()
        with pytest.raises(UsageError, match="no part of a model"):
            dbg.register_composite_hook(nn.Linear(1, 1))
    assert len(dbg.trace.history("body", "activation")) == 1


def test_iterations_can_be_ended_by_hand(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with NeuralDbg(model, out=tmp_path / "run") as dbg:
        for expected in (1, 2, 3):
            model(torch.randn(3, 2)).sum().backward()
            assert dbg.step_iteration() == expected
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(3, 2)).sum().backward()
        optimizer.step()
        assert dbg.step_iteration() == 4
