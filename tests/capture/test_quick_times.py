"""Times of layers that C sees: those of the layers, and none of ours."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from quick_layers import LOOKED, QUICK, STEPS, Odd, by_python, nothing_was_compiled, seen_by_c, table  # noqa: F401
from torch import Tensor, nn
from watching import trace_of, train, watching

from neuraldbg.records import Phase
from neuraldbg.trace.tables import PHASE_CODE

pytestmark = [seen_by_c, pytest.mark.usefixtures("nothing_was_compiled")]


SLOW_NS = 20_000_000


def slow_evidence(capture: Any) -> None:
    capture.core.moments.layer_run.append(lambda *_: time.sleep(SLOW_NS / 1e9))


def entered_below(model: nn.Module, x: Tensor) -> Tensor:
    """The model is called by a part of it."""
    out: Tensor = model.inner(x)
    return out.mean()


def differentiated_inside(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x.requires_grad_())
    return out.mean()


class Nested(nn.Module):
    def __init__(self, *, inside: bool = False) -> None:
        super().__init__()
        self.inner = Inner(inside=inside)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


class Inner(nn.Module):
    """Two layers, and maybe the gradient of what they put out: force fields and penalties do that."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.first, self.second, self.inside = nn.Linear(4, 8), nn.Linear(8, 1), inside

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        if self.inside:
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            out = out + slope.sum()
        return out


@pytest.mark.parametrize(
    ("inside", "loss"), [(False, entered_below), (False, differentiated_inside), (True, differentiated_inside)]
)
def test_no_layer_is_charged_for_the_time_that_evidence_takes(tmp_path: Path, inside: bool, loss: Any) -> None:
    model = Nested(inside=inside)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path) as capture:
        slow_evidence(capture)
        model(torch.ones(2, 4, requires_grad=True))
        for _ in range(4):
            optimizer.zero_grad()
            loss(model, torch.randn(8, 4)).backward()
            optimizer.step()
        assert capture.passes.quick.one is not None
    rows = [row for step in range(4) for row in table(tmp_path, "spans", step) if row["path"] != "loss"]
    assert {row["path"] for row in rows} >= {"inner", "inner.first", "inner.second"}
    assert all(0 <= row["duration_ns"] < SLOW_NS for row in rows)


def test_the_time_of_evidence_is_ours_when_a_gradient_comes_after_another_update(tmp_path: Path) -> None:
    """A GAN: the generator's pass is measured, and its backward comes when the judge has been updated."""
    generator, judge = nn.Sequential(nn.Linear(3, 4)), nn.Sequential(nn.Linear(4, 1))
    first, second = (torch.optim.SGD(each.parameters(), lr=1e-4) for each in (judge, generator))
    with watching(tmp_path, budget=1e-9) as capture:
        judge(torch.randn(8, 4)).mean().backward()
        first.step()  # from here on the last of the first twenty is one of the judge's
        for _ in range(30):
            fake = generator(torch.randn(8, 3))
            first.zero_grad()
            judge(fake.detach()).mean().backward()
            first.step()
            second.zero_grad()
            judge(fake).mean().backward()
            second.step()
        assert capture.passes.quick.one is None
        assert capture.passes.quick.c.take_own_ns() == 0


def test_an_optimizer_that_steps_inside_of_a_backward_leaves_no_layer_waiting(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))  # three updates in each backward
    optimizers = {p: torch.optim.SGD([p], lr=1e-3) for p in model.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda _, one=optimizer: one.step())
    with watching(tmp_path, budget=1e-9) as capture:
        for _ in range(30):
            model(torch.randn(8, 4)).mean().backward()
        time.sleep(3)  # seconds that a layer left waiting would be charged with
        capture.core.budget.newcomer()  # some steps in full
        for _ in range(5):
            model(torch.randn(8, 4)).mean().backward()
    with trace_of(tmp_path) as trace:
        assert trace.table("spans", ["duration_ns"])["duration_ns"].max() < 3_000_000_000


def test_two_passes_of_one_backward_are_timed_by_one_clock(tmp_path: Path) -> None:
    """Layers that C cannot read and layers that it can, in a pass that is not the last."""
    first, second = Odd(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-3)
    with watching(tmp_path) as capture:
        for _ in range(4):
            optimizer.zero_grad()
            second(first(torch.randn(8, 4))).square().mean().backward()
            optimizer.step()
            assert capture.passes.layers.last_backward[0] is None
    for step in range(4):
        backwards = sorted(
            (row["start_ns"], row["start_ns"] + row["duration_ns"])
            for row in table(tmp_path, "spans", step)
            if row["phase"] == PHASE_CODE[Phase.BACKWARD] and row["path"] != "loss"
        )
        assert len(backwards) == 4
        assert all(end <= begin for (_, end), (begin, _) in pairwise(backwards))


def test_c_times_the_layers_that_python_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = {}
    for folder in ("c", "python"):
        with watching(tmp_path / folder):
            train(Odd(), STEPS)
        own = [row for step in (LOOKED, QUICK) for row in table(tmp_path / folder, "spans", step)]
        spans[folder] = sorted((row["path"], row["phase"], row["depth"], row["host_bytes"]) for row in own)
        assert all(row["duration_ns"] > 0 for row in own)
        by_python(monkeypatch)
    assert spans["c"] == spans["python"]
