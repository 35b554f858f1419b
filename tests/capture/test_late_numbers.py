"""Numbers of a device arrive late. What is judged from them must be what is judged when they are there at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from watching import facts, net, watching

from neuraldbg.capture.torch.device import DeviceQueue

LAG = 40  # numbers that are on their way at any time


class LateQueue(DeviceQueue):
    """Keeps every number back for a while, in the order in which they were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: deque[tuple[float, Callable[[float], None]]] = deque()
        self.used = True

    def scalar(self, tensor: Tensor, deliver: Callable[[float], None]) -> bool:
        self.under_way.append((float(tensor.detach()), deliver))
        return True

    def poll(self) -> None:
        while len(self.under_way) > LAG:
            value, deliver = self.under_way.popleft()
            deliver(value)

    def finish_sync(self) -> None:
        while self.under_way:
            value, deliver = self.under_way.popleft()
            deliver(value)
        super().finish_sync()


def without_zero_grad(optimizer: torch.optim.Optimizer, backward: Callable[[], None]) -> None:
    backward()
    optimizer.step()


def cleared_too_late(optimizer: torch.optim.Optimizer, backward: Callable[[], None]) -> None:
    backward()
    optimizer.zero_grad()
    optimizer.step()


def never_stepped(optimizer: torch.optim.Optimizer, backward: Callable[[], None]) -> None:
    optimizer.zero_grad()
    backward()


def right(optimizer: torch.optim.Optimizer, backward: Callable[[], None]) -> None:
    optimizer.zero_grad()
    backward()
    optimizer.step()


def flow_of(folder: Path, turn: Callable[..., None], *, late: bool) -> dict[str, object]:
    folder.mkdir()
    with watching(folder) as capture:
        if late:
            capture.core.device = LateQueue()
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        torch.manual_seed(0)

        def backward() -> None:
            nn.functional.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 1)).backward()

        for _ in range(12):
            turn(optimizer, backward)
    last = facts(folder, "gradient_flow")[-1]
    return {name: last[name] for name in ("updates", "reached", "moved", "kinds", "first")}


@pytest.mark.parametrize("turn", [without_zero_grad, cleared_too_late, never_stepped, right])
def test_late_gradients_are_judged_like_those_read_at_once(tmp_path: Path, turn: Callable[..., None]) -> None:
    at_once = flow_of(tmp_path / "now", turn, late=False)
    assert flow_of(tmp_path / "late", turn, late=True) == at_once
    assert at_once["reached"] == 12


def test_a_gradient_that_is_none_reaches_no_user(tmp_path: Path) -> None:
    """cuDNN's RNN calls the hook of a state that nobody used with None."""

    class Split(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None) -> Tensor | None:
            return None if gradients[0] is None else gradients[0] * 2

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            used, unused = Split.apply(self.inner(x))
            return used, unused

    with watching(tmp_path):
        cell = Cell()
        used, unused = cell(torch.randn(3, 4))
        (used.sum() + unused.detach().sum()).backward()
    assert cell.inner.weight.grad is not None
