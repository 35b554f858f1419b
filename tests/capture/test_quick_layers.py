"""Layers seen by C: the same rows as Python's, nothing changed in the training, and Python where C cannot look."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from watching import net, trace_of, train, watching

from neuraldbg.capture.kernels import host
from neuraldbg.capture.torch import dispatch
from neuraldbg.records import Kind
from neuraldbg.trace.tables import KIND_CODE

STEPS = 40
QUICK = 37  # a step that C sees: after the first ones, and not one that is looked at

pytestmark = pytest.mark.skipif(
    getattr(host.fused, "Layers", None) is None, reason="no kernel, or not on Linux: Python sees every layer"
)


@pytest.fixture(autouse=True)
def _nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """C steps aside for good where torch.compile was called, as other tests of this process do."""
    monkeypatch.setattr("neuraldbg.capture.torch.quick.compiled", lambda: False)
    monkeypatch.setattr("neuraldbg.capture.torch.dispatch.compiled", lambda: False)


class Odd(nn.Module):
    """Outputs that C leaves to Python, beside one that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(4, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.rnn(self.wide(x).unsqueeze(1))
        out: Tensor = self.last(hidden[:, -1])
        return out


Rows = list[dict[str, Any]]


def table(folder: Path, name: str, step: int) -> Rows:
    """The rows of one step, with the path of their site."""
    with trace_of(folder) as trace:
        columns = {key: values.tolist() for key, values in trace.table(name).items()}
        paths = {site.id: site.path for site in trace.sites}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [{**row, "path": paths[row["site"]]} for row in rows if row["step"] == step]


def rows_of(folder: Path, step: int) -> dict[tuple[str, int, int, int], dict[str, Any]]:
    rows = table(folder, "stats", step)
    return {(row["path"], row["kind"], row["phase"], row["slot"]): row for row in rows}


def by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraldbg.capture.torch.quick.QuickLayers.begin", lambda *_: False)


@pytest.mark.parametrize("make", [net, Odd])
def test_c_writes_what_python_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    torch.manual_seed(1)
    first = make()
    for folder in ("c", "python"):
        network = copy.deepcopy(first)
        torch.manual_seed(2)
        with watching(tmp_path / folder) as capture:
            train(network, STEPS)
            assert capture.passes.quick.c.error is None
            last = capture.passes.quick.one
        assert (last is not None and last.step == STEPS - 1) == (folder == "c")
        by_python(monkeypatch)
    fast, slow = rows_of(tmp_path / "c", QUICK), rows_of(tmp_path / "python", QUICK)
    assert set(fast) == set(slow)
    for key, row in slow.items():
        for name in ("count", "mean", "std", "min", "max", "l2", "zero_count", "nan_count", "pass_id"):
            assert fast[key][name] == pytest.approx(row[name], rel=1e-12), (key, name)
    assert {code for _, code, _, _ in fast} >= {
        KIND_CODE[kind] for kind in (Kind.ACTIVATION, Kind.GRADIENT, Kind.PARAMETER, Kind.UPDATE)
    }


def test_c_times_the_layers_that_python_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = {}
    for folder in ("c", "python"):
        with watching(tmp_path / folder):
            train(Odd(), STEPS)
        own = table(tmp_path / folder, "spans", QUICK)
        spans[folder] = sorted((row["path"], row["phase"], row["depth"], row["host_bytes"]) for row in own)
        assert all(row["duration_ns"] > 0 for row in own)
        by_python(monkeypatch)
    assert spans["c"] == spans["python"]


def test_rows_are_in_the_order_in_which_they_were_seen(tmp_path: Path) -> None:
    with watching(tmp_path):
        train(net(), STEPS)
    with trace_of(tmp_path) as trace:
        for table in ("stats", "spans"):
            assert (trace.table(table)["seq"][1:] > trace.table(table)["seq"][:-1]).all()


def test_the_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(3)
    alone, watched = Odd(), Odd()
    watched.load_state_dict(alone.state_dict())
    torch.manual_seed(4)
    losses = train(alone, STEPS)
    torch.manual_seed(4)
    with watching(tmp_path):
        assert train(watched, STEPS) == losses
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), watched.parameters(), strict=True))


def test_a_nan_is_counted_and_the_norm_of_the_gradients_says_so(tmp_path: Path) -> None:
    model = net()

    def after(step: int) -> None:
        if step == QUICK - 1:
            with torch.no_grad():
                model[2].weight[0, 0] = math.nan

    with watching(tmp_path, recording=False):
        train(model, QUICK + 1, after)
    rows = rows_of(tmp_path, QUICK)
    assert any(row["nan_count"] for (_, kind, _, _), row in rows.items() if kind == KIND_CODE[Kind.ACTIVATION])
    last = [row["value"] for row in table(tmp_path, "scalars", QUICK) if row["path"] == "grad_norm"]
    assert len(last) == 1
    assert math.isnan(last[0])


def test_a_forward_that_raises_leaves_our_hooks_in_place(tmp_path: Path) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.fails = nn.Linear(4, 1), False

        def forward(self, x: Tensor) -> Tensor:
            if self.fails:
                self.inner(x[:, :2])
            out: Tensor = self.inner(x)
            return out

    model = Failing()
    for budget in (None, 1e-9):  # measured by C; not measured
        with watching(tmp_path / str(budget), budget=budget) as capture:
            train(model, QUICK)
            model.fails = True
            with pytest.raises(RuntimeError, match="shapes"):
                model(torch.ones(2, 4))
            model.fails = False
            assert dispatch.alone()
            train(model, 2)
            assert capture.core.recorder.step == QUICK + 2
            assert not model._forward_hooks
        assert not model._forward_hooks
        assert not dispatch._PRE
        assert not dispatch._POST


def test_layers_of_a_pass_that_is_not_measured_are_called_without_hooks(tmp_path: Path) -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.found = nn.Linear(4, 1), []

        def forward(self, x: Tensor) -> Tensor:
            self.found.append((len(dispatch._PRE), len(dispatch._POST)))
            out: Tensor = self.inner(x)
            return out

    model = Asking()
    with watching(tmp_path, budget=1e-9):
        train(model, QUICK)
    assert model.found[0] == (1, 1)
    assert model.found[-1] == (0, 0)
    assert copy.deepcopy(model)._forward_hooks == {}


def test_a_copy_of_a_module_that_is_made_while_it_runs_has_no_part_in_it(tmp_path: Path) -> None:
    class Copying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)
            self.copies: list[Any] = []

        def forward(self, x: Tensor) -> Tensor:
            if len(self.copies) < 1:
                self.copies.append(None)
                self.copies[0] = copy.deepcopy(self)
            out: Tensor = self.inner(x)
            return out

    model = Copying()
    with watching(tmp_path, budget=0.0) as capture:
        train(model, 2)
        passes = capture.passes.count
        model.copies[0](torch.ones(2, 4))
        assert capture.passes.count == passes + 1


def test_the_hook_on_an_output_is_freed_with_its_graph(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        train(model, QUICK)
        out = model(torch.ones(2, 4))
        hooks = list(out._backward_hooks.values())
        assert any(type(hook).__name__ == "Hook" for hook in hooks)
        assert all(hook.__torch_unserializable__ for hook in hooks)
    out.sum().backward()  # after the capture has gone: nothing of ours answers
