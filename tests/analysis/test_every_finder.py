"""Every detector and cause, on real recordings and on what is left of them: no exception, no finding without evidence,
no two that exclude each other."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mutilated import CHANGES, Recording
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
from watching import watching

from neuraldbg.analysis.catalogue import SECTIONS, catalogue
from neuraldbg.analysis.diagnose import diagnose, settle
from neuraldbg.analysis.findings import as_dict
from neuraldbg.records import Finding, Severity
from neuraldbg.trace import open_trace


def classifier() -> None:
    x, y = torch.randn(60, 5), torch.randint(0, 3, (60,))
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for _ in range(3):
        for xb, yb in DataLoader(TensorDataset(x, y), 15, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(xb), yb).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            functional.cross_entropy(model(x), y)
        model.train()


def broken_regression() -> None:
    """No zero_grad, a frozen part, a log of zero at the end."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 1))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5, momentum=0.99)
    for step in range(12):
        x = 300 * torch.randn(8, 4)
        out = model(x)
        loss = functional.mse_loss(out, torch.zeros(8, 1)) if step < 9 else torch.log(out.clamp_max(0)).mean()
        loss.backward()
        optimizer.step()


def sequences() -> None:
    emb, rnn, head = nn.Embedding(11, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 11)
    model = nn.ModuleList([emb, rnn, head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(8):
        ids = torch.randint(1, 11, (4, 9))
        logits = head(rnn(emb(ids[:, :-1]))[0])
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module", params=[classifier, broken_regression, sequences], ids=lambda p: str(p.__name__))
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    folder = tmp_path_factory.mktemp("recorded")
    story: Callable[[], None] = request.param
    torch.manual_seed(0)
    with watching(folder, strict=False):
        story()
    with open_trace(folder / "run") as trace:
        yield Recording.of(trace, story.__name__)


def check(trace_folder: Path, recording: Recording) -> None:
    with recording.write(trace_folder) as trace:
        judgement = diagnose(trace)
    assert judgement.failed == {}
    entries = catalogue()
    kinds = [one.finding.kind for one in judgement.diagnoses]
    for one in judgement.diagnoses:
        finding = one.finding
        assert finding.evidence, f"{finding.kind} without evidence"
        assert finding.summary
        assert finding.kind in entries
        assert finding.step is None or finding.step >= 0
        as_dict(one)
    excluded = {each for kind in kinds for each in entries[kind].excludes}
    assert not excluded & set(kinds)


def test_a_whole_recording_is_judged(recording: Recording, tmp_path: Path) -> None:
    check(tmp_path / "run", recording)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), changes=st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3))
def test_what_is_left_of_a_recording_is_judged(
    recording: Recording, tmp_path_factory: pytest.TempPathFactory, seed: int, changes: list[object]
) -> None:
    chance = random.Random(seed)
    changed = recording
    for change in changes:
        changed = change(changed, chance)  # type: ignore[operator]
    check(tmp_path_factory.mktemp("left") / "run", changed)


@pytest.mark.parametrize("id", sorted(catalogue()))
def test_every_id_answers_the_four_questions(id: str) -> None:
    entry = catalogue()[id]
    assert entry.title
    assert not entry.title.endswith(":")
    assert list(entry.sections) == list(SECTIONS)
    assert all(len(text) > 10 for text in entry.sections.values())


def test_excluding_causes_are_never_kept_together() -> None:
    entries = catalogue()
    causes = [one for one in entries.values() if one.sort == "cause"]
    found = [Finding(one.id, Severity.WARNING, "x", evidence={"n": 1}, confidence=0.9) for one in causes]
    kept, _ = settle(found, entries)
    kinds = {one.kind for one in kept}
    assert not any(kinds & entries[kind].excludes for kind in kinds)


def test_every_id_that_is_named_as_a_consequence_exists() -> None:
    entries = catalogue()
    known = set(entries) | {"rank_divergence"}
    unknown = {each for one in entries.values() for each in (*one.explains, *one.excludes)} - known
    assert unknown == set()
