"""Mistakes in what goes into a loss are named, each by its own name, and the training without it is left alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from loss_programs import FAULTY, HEALTHY, Program, classes, mlp, run
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from watching import trace_of, watching

from neuraldbg.analysis.catalogue import SECTIONS, catalogue
from neuraldbg.analysis.diagnose import LOUD, diagnose
from neuraldbg.capture.torch.probes import runner
from neuraldbg.records import Finding

OURS = frozenset(FAULTY)


@pytest.fixture(autouse=True)
def _without_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded on the way must be enough."""
    monkeypatch.setattr(runner, "NAMES", ())


def found(folder: Path, program: Program) -> list[Finding]:
    """What is said aloud, of the ids judged here, strongest first."""
    torch.manual_seed(1)
    with watching(folder):
        program()
    with trace_of(folder) as trace:
        judgement = diagnose(trace)
    assert {id: why for id, why in judgement.failed.items() if id in OURS} == {}
    return [one.finding for one in judgement.diagnoses if one.finding.severity in LOUD and one.finding.kind in OURS]


def each(programs: dict[str, list[Program]]) -> list[Any]:
    numbered = [(id, number, way) for id, ways in programs.items() for number, way in enumerate(ways)]
    return [pytest.param(id, way, id=f"{id}-{number}") for id, number, way in numbered]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(("id", "program"), each(FAULTY))
def test_a_mistake_is_named_first(id: str, program: Program, tmp_path: Path) -> None:
    first, *_ = found(tmp_path, program)
    assert first.kind == id
    assert first.evidence
    assert first.confidence


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(("id", "program"), each(HEALTHY))
def test_the_training_without_it_is_left_alone(id: str, program: Program, tmp_path: Path) -> None:
    assert [(one.kind, one.summary) for one in found(tmp_path, program)] == []


def test_every_mistake_has_a_page_of_its_own() -> None:
    entries = catalogue()
    symptoms = ("negative_loss", "constant_output", "suspiciously_low_loss")
    assert [id for id in (*OURS, *symptoms) if set(entries[id].sections) != set(SECTIONS)] == []


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x).softmax(-1)


def test_a_softmax_inside_a_forward_is_placed_in_its_module(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), Head())
    [one] = found(tmp_path, partial(run, model, classes, cross_entropy))
    assert (one.kind, one.layer, one.step) == ("softmax_before_cross_entropy", "2", 0)


def test_two_players_may_pull_a_loss_both_ways(tmp_path: Path) -> None:
    """The one minimises what the other maximises: a generator against its critic."""

    def program() -> None:
        maker, critic = nn.Linear(2, 2), nn.Linear(2, 2)
        one, other = torch.optim.SGD(maker.parameters(), lr=0.01), torch.optim.SGD(critic.parameters(), lr=0.01)
        for _ in range(10):
            made = maker(torch.randn(16, 2))
            loss = cross_entropy(critic(made.detach()), torch.zeros(16).long())
            other.zero_grad()
            loss.backward()
            other.step()
            loss = -cross_entropy(critic(made), torch.zeros(16).long())
            one.zero_grad()
            loss.backward()
            one.step()

    assert found(tmp_path, program) == []


def test_targets_far_away_that_are_reached_all_the_same_are_no_fault(tmp_path: Path) -> None:
    def program() -> None:
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
        for _ in range(60):
            x = torch.randn(32, 1)
            optimizer.zero_grad()
            mse_loss(model(x), 100 + 30 * x).backward()
            optimizer.step()

    assert found(tmp_path, program) == []


def test_a_label_that_does_not_exist_explains_the_crash(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with watching(tmp_path) as capture:
        model = mlp()
        run(model, classes, cross_entropy, steps=3)
        capture.close(exit_code=1, error="IndexError: Target 4 is out of bounds.")
    with trace_of(tmp_path) as trace:
        first = diagnose(trace).diagnoses[0]
    assert first.finding.kind == "corrupted_labels"
    assert "crash" in [link.kind for link in first.chain]
