"""Gradients that are cleared between the backwards of one update are lost; what a script has a use for is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from watching import trace_of, watching

from neuraldbg.analysis.diagnose import diagnose
from neuraldbg.capture.torch.probes import runner

Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor], None]


@pytest.fixture(autouse=True)
def _without_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "NAMES", ())


def losses(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    out = net(x)
    return (out[:, 0] - x[:, 0]).square().mean(), (out[:, 1] - x[:, 1]).square().mean()


def cleared(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    one, other = losses(net, x)
    optimizer.zero_grad()
    one.backward(retain_graph=True)
    optimizer.zero_grad()
    other.backward()
    optimizer.step()


def micro_batches(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    for part in x.split(4):
        optimizer.zero_grad()
        sum(losses(net, part)).backward()  # type: ignore[union-attr]
    optimizer.step()


def added(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    one, other = losses(net, x)
    optimizer.zero_grad()
    one.backward(retain_graph=True)
    other.backward()
    optimizer.step()


def adversarial(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    x = x.clone().requires_grad_()
    losses(net, x)[0].backward()
    assert x.grad is not None
    optimizer.zero_grad()
    losses(net, (x + 0.1 * x.grad.sign()).detach())[0].backward()
    optimizer.step()


def sharpness_aware(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    losses(net, x)[0].backward()
    moves = [0.01 * p.grad for p in net.parameters() if p.grad is not None]
    with torch.no_grad():
        for p, move in zip(net.parameters(), moves, strict=True):
            p.add_(move)
    optimizer.zero_grad()
    losses(net, x)[0].backward()
    with torch.no_grad():
        for p, move in zip(net.parameters(), moves, strict=True):
            p.sub_(move)
    optimizer.step()
    optimizer.zero_grad()


def put_together(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    """As PCGrad does: each loss by itself, then the sum by hand."""
    one, other = losses(net, x)
    optimizer.zero_grad()
    one.backward(retain_graph=True)
    first = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    optimizer.zero_grad()
    other.backward()
    for p, grad in zip(net.parameters(), first, strict=True):
        assert p.grad is not None
        p.grad += grad
    optimizer.step()


def looked_at(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    """The size of one loss's gradient, for the log; then both."""
    one, other = losses(net, x)
    optimizer.zero_grad()
    one.backward(retain_graph=True)
    optimizer.zero_grad()
    (one + other).backward()
    optimizer.step()


def orders_wrong(folder: Path, step: Step) -> list[str]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with watching(folder):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for _ in range(10):
            step(net, optimizer, torch.randn(16, 4))
    with trace_of(folder) as trace:
        found = [one.finding for one in diagnose(trace).loud]
    return [one.summary for one in found if one.kind == "step_order_wrong"]


@pytest.mark.parametrize("step", [cleared, micro_batches])
def test_gradients_cleared_between_two_backwards_are_lost(step: Step, tmp_path: Path) -> None:
    (said,) = orders_wrong(tmp_path, step)
    assert "cleared between the backwards of one update" in said


@pytest.mark.parametrize("step", [added, adversarial, sharpness_aware, put_together, looked_at])
def test_gradients_that_are_used_are_not_lost(step: Step, tmp_path: Path) -> None:
    assert orders_wrong(tmp_path, step) == []


def test_a_closure_may_clear_them_as_often_as_it_is_called(tmp_path: Path) -> None:
    def step(net: nn.Module, _: torch.optim.Optimizer, x: Tensor) -> None:
        optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = losses(net, x)[0]
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)  # type: ignore[no-untyped-call]

    assert orders_wrong(tmp_path, step) == []
