"""One private copy of a batch serves all who keep it: what was kept are the values of the pass, whatever becomes of the
batch afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from watching import facts, watching

from neuraldbg.capture.torch.evidence import data_relation
from neuraldbg.capture.torch.evidence.data_relation import Pairs
from neuraldbg.capture.torch.passes import PassRecord
from neuraldbg.capture.torch.pieces import APART

ROWS, FEATURES = 64, 160
OVERWRITE: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda x: x,
    "in place": lambda x: x.zero_(),
    "past the version": lambda x: x.data.zero_(),
    "through numpy": lambda x: x.numpy().fill(0),
}


class InPlace(nn.Module):
    """Changes its batch, and its loss sees what came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x.clamp_(min=0.0))
        return out


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(FEATURES, 2)

    def forward(self, factor: Tensor, x: Tensor, *, twice: bool = False) -> Tensor:
        out: Tensor = self.fc(x * factor)
        return out * 2 if twice else out


CALLS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor]]] = {
    "alone": (lambda: nn.Linear(FEATURES, 2), lambda model, x: model(x)),
    "changed in the pass": (InPlace, lambda model, x: model(x)),
    "beside a number": (Several, lambda model, x: model(torch.tensor(0.5), x, twice=True)),
    "by keyword": (Several, lambda model, x: model(factor=torch.tensor(0.5), x=x)),
    "turned": (lambda: nn.Linear(FEATURES, 2), lambda model, x: model(x.t().contiguous().t())),
    "wide": (lambda: nn.Linear(FEATURES, 2).double(), lambda model, x: model(x.double())),
}


@pytest.fixture(autouse=True)
def _no_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.MOST_SECONDS", 0.0)


def related(folder: Path, call: str, overwrite: str = "nothing", *, steps: int = 8) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    make, run = CALLS[call]
    model, buffer = make(), torch.empty(ROWS, FEATURES)
    with watching(folder):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(steps):
            x = buffer.copy_(torch.randn(ROWS, FEATURES))
            labels = (x[:, 0] > 0).long()
            loss = cross_entropy(run(model, x), labels)
            loss.backward()
            OVERWRITE[overwrite](x)
            optimizer.step()
            optimizer.zero_grad()
    found = facts(folder, "relation")
    return [{name: value for name, value in fact.items() if name not in ("wall_ns", "seq")} for fact in found]


@pytest.mark.parametrize("call", CALLS)
def test_relation_is_what_it_is_where_nothing_is_shared(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = related(tmp_path / "shared", call)
    monkeypatch.setattr(data_relation, "HELD_BYTES", 0)
    apart = related(tmp_path / "apart", call)
    monkeypatch.setattr(PassRecord, "copy_of", lambda *_: None)
    assert shared == apart == related(tmp_path / "own", call)
    assert shared[0]["rows"] == 8 * ROWS
    assert shared[0]["linear"] > 5


@pytest.mark.parametrize("overwrite", OVERWRITE)
def test_a_batch_that_is_overwritten_after_its_loss_changes_nothing(tmp_path: Path, overwrite: str) -> None:
    assert related(tmp_path / "one", "alone", overwrite) == related(tmp_path / "other", "alone")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    found: list[bool] = []
    take = Pairs.take

    def noting(self: Pairs, x: Any, keys: Any, labels: Any, *, ours: bool = False) -> bool:
        found.append(ours)
        return take(self, x, keys, labels, ours=ours)

    monkeypatch.setattr(Pairs, "take", noting)
    return found


@pytest.mark.parametrize("call", CALLS)
def test_the_copy_of_the_record_is_used_as_long_as_it_is_what_the_batch_is(
    tmp_path: Path, call: str, held: list[bool]
) -> None:
    related(tmp_path, call)
    assert set(held) == {call not in ("changed in the pass", "by keyword")}


def test_batches_that_are_held_are_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = ROWS * FEATURES * 4
    monkeypatch.setattr(data_relation, "HELD_BYTES", 3 * size)
    pairs = Pairs()
    for at in range(5):
        x = np.full((ROWS, FEATURES), float(at), np.float32)
        keys = np.arange(at * ROWS, (at + 1) * ROWS, dtype=np.uint64)
        assert pairs.take(x, keys, np.arange(ROWS), ours=True)
        assert pairs.held_bytes == sum(each.nbytes for _, each in pairs.held) <= 3 * size
    assert len(pairs.held) == 3
    assert pairs.look_through()
    assert (pairs.held, pairs.held_bytes) == ([], 0)
    assert pairs.rows[: pairs.kept, 0].tolist() == [float(at) for at in range(5) for _ in range(ROWS)]


@pytest.mark.parametrize("overwrite", OVERWRITE)
def test_a_pass_runs_again_with_the_batch_it_had(tmp_path: Path, overwrite: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, 2)
    with watching(tmp_path) as capture:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        buffer, records = torch.empty(ROWS, FEATURES), []
        for _ in range(4):
            x = buffer.copy_(torch.randn(ROWS, FEATURES))
            out = model(x)
            records.append((capture.passes.current[-1].record, out.detach().clone()))
            OVERWRITE[overwrite](x)
            optimizer.step()
        assert buffer.nbytes >= APART
        for record, out in records:
            assert record is not None
            assert record.args[0].version is None
            again = record.rerun(model, model)
            record.rerun(lambda given: given.zero_(), model)  # gets what it may write to
            assert torch.equal(again, out)
            assert torch.equal(record.rerun(model, model), out)
