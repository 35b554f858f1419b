"""Layers seen by C: the same rows as Python's, nothing changed in the training, and Python where C cannot look."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from quick_layers import LOOKED, QUICK, STEPS, Odd, by_python, nothing_was_compiled, seen_by_c, table  # noqa: F401
from torch import Tensor, nn
from watching import net, trace_of, train, watching

from neuraldbg.capture.torch import dispatch
from neuraldbg.capture.torch.layer_watch import LayerWatch
from neuraldbg.records import Kind, SiteKind
from neuraldbg.trace.tables import KIND_CODE

pytestmark = [seen_by_c, pytest.mark.usefixtures("nothing_was_compiled")]


def rows_of(folder: Path, step: int) -> dict[tuple[str, int, int, int], dict[str, Any]]:
    rows = table(folder, "stats", step)
    return {(row["path"], row["kind"], row["phase"], row["slot"]): row for row in rows}


def told_of(folder: Path) -> list[dict[str, Any]]:
    """All facts, less what another run would have otherwise: times, numbers in order, models still in memory."""
    with trace_of(folder) as trace:
        every = trace.facts()
    passing = ("overhead", "resources", "note", "probe", "environment", "copy")
    return [
        {key: value for key, value in row.items() if key not in ("seq", "wall_ns", "seconds")}
        for row in every
        if row["type"] not in passing
    ]


class Learnt(nn.Module):
    """Puts out a weight, as learnt tokens and positions do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 4))

    def forward(self, _: Tensor) -> Tensor:
        return self.weight


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.learnt, self.last = Learnt(), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x + self.learnt(x))
        return out


@pytest.mark.parametrize("make", [net, Odd, Shifted])
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
    for step in (LOOKED, QUICK):
        fast, slow = rows_of(tmp_path / "c", step), rows_of(tmp_path / "python", step)
        assert set(fast) == set(slow)
        for key, row in slow.items():
            for name in ("count", "mean", "std", "min", "max", "l2", "zero_count", "nan_count", "pass_id"):
                assert fast[key][name] == pytest.approx(row[name], rel=1e-12), (key, name)
        assert {code for _, code, _, _ in fast} >= {
            KIND_CODE[kind] for kind in (Kind.ACTIVATION, Kind.GRADIENT, Kind.PARAMETER, Kind.UPDATE)
        }


@pytest.mark.parametrize("make", [net, Odd])
def test_evidence_is_the_same_where_c_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    told = []
    for folder in ("c", "python"):
        torch.manual_seed(1)
        network = make()
        with watching(tmp_path / folder) as capture:
            train(network, LOOKED)
            assert (capture.passes.quick.one is not None) == (folder == "c")
            train(network, STEPS)
        told.append(told_of(tmp_path / folder))
        by_python(monkeypatch)
    assert {"start", "entry_layer", "loss_input"} <= {row["type"] for row in told[0]}
    assert sorted(map(str, told[0])) == sorted(map(str, told[1]))


@pytest.mark.parametrize("looked", [True, False])
def test_the_first_pass_of_a_model_is_seen_by_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, looked: bool
) -> None:
    """Python is shown an output of each layer once, for its shape and line, also where no evidence is gathered."""
    by_python: list[str] = []
    seen = LayerWatch.seen

    def counted(self: LayerWatch, module: nn.Module, *rest: Any) -> None:
        by_python.append(type(module).__name__)
        seen(self, module, *rest)

    monkeypatch.setattr(LayerWatch, "seen", counted)
    model, x = net(), torch.randn(8, 4)
    with watching(tmp_path) as capture:
        capture.core.looking = looked
        model(x).sum().backward()
    assert by_python == ["Sequential"]  # the model itself, which began before C did
    with trace_of(tmp_path) as trace:
        layers = [site for site in trace.sites if site.kind is SiteKind.MODULE]
    assert len(layers) == len(list(model.children()))
    assert all(site.shape and site.input_shape and site.source and site.flops is not None for site in layers)


def test_a_class_that_is_made_for_one_trial_goes_with_it(tmp_path: Path) -> None:
    with watching(tmp_path):
        kind = type("OfOneTrial", (nn.Linear,), {})
        model = nn.Sequential(kind(4, 1))
        train(model, 2)
        gone = weakref.ref(kind)
        del kind, model
        gc.collect()
        assert gone() is None


class Direct(nn.Module):
    """Calls one of two equal parts by its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = Learner(), Learner()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.far.forward(self.near(x))
        return out


class Learner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_a_module_whose_class_is_watched_is_measured_once(tmp_path: Path) -> None:
    model = Direct()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    rows = [row for row in table(tmp_path, "stats", 5) if row["kind"] == KIND_CODE[Kind.ACTIVATION]]
    assert sorted(row["path"] for row in rows if row["path"] in ("near", "far")) == ["far", "near"]


@pytest.mark.parametrize("where", ["a layer", "a layer that C leaves to Python"])
def test_ctrl_c_while_evidence_is_gathered_reaches_the_user(tmp_path: Path, where: str) -> None:
    model = net() if where == "a layer" else Odd()
    with watching(tmp_path, strict=False) as capture:
        train(model, 2)

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        capture.core.moments.layer_run.append(interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(model, 1)
        capture.core.moments.layer_run.remove(interrupted)
        train(model, 2)
        assert capture.passes.quick.c is not None


def test_a_step_that_is_not_measured_asks_c_for_nothing(tmp_path: Path) -> None:
    with watching(tmp_path, budget=1e-9) as capture:
        train(net(), 3)
        assert capture.passes.quick.one is not None
        train(net(), STEPS)
        assert capture.passes.quick.one is None


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
