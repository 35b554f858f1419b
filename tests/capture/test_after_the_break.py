"""What the layers hold once the loss is no number is measured, whatever the budget says, and changes nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from watching import net, trace_of, watching

from neuraldbg.records import Kind

BREAKS_AT, STEPS = 40, 60


def breaking(model: nn.Module) -> list[float]:
    """Infinite data from one step on: the loss, the gradients and then the weights are no numbers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(1)
    losses = []
    for step in range(STEPS):
        batch = torch.randn(8, 4) if step != BREAKS_AT else torch.full((8, 4), math.inf)
        loss = nn.functional.mse_loss(model(batch), torch.zeros(8, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_step_after_the_first_nan_has_every_layer(tmp_path: Path) -> None:
    alone = breaking(net())
    with watching(tmp_path, budget=1e-9):  # which allows no step but the first ones
        watched = breaking(net())
    assert [value.hex() for value in watched] == [value.hex() for value in alone]
    with trace_of(tmp_path) as trace:
        rows = trace.table("stats", ["step"])["step"]
        layers = trace.at(BREAKS_AT + 1, Kind.ACTIVATION)
    assert sorted(set(rows.tolist())) == [*range(20), BREAKS_AT + 1]
    assert {"0", "1", "2"} <= set(layers.layers)
    assert (layers.nan_count > 0).all()


@pytest.mark.parametrize("budget", [None, 0.0])
def test_who_measures_all_or_nothing_sees_no_difference(tmp_path: Path, budget: float | None) -> None:
    with watching(tmp_path, budget=budget) as capture:
        breaking(net())
        assert capture.core.budget.sampled == (STEPS if budget is None else 0)
