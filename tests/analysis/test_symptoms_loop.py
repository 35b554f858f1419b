"""Symptoms of the loop: what they see, and what they do not take for one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from loop_judging import judged
from torch import Tensor, nn
from watching import net

from neuraldbg.analysis.detectors.memory_growth import _growth
from neuraldbg.analysis.evidence import Curve
from neuraldbg.records import Severity


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


def fit(model: nn.Module, scale: float = 1.0) -> None:
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(6):
        opt.zero_grad()
        (scale * model(torch.randn(8, 4)).pow(2).mean()).backward()
        opt.step()


def test_a_head_that_is_not_used_is_information(tmp_path: Path) -> None:
    found = {one.finding.kind: one.finding for one in judged(tmp_path, lambda: fit(TwoHeads())).diagnoses}
    for kind in ("missing_gradient", "parameters_not_updating"):
        assert found[kind].severity is Severity.INFO
        assert found[kind].layer == "spare"


def test_gradients_of_exactly_zero(tmp_path: Path) -> None:
    found = {one.finding.kind for one in judged(tmp_path, lambda: fit(net(), scale=0.0)).diagnoses}
    assert {"zero_gradient", "parameters_not_updating"} <= found


def test_an_error_is_a_crash_and_stopping_is_not(tmp_path: Path) -> None:
    def program() -> None:
        fit(net())
        raise RuntimeError("out of patience")

    found = {one.finding.kind: one.finding for one in judged(tmp_path, program).diagnoses}
    assert "out of patience" in found["crash"].summary
    assert found["crash"].step == 6


def test_memory_must_rise_far_and_all_the_way() -> None:
    steps = np.arange(60)
    megabyte = 2.0**20
    rising = Curve(steps, 500 * megabyte + steps * 2 * megabyte)
    flat = Curve(steps, np.full(60, 500 * megabyte))
    stair = Curve(steps, np.where(steps < 15, 500, 700) * megabyte)
    assert _growth(rising) is not None
    assert _growth(flat) is None
    assert _growth(stair) is None
