"""Who takes part in the moments of a run: told of every step or rarely, and left out, with one note, when it fails."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from neuraldbg.capture.guard import Guard
from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.capture.torch.core import RARELY
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


def told_steps(capture: TorchCapture, moment: str, steps: int, loss_of: Any, **how: Any) -> list[int]:
    """The steps of a training in which a watcher was told of a moment."""
    told: list[int] = []
    capture.core.take_part(moment, "a watcher", lambda *_: told.append(capture.core.recorder.step), **how)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    try:
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(step, model).backward()
            optimizer.step()
    finally:
        capture.close()
    return told


def usual(_: int, model: nn.Module) -> torch.Tensor:
    return model(torch.ones(4, 3)).square().mean() + 1.0


def odd_at(at: int, factor: float) -> Any:
    return lambda step, model: usual(step, model) * (factor if step == at else 1.0)


@pytest.mark.parametrize(("factor", "heard"), [(1.0, False), (2.0, False), (10.0, True), (0.0, True), (math.nan, True)])
def test_an_odd_loss_is_told_to_those_who_look_rarely(factor: float, heard: bool) -> None:
    capture = TorchCapture(lambda: None, Options(budget=1e-9, strict=True))
    told = told_steps(capture, "backward_begun", 60, odd_at(57, factor), rarely=True)
    assert (57 in told) is heard
    assert RARELY * 3 in told
    assert RARELY * 3 - 1 not in told


def test_whoever_rests_is_told_rarely_from_then_on() -> None:
    capture = TorchCapture(lambda: None, Options(budget=1e-9, strict=True))
    told: list[int] = []

    def notice(*_: Any) -> None:
        told.append(capture.core.recorder.step)
        if capture.core.recorder.step == 40:
            capture.core.rest("update_done", notice)

    capture.core.take_part("update_done", "a watcher", notice)
    told_steps(capture, "ending", 70, usual)
    assert told == [*range(41), RARELY * 3, RARELY * 4]


def test_whoever_is_told_again_is_told_of_every_step() -> None:
    capture = TorchCapture(lambda: None, Options(budget=1e-9, strict=True))
    told: list[int] = []

    def notice(*_: Any) -> None:
        told.append(capture.core.recorder.step)

    def switch(step: int, model: nn.Module) -> torch.Tensor:
        if step == 45:
            capture.core.stop_telling("update_done", notice)
        if step == 52:
            capture.core.tell_again("update_done", notice)
        return usual(step, model)

    capture.core.take_part("update_done", "a watcher", notice)
    told_steps(capture, "ending", 56, switch)
    assert told == [*range(45), *range(52, 56)]


class Failing:
    def notice(self, *_: Any) -> None:
        raise ValueError("of ours")


def test_one_that_is_told_again_and_fails_is_left_out_by_its_name() -> None:
    capture = TorchCapture(lambda: None, Options(strict=False))
    one = Failing()
    capture.core.take_part("update_done", "one that fails", one.notice)
    capture.core.stop_telling("update_done", one.notice)
    capture.core.tell_again("update_done", one.notice)  # another object, equal to the first
    try:
        trained(nn.Linear(3, 1), 3)
    finally:
        capture.close()
    assert list(capture.core.guard.broken) == [("one that fails", None)]
