"""Who takes part in the moments of a run: told of every step or rarely, and left out, with one note, when it fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neuraldbg.capture.guard import Guard
from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.errors import StoppedOnNaN


def trained(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()


def test_one_that_fails_is_left_out_and_the_others_go_on() -> None:
    said: list[str] = []
    told: list[int] = []

    def fails(_: int) -> None:
        raise ValueError("of ours")

    notices = [fails, told.append]
    tell = Guard(report=said.append).teller(lambda notice: notices.remove(notice) or "a place")  # type: ignore[arg-type,func-returns-value]
    tell([*notices], 1)
    tell([*notices], 2)
    assert told == [1, 2]
    assert said == ["stopped watching a place: ValueError: of ours; training continues"]


def test_what_the_user_asked_for_goes_through() -> None:
    def stops() -> None:
        raise StoppedOnNaN("the loss is not finite", 3, None)

    with pytest.raises(StoppedOnNaN):
        Guard().teller(str)([stops])


def test_a_failing_watcher_costs_the_run_only_itself() -> None:
    capture = TorchCapture(lambda: None, Options(strict=False))
    seen: list[Any] = []

    def fails(*_: Any) -> None:
        raise ValueError("of ours")

    capture.core.take_part("update_done", "one that fails", fails)
    capture.core.take_part("update_done", "one that works", lambda *given: seen.append(given))
    try:
        trained(nn.Linear(3, 1), 3)
    finally:
        capture.close()
    assert len(seen) == 3
    assert len(capture.core.guard.broken) == 1
