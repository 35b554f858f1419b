"""What is recorded of the data, and that recording it changes and keeps nothing."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset
from watching import facts, net, trace_of, train, watching

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.capture.torch.core import RARELY
from neuraldbg.capture.torch.evidence import data_inputs, data_relation
from neuraldbg.capture.torch.evidence import rows as evidence_rows
from neuraldbg.capture.torch.evidence.data_losses import _counts, _counts_of
from neuraldbg.capture.torch.evidence.data_relation import relation_of
from neuraldbg.capture.torch.evidence.rows import as_array, keys_of, keys_of_rows


@pytest.fixture(autouse=True)
def _no_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.MOST_SECONDS", 0.0)


def fit(model: nn.Module, x: Tensor, y: Tensor, epochs: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(epochs):
        for rows in torch.arange(len(x)).split(8):
            optimizer.zero_grad()
            mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()


def test_losses_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    plain = train(net(), 12)
    torch.manual_seed(0)
    with watching(tmp_path):
        model = net()
        watched = train(model, 12)
    assert plain == watched


def test_the_variable_behind_the_batches_is_found_with_its_targets(tmp_path: Path) -> None:
    readings, level = torch.randn(40, 4), torch.randn(40, 1)
    with watching(tmp_path):
        fit(net(), readings, level)
    last = facts(tmp_path, "data_set")[-1]
    assert (last["rows"], last["distinct"], last["batch"], last["aligned"]) == (40, 40, 8, True)
    assert (last["rows_seen"], last["distinct_seen"], last["in_order"]) == (80, 40, last["followed"])


@pytest.mark.parametrize("budget", [0.01, None])
def test_rows_are_counted_the_same_at_once_or_together(tmp_path: Path, budget: float | None) -> None:
    readings, level = torch.randn(56, 4), torch.randn(56, 1)
    with watching(tmp_path, budget=budget):
        fit(net(), readings, level, epochs=9)
    last = facts(tmp_path, "data_set")[-1]
    assert (last["rows_seen"], last["distinct_seen"], last["repeated"]) == (504, 56, 448)
    assert (last["followed"], last["in_order"], last["foreign"], last["same_object"]) == (63, 63, 0, 0)


def test_rows_from_elsewhere_are_noticed_in_quiet_steps(tmp_path: Path) -> None:
    readings, level = torch.randn(64, 4), torch.randn(64, 1)
    with watching(tmp_path, budget=0.01):
        model = net()
        fit(model, readings, level, epochs=4)
        fit(model, readings + 1.0, level, epochs=4)
    assert facts(tmp_path, "data_set")[-1]["foreign"] >= 16


def test_an_evaluation_knows_the_rows_of_the_step_before_it(tmp_path: Path) -> None:
    readings, level = torch.randn(64, 4), torch.randn(64, 1)
    with watching(tmp_path, budget=0.01) as capture:
        model = net()
        fit(model, readings, level, epochs=3)
        fit(model, readings[:8] + 1.0, level[:8], epochs=1)
        with torch.no_grad():
            model(readings[:8] + 1.0)
        sets = next(one for one in capture.watchers if hasattr(one, "sets")).sets
        assert sets.evaluated_on_trained == 1.0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(9, 5),
        torch.randn(9, 5, dtype=torch.float64),
        torch.randn(9, 5).to(torch.bfloat16),
        torch.randint(0, 9, (7, 3, 2)),
        torch.randn(4, 300),
        torch.randn(5, 9).t(),
        torch.tensor([True, False, True]),
        torch.randn(6),
    ],
)
def test_keys_of_a_tensor_are_those_of_its_array(tensor: Tensor) -> None:
    array, found = as_array(tensor), keys_of_rows(tensor, 2**20)
    assert array is not None
    assert found is not None
    assert found.tolist() == keys_of(array).tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "tensor", [torch.zeros(0, 3), torch.zeros(3, 0), torch.tensor(1.0), torch.zeros(3, 4, device="meta")]
)
def test_what_has_no_rows_has_no_keys(tensor: Tensor) -> None:
    assert keys_of_rows(tensor, 2**20) is None


def test_rows_above_the_limit_are_not_read() -> None:
    assert keys_of_rows(torch.zeros(64, 64), 64 * 64 * 4 - 1) is None


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([3, 1, 1, -100]),
        torch.tensor([[0, 1], [1, 1]]),
        torch.tensor([0.0, 1.0, 1.0]),
        torch.tensor([0.5, 1.0]),
        torch.arange(40),
        torch.tensor([True, False]),
        torch.tensor([1.0, float("nan")]),
    ],
)
def test_few_labels_are_counted_as_many_are(labels: Tensor) -> None:
    assert _counts_of(labels) == _counts(labels.numpy())


def test_labels_without_a_number_are_not_counted() -> None:
    assert _counts_of(torch.tensor([1.0, float("inf")])) is None
    assert _counts_of(torch.tensor([1j])) is None


@pytest.mark.parametrize("rows", [8, 2000])
def test_labels_are_told_of_the_batches_they_came_in(tmp_path: Path, rows: int) -> None:
    """Few are counted several batches at once, many as they come; what a script does to them afterwards is its own."""
    given = []
    with watching(tmp_path):
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(21):
            labels = torch.randint(0, 3, (rows if step % 5 else 8,))
            given.append([step, [[at, int(n)] for at, n in enumerate(labels.bincount()) if n]])
            nn.functional.cross_entropy(model(torch.randn(len(labels), 4)), labels).backward()
            labels.zero_()
            optimizer.step()
            optimizer.zero_grad()
    (fact,) = facts(tmp_path, "label_batches")
    assert (fact["calls"], fact["batches"]) == (21, given)


def test_data_of_any_kind_does_no_harm(tmp_path: Path) -> None:
    odd = [torch.randn(6, 4, dtype=torch.bfloat16), np.arange(6.0), np.array(["a"] * 6), torch.empty(0, 4)]
    odd += [torch.randn(6, 4, device="meta"), torch.eye(6).to_sparse(), torch.ones(6, dtype=torch.complex64)]
    with watching(tmp_path) as capture:
        fit(net(), torch.randn(16, 4), torch.randn(16, 1))
    assert not capture.core.guard.broken
    assert len(odd) == 7


def test_nothing_of_the_users_data_is_kept_alive(tmp_path: Path) -> None:
    with watching(tmp_path):
        model = net()
        x, y = torch.randn(32, 4), torch.randn(32, 1)
        fit(model, x, y)
        gone = [weakref.ref(x), weakref.ref(y)]
        del x, y
        gc.collect()
        assert [ref() for ref in gone] == [None, None]


def test_an_evaluation_is_one_value_and_its_rows_decide_which_series(tmp_path: Path) -> None:
    x, y = torch.randn(32, 4), torch.randn(32, 1)
    other, truth = torch.randn(20, 4), torch.randn(20, 1)
    with watching(tmp_path):
        model = net()
        fit(model, x, y, epochs=1)
        with torch.no_grad():
            parts = [mse_loss(model(a), b) for a, b in zip(other.split(10), truth.split(10), strict=True)]
            seen = mse_loss(model(x), y)
        fit(model, x, y, epochs=1)
    with trace_of(tmp_path) as trace:
        evidence = Evidence(trace)
        assert evidence.curve("eval_loss").values.tolist() == pytest.approx([float(sum(parts)) / 2])
        assert evidence.curve("eval_loss.seen").values.tolist() == pytest.approx([float(seen)])
        assert evidence.curve("eval_loss").steps.tolist() == [4]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_still_knows_the_losses(tmp_path: Path) -> None:
    with watching(tmp_path):
        loss = torch.jit.script(nn.CrossEntropyLoss())
        scores, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
        assert torch.equal(loss(scores, labels), cross_entropy(scores, labels))


def test_a_loader_tells_how_many_different_rows_an_epoch_has(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(10, 4).repeat(3, 1), torch.zeros(30, 1))
    with watching(tmp_path):
        model = net()
        for _ in range(2):
            for x, y in DataLoader(data, batch_size=6):
                fit(model, x, y, epochs=1)
    last = facts(tmp_path, "loader_rows")[-1]
    assert (last["rows"], last["distinct"], last["most_times"], last["iterators"]) == (30, 10, 3, 2)


def test_the_first_layer_is_described_feature_by_feature(tmp_path: Path) -> None:
    x = torch.randn(64, 4) * torch.tensor([1.0, 1.0, 1.0, 5000.0])
    with watching(tmp_path):
        fit(net(), x, torch.randn(64, 1), epochs=1)
    first = facts(tmp_path, "entry_layer")[0]
    assert (first["features"], first["largest_at"], first["layer"]) == (4, 3, "Linear")
    assert first["largest_std"] / first["smallest_std"] > 1000


@pytest.mark.parametrize("kernel", [True, False])
def test_equal_rows_have_equal_keys_and_others_do_not(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_rows, "fused", evidence_rows.fused if kernel else None)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (2000, 16)).astype(np.float32)
    for kind in (np.float32, np.float64, np.int8, np.int64):
        keys = keys_of(signs.astype(kind))
        assert keys is not None
        assert len(np.unique(keys)) == len(np.unique(signs, axis=0))


@pytest.mark.parametrize("law", ["linear", "product", "none"])
def test_labels_are_related_where_a_plain_predictor_finds_a_law(law: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(800, 10))
    score = {"linear": x[:, 0], "product": x[:, 0] * x[:, 1], "none": rng.normal(size=800)}[law]
    found = relation_of(x, (score > 0).astype(float), classes=True)
    assert found is not None
    assert (max(found["linear"], found["crossed"], found["near"]) > 4) == (law != "none")


def test_long_after_the_start_inputs_are_read_where_the_loss_stands_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each of the first updates, then of one of many: an outlier between those must not be missed."""
    monkeypatch.setattr("neuraldbg.capture.torch.evidence.data_inputs.CLOSELY", 40)
    outlier = 59
    with watching(tmp_path, budget=1e-9):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        for step in range(80):
            optimizer.zero_grad()
            x = torch.ones(8, 4) * (1000.0 if step == outlier else 1.0)
            mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
    with trace_of(tmp_path) as trace:
        curve = Evidence(trace).curve("input_peak")
        peaks = dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))
    assert set(range(40)) <= set(peaks)
    assert peaks[outlier] == 1000.0
    assert {RARELY * 3, RARELY * 4} <= set(peaks)
    assert outlier - 1 not in peaks


def test_of_several_batches_of_one_update_the_outlier_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraldbg.capture.torch.evidence.data_inputs.CLOSELY", 40)
    with watching(tmp_path, budget=1e-9):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        for step in range(60):
            with torch.no_grad():
                model(torch.ones(8, 4))  # the pass after it is told of, being of another mode
            optimizer.zero_grad()
            for part in range(4):
                x = torch.ones(8, 4) * (1000.0 if (step, part) == (57, 2) else 1.0)
                mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
    with trace_of(tmp_path) as trace:
        curve = Evidence(trace).curve("input_peak")
        assert curve.values[curve.steps == 57].max() == 1000.0


def test_evaluations_are_told_apart_however_long_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were trained on and others, one after the other in one evaluation, long after rows stopped being
    remembered."""
    monkeypatch.setattr("neuraldbg.capture.torch.evidence.data_sets.MOST_PASSES", 40)
    x, y = torch.randn(32, 4), torch.randn(32, 1)
    other, truth = torch.randn(32, 4) + 5, torch.randn(32, 1)
    with watching(tmp_path, budget=1e-9):
        model = net()
        fit(model, x, y, epochs=45)
        with torch.no_grad():
            seen, unseen = mse_loss(model(x), y), mse_loss(model(other), truth)
        fit(model, x, y, epochs=5)
    with trace_of(tmp_path) as trace:
        evidence = Evidence(trace)
        assert evidence.curve("eval_loss").values.tolist() == pytest.approx([float(unseen)])
        assert evidence.curve("eval_loss.seen").values.tolist() == pytest.approx([float(seen)])


def test_a_set_that_comes_into_sight_late_is_found_though_batches_are_large(tmp_path: Path) -> None:
    """Four batches of 2 MB are all whose rows are remembered; the search at the ninth pass is made all the same."""
    model = nn.Linear(256, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path):
        for step in range(12):
            if step == 8:
                late = torch.randn(8192, 256)
            optimizer.zero_grad()
            out = model(torch.randn(2048, 256) if step < 8 else late[torch.randperm(8192)[:2048]])
            out.square().mean().backward()
            optimizer.step()
    assert ("late", 8192) in {(one.get("name"), one.get("rows")) for one in facts(tmp_path, "data_set")}


def test_a_second_loss_of_another_kind_is_still_looked_at(tmp_path: Path) -> None:
    with watching(tmp_path, budget=0.01) as capture:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for _ in range(200):
            optimizer.zero_grad()
            out = model(torch.randn(16, 4))
            labels = cross_entropy(out[:, :3], torch.randint(0, 3, (16,)))
            (labels + mse_loss(out[:, 3], torch.ones(16))).backward()
            optimizer.step()
        calls = next(one for one in capture.watchers if hasattr(one, "sets")).losses
        counted = [labels.calls for labels in calls._labels.values()]
    with trace_of(tmp_path) as trace:
        assert len(Evidence(trace).curve("target_peak").values) == 200
    assert counted == [200]


def test_places_in_a_smaller_set_are_forgotten_with_it(tmp_path: Path) -> None:
    torch.manual_seed(1)
    with watching(tmp_path, budget=0.01):
        data, truth = torch.randn(400, 4), torch.randn(400, 1)
        some = torch.randperm(400)[:100]
        part, of_part, turned = data[some].clone(), truth[some].clone(), truth.flip(0).clone()
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for step in range(140):
            rows = some[torch.randint(0, 100, (8,))] if step < 31 or step % 2 else torch.randint(0, 400, (8,))
            x, y = data[rows], truth[rows]
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    assert [one["aligned"] for one in facts(tmp_path, "data_set") if one["aligned"] is False] == []
    assert len(part) == len(of_part) == 100
    assert len(turned) == 400


def test_pairs_are_looked_through_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[int] = []
    settle = data_relation.Relation._settle

    def counted(self: Any, pairs: Any) -> None:
        settled.append(len(pairs.waiting))
        settle(self, pairs)

    monkeypatch.setattr(data_relation.Relation, "_settle", counted)
    torch.manual_seed(0)
    inputs, model = torch.randn(160, 4), nn.Linear(4, 2)
    labels = (inputs[:, 0] > 0).long()
    with watching(tmp_path):
        for start in (*range(0, 160, 16), *range(0, 160, 16)):  # each sample twice
            rows = slice(start, start + 16)
            cross_entropy(model(inputs[rows]), labels[rows]).backward()
    assert settled == [20]
    (found,) = facts(tmp_path, "relation")
    assert found["rows"] == 160
    assert found["linear"] > 5


def test_later_looks_at_a_first_layer_are_judged_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    scales = data_inputs._scales
    monkeypatch.setattr(data_inputs, "_scales", lambda features: judged.append(len(features)) or scales(features))
    with watching(tmp_path):
        train(net(), 5)
        assert len(judged) == 1
    assert [(one["look"], one["features"]) for one in facts(tmp_path, "entry_layer")] == [(1, 4), (2, 4), (3, 4)]
