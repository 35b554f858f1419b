"""Faults of long steps, of which evidence is gathered in few: also in a second training and in a network that seldom
steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from loop_judging import loud
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Loop = Callable[[nn.Module, torch.optim.Optimizer], None]


@pytest.fixture(autouse=True)
def long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraldbg.capture.torch.core.LONG_STEP_NS", 0)
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.MOST_SECONDS", 0.0)


def net(inside: int = 4, outside: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inside, 8), nn.Tanh(), nn.Linear(8, outside))


def loss_of(model: nn.Module) -> Tensor:
    return F.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 1))


def trained(step: Loop, steps: int) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        step(model, optimizer)


def healthy(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()


def never_cleared(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(model).backward()
    optimizer.step()


def cut(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    torch.tensor(loss_of(model).item(), requires_grad=True).backward()
    optimizer.step()


def cleared_between(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.zero_grad()
    F.l1_loss(model(torch.randn(8, 4)), torch.zeros(8, 1)).backward()
    optimizer.step()


FAULTS = [(never_cleared, "missing_zero_grad"), (cut, "detached_graph"), (cleared_between, "step_order_wrong")]


@pytest.mark.parametrize("short_ns", [0, 10**18])
@pytest.mark.parametrize(("faulty", "cause"), FAULTS)
def test_a_training_is_judged_by_few_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faulty: Loop, cause: str, short_ns: int
) -> None:
    """Also where the third of them is not a close one."""
    monkeypatch.setattr("neuraldbg.capture.torch.core.SHORT_STEP_NS", short_ns)
    assert cause in loud(tmp_path, lambda: trained(faulty, 30))


@pytest.mark.parametrize(("faulty", "cause"), FAULTS)
def test_a_second_training_is_judged_by_its_own_beginning(tmp_path: Path, faulty: Loop, cause: str) -> None:
    def program() -> None:
        trained(healthy, 40)
        trained(faulty, 60)
        trained(healthy, 5)

    assert cause in loud(tmp_path, program)


@pytest.mark.parametrize(("fault", "cause"), [("stale", "missing_zero_grad"), ("emptied", "step_order_wrong")])
def test_a_generator_that_steps_once_in_six_updates_is_judged(tmp_path: Path, fault: str, cause: str) -> None:
    def program() -> None:
        maker, critic = net(3, 4), net()
        makers = torch.optim.SGD(maker.parameters(), lr=0.01)
        critics = torch.optim.SGD(critic.parameters(), lr=0.01)
        for _ in range(20):
            for _ in range(5):
                critics.zero_grad()
                (critic(maker(torch.randn(8, 3)).detach()).mean() - critic(torch.randn(8, 4)).mean()).backward()
                critics.step()
            if fault != "stale":
                makers.zero_grad()
            (-critic(maker(torch.randn(8, 3))).mean()).backward()
            if fault == "emptied":
                makers.zero_grad()
            makers.step()

    assert cause in loud(tmp_path, program)
