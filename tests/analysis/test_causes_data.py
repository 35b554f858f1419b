"""Faults of the data, each beside a healthy program that looks like it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from watching import trace_of, watching

from neuraldbg.analysis.diagnose import Judgement, diagnose
from neuraldbg.records import Diagnosis

MINE = {
    "unnormalised_input",
    "label_shuffle_mismatch",
    "constant_batch",
    "duplicate_data",
    "data_not_shuffled",
    "data_outlier_batch",
    "insufficient_data",
    "missing_regularisation",
}


def judged(folder: Path, run: Callable[[], object]) -> Judgement:
    torch.manual_seed(0)
    with watching(folder, budget=0.01):
        run()
    with trace_of(folder) as trace:
        judgement = diagnose(trace)
    assert not (MINE | {"data_bound", "overfitting"}) & judgement.failed.keys()
    return judgement


def loud(folder: Path, run: Callable[[], object]) -> dict[str, Diagnosis]:
    return {one.finding.kind: one for one in judged(folder, run).loud if one.finding.kind in MINE}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what needs no experiment at the end of the run."""
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.MOST_SECONDS", 0.0)


def classifier(features: int = 8, classes: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, classes))


def blobs(rows: int, features: int = 8, classes: int = 4) -> tuple[Tensor, Tensor]:
    labels = torch.arange(rows) % classes
    centres = torch.randn(classes, features, generator=torch.Generator().manual_seed(5))
    return 1.5 * centres[labels] + torch.randn(rows, features), labels


def train(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], lr: float = 0.05) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for inputs, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()


# -- the same batch again --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_new_iterator_for_every_step_always_gives_the_first_batch(tmp_path: Path) -> None:
    def run() -> None:
        loader = DataLoader(TensorDataset(*blobs(200)), batch_size=20)
        train(classifier(), (next(iter(loader)) for _ in range(30)))

    finding = loud(tmp_path, run)["constant_batch"].finding
    assert finding.step == 0
    assert finding.evidence["iterators_made"] == 30


@pytest.mark.usefixtures("quick")
def test_a_fixed_piece_of_a_larger_tensor_is_one_batch(tmp_path: Path) -> None:
    def run() -> None:
        x, y = blobs(200)
        train(classifier(), ((x[:20], y[:20]) for _ in range(30)))

    assert "constant_batch" in loud(tmp_path, run)


@pytest.mark.usefixtures("quick")
def test_an_exhausted_iterator_whose_last_batch_is_kept(tmp_path: Path) -> None:
    def run() -> None:
        loader = DataLoader(TensorDataset(*blobs(200)), batch_size=20)

        def stuck() -> Iterator[tuple[Tensor, Tensor]]:
            batches = iter(loader)
            batch = next(batches)
            for _ in range(60):
                batch = next(batches, batch)
                yield batch

        train(classifier(), stuck())

    assert loud(tmp_path, run)["constant_batch"].finding.step == 8


@pytest.mark.usefixtures("quick")
def test_training_on_the_whole_set_at_once_is_healthy(tmp_path: Path) -> None:
    def run() -> None:
        x, y = blobs(120)
        train(classifier(), ((x, y) for _ in range(30)))

    assert loud(tmp_path, run) == {}


@pytest.mark.usefixtures("quick")
def test_a_training_split_beside_a_held_out_one_is_healthy(tmp_path: Path) -> None:
    def run() -> None:
        x, y = blobs(200)
        model = classifier()
        train(model, ((x[:60], y[:60]) for _ in range(30)))
        with torch.no_grad():
            model(x[60:])

    assert loud(tmp_path, run) == {}


@pytest.mark.usefixtures("quick")
def test_epochs_over_a_loader_are_healthy(tmp_path: Path) -> None:
    def run() -> None:
        loader = DataLoader(TensorDataset(*blobs(200)), batch_size=20, shuffle=True)
        train(classifier(), (batch for _ in range(4) for batch in loader))

    assert loud(tmp_path, run) == {}


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_set_of_few_samples_copied_many_times(tmp_path: Path) -> None:
    def run() -> None:
        x, y = blobs(50)
        x, y = x.repeat(8, 1), y.repeat(8)
        train(classifier(), ((x[rows], y[rows]) for _ in range(4) for rows in torch.randperm(400).split(20)))

    finding = loud(tmp_path, run)["duplicate_data"].finding
    assert (finding.evidence["samples"], finding.evidence["different"]) == (400, 50)


@pytest.mark.usefixtures("quick")
def test_the_four_cases_of_xor_repeat_by_nature(tmp_path: Path) -> None:
    def run() -> None:
        x = torch.randint(0, 2, (400, 2)).float()
        y = (x[:, 0] != x[:, 1]).long()
        train(classifier(2, 2), ((x[rows], y[rows]) for _ in range(4) for rows in torch.randperm(400).split(20)))

    assert loud(tmp_path, run) == {}


class Stream(IterableDataset[Tensor]):
    """Every worker hands out all of it."""

    def __init__(self, copies: int) -> None:
        self.rows = [row for row in blobs(60)[0] for _ in range(copies)]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.rows)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("copies", "found"), [(3, True), (1, False)])
def test_a_stream_that_repeats_within_an_epoch(copies: int, found: bool, tmp_path: Path) -> None:
    def run() -> None:
        loader = DataLoader(Stream(copies), batch_size=12)
        train(classifier(), ((x * 1.0, torch.arange(12) % 4) for _ in range(3) for x in loader))

    assert ("duplicate_data" in loud(tmp_path, run)) == found


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_over_a_set_sorted_by_class(shuffle: bool, tmp_path: Path) -> None:
    def run() -> None:
        x, y = blobs(240)
        order = y.argsort()
        loader = DataLoader(TensorDataset(x[order], y[order]), batch_size=20, shuffle=shuffle)
        train(classifier(), (batch for _ in range(3) for batch in loader))

    assert set(loud(tmp_path, run)) == (set() if shuffle else {"data_not_shuffled"})


@pytest.mark.usefixtures("quick")
def test_slices_of_a_set_sorted_by_class(tmp_path: Path) -> None:
    def run() -> None:
        x, y = blobs(240)
        x, y = x[y.argsort()], y.sort().values
        train(classifier(), ((x[i : i + 20], y[i : i + 20]) for _ in range(3) for i in range(0, 240, 20)))

    assert set(loud(tmp_path, run)) == {"data_not_shuffled"}


# -- scale -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("factor", [1.0, 2000.0])
def test_one_batch_far_outside_the_others(factor: float, tmp_path: Path) -> None:
    def run() -> None:
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1), nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(60):
            x = torch.randn(16, 4)
            y = x.sum(1, keepdim=True)
            scale = factor if step == 40 else 1.0
            optimizer.zero_grad()
            mse_loss(model[0](x * scale).sum(1, keepdim=True) * 0.1 + model(x * scale), y).backward()
            optimizer.step()

    found = loud(tmp_path, run)
    assert set(found) == ({"data_outlier_batch"} if factor > 1 else set())
    assert all(one.finding.step == 40 for one in found.values())


@pytest.mark.parametrize("kind", ["raw", "standardised", "normalised inside"])
def test_raw_inputs_are_named_only_where_they_do_harm(kind: str, tmp_path: Path) -> None:
    def run() -> None:
        x, y = blobs(400)
        x = x if kind == "standardised" else 4000 + 900 * x
        layers = [nn.BatchNorm1d(8)] if kind == "normalised inside" else []
        model = nn.Sequential(*layers, nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        train(model, ((x[rows], y[rows]) for _ in range(6) for rows in torch.randperm(400).split(20)))

    found = loud(tmp_path, run)
    assert set(found) == ({"unnormalised_input"} if kind == "raw" else set())
    assert all(one.finding.layer == "0" for one in found.values())


# -- labels and other data ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [True, False])
def test_labels_shuffled_apart_from_their_inputs(apart: bool, tmp_path: Path) -> None:
    def run() -> None:
        x, y = blobs(600)
        order = torch.randperm(600)
        x, y = x[order], y[torch.randperm(600) if apart else order]
        train(classifier(), ((x[i : i + 30], y[i : i + 30]) for _ in range(5) for i in range(0, 600, 30)), lr=0.1)

    assert ("label_shuffle_mismatch" in loud(tmp_path, run)) == apart


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("rows", "decay", "found"),
    [(30, 0.0, "insufficient_data"), (160, 0.0, "missing_regularisation"), (160, 0.01, "insufficient_data")],
)
def test_memorised_samples(rows: int, decay: float, found: str, tmp_path: Path) -> None:
    def run() -> None:
        x, other = torch.randn(rows, 20), torch.randn(300, 20)
        y, truth = ((t[:, 0] + 2 * torch.randn(len(t)) > 0).long() for t in (x, other))
        model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=decay * 0.01)
        for epoch in range(60):
            for part in torch.randperm(rows).split(15):
                optimizer.zero_grad()
                cross_entropy(model(x[part]), y[part]).backward()
                optimizer.step()
            if epoch % 5 == 4:
                with torch.no_grad():
                    cross_entropy(model(other), truth)

    assert set(loud(tmp_path, run)) == {found}


@pytest.mark.usefixtures("quick")
def test_an_evaluation_that_keeps_falling_is_healthy(tmp_path: Path) -> None:
    def run() -> None:
        x, y = blobs(400)
        held, truth = blobs(200)
        model = classifier()
        for _ in range(8):
            train(model, ((x[rows], y[rows]) for rows in torch.randperm(400).split(20)))
            with torch.no_grad():
                cross_entropy(model(held), truth)

    assert loud(tmp_path, run) == {}
