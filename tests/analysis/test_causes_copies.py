"""Copies that should follow and ties that were lost are named; what is two on purpose is left alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from watching import facts, trace_of, watching

from neuraldbg.analysis.diagnose import Judgement, diagnose
from neuraldbg.capture.torch.probes import runner
from neuraldbg.records import Severity


@pytest.fixture(autouse=True)
def _without_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "NAMES", ())


def judged(folder: Path, program: Callable[[], object]) -> Judgement:
    torch.manual_seed(0)
    with watching(folder):
        _kept = program()  # what a script has in hand lives until its end
    with trace_of(folder) as trace:
        return diagnose(trace)


def severities(judgement: Judgement, kind: str) -> list[Severity]:
    return [one.finding.severity for one in judgement.diagnoses if one.finding.kind == kind]


def averaged(begin: int, updates: int, *, buffers: bool) -> Callable[[], object]:
    """A model with BatchNorm and an average of it that begins after some updates."""

    def program() -> object:
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        ema = None
        for step in range(updates):
            x = torch.randn(16, 4)
            optimizer.zero_grad()
            F.cross_entropy(net(x), (x[:, 0] > 0).long()).backward()
            optimizer.step()
            if step == begin:
                ema = copy.deepcopy(net)
                ema.zero_grad()
            if ema is not None:
                follow(ema, net, buffers=buffers)
        return ema

    return program


@torch.no_grad()
def follow(ema: nn.Module, net: nn.Module, *, buffers: bool) -> None:
    for ours, theirs in zip(ema.parameters(), net.parameters(), strict=True):
        ours.lerp_(theirs, 0.1)
    for ours, theirs in zip(ema.buffers(), net.buffers(), strict=True):
        if buffers:
            ours.copy_(theirs)


def test_an_average_that_begins_after_a_warm_up_is_followed_too(tmp_path: Path) -> None:
    judgement = judged(tmp_path, averaged(15, 50, buffers=False))
    assert severities(judgement, "ema_not_tracking") == [Severity.WARNING]


def test_a_late_average_with_its_buffers_is_left_alone(tmp_path: Path) -> None:
    judgement = judged(tmp_path, averaged(15, 50, buffers=True))
    assert severities(judgement, "ema_not_tracking") == []


def test_a_copy_made_too_late_to_be_followed_is_said_to_be_unchecked(tmp_path: Path) -> None:
    judgement = judged(tmp_path, averaged(25, 28, buffers=False))
    assert severities(judgement, "ema_not_tracking") == []
    assert "too late" in judgement.unchecked["ema_not_tracking"]


def test_a_run_without_copies_has_none_unwatched(tmp_path: Path) -> None:
    judged(tmp_path, averaged(99, 28, buffers=False))
    assert facts(tmp_path, "copy_unwatched") == []


class Tied(nn.Module):
    """The head is the table; `apart` makes them two again, as a resize does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.table.weight

    def apart(self) -> Tied:
        self.head.weight = nn.Parameter(self.table.weight.detach().clone())
        return self

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(ids))
        return out


class StartedAlike(nn.Module):
    """Both from the same pretrained vectors, never tied."""

    def __init__(self) -> None:
        super().__init__()
        vectors = torch.randn(12, 6)
        self.words = nn.Embedding.from_pretrained(vectors.clone(), freeze=False)
        self.out = nn.Linear(6, 12, bias=False)
        self.out.weight.data.copy_(vectors)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.words(ids))
        return out


def language(model: nn.Module) -> object:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        ids = torch.randint(0, 12, (16,))
        optimizer.zero_grad()
        F.cross_entropy(model(ids), (ids + 1) % 12).backward()
        optimizer.step()
    return model


def test_a_tie_that_the_source_makes_and_a_resize_loses_is_a_warning(tmp_path: Path) -> None:
    judgement = judged(tmp_path, lambda: language(Tied().apart()))
    assert severities(judgement, "weight_tying_lost") == [Severity.WARNING]


def test_two_tables_that_start_alike_and_were_never_tied_are_information(tmp_path: Path) -> None:
    judgement = judged(tmp_path, lambda: language(StartedAlike()))
    assert severities(judgement, "weight_tying_lost") == [Severity.INFO]


def test_a_tie_that_holds_is_left_alone(tmp_path: Path) -> None:
    assert severities(judged(tmp_path, lambda: language(Tied())), "weight_tying_lost") == []
