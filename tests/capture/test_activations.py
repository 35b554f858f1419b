"""Units of activations that put out nothing: found with C and without, wherever an operation keeps what it made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from watching import facts, watching

from neuraldbg.capture.kernels import host

DEAD = (1, 4)


class Relu(torch.autograd.Function):
    """Named like torch's, and keeps something else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * (x > 0)


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filters, self.hidden, self.last = nn.Conv2d(1, 6, 3), nn.Linear(6 * 16, 8), nn.Linear(8, 1)
        with torch.no_grad():
            self.filters.bias[list(DEAD)] = -100.0  # type: ignore[index]
            self.hidden.bias[list(DEAD)] = -100.0

    def forward(self, x: Tensor) -> Tensor:
        seen = self.filters(x).relu()
        hidden = self.hidden(seen.flatten(1)).relu()
        out: Tensor = self.last(torch.tanh(Relu.apply(hidden)))  # type: ignore[no-untyped-call]
        return out


def activations_of(folder: Path) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = Pictures()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(folder):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(16, 1, 6, 6)).square().mean().backward()
            optimizer.step()
    return [{key: row[key] for key in row if key not in ("seq", "wall_ns")} for row in facts(folder, "activation")]


def test_dead_units_are_told_the_same_with_and_without_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = activations_of(tmp_path / "c")
    monkeypatch.setattr(host, "silent", None)
    assert told == activations_of(tmp_path / "numpy")
    last = {row["units"]: row for row in told if row["op"] == "Relu"}
    assert {units: tuple(row["dead_units"]) for units, row in last.items()} == {6: DEAD, 8: DEAD}
    assert {row["looks"] for row in last.values()} == {3}
