"""A run that was stopped too early: the curve is a hint, a continuation decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import MadeRun
from test_causes_optim import arm, overfit, told

from neuraldbg.records import Call, Severity


def falling(run: MadeRun, held_last: float, updates: int = 160) -> None:
    for step in range(updates):
        run.scalar("loss", step, 1.0 - step / (4 * updates))
        run.call(Call.STEP, step, value=0.1)
    more = {"updates": updates, "held_first": 0.75, "held_last": held_last, "shown_first": 0.75, "shown_last": 0.4}
    overfit(run, 0.75, {"own": arm(0.75)}, run_updates=updates, continued=more)


def test_a_run_that_gains_as_much_again_was_stopped_too_early(tmp_path: Path) -> None:
    found = told(tmp_path, lambda run: falling(run, 0.55), "insufficient_training")["insufficient_training"]
    assert (found.severity, found.evidence["share_gained_further"]) == (Severity.WARNING, pytest.approx(0.8))


def test_a_loss_that_still_falls_a_little_is_information(tmp_path: Path) -> None:
    found = told(tmp_path, lambda run: falling(run, 0.70), "insufficient_training")["insufficient_training"]
    assert found.severity is Severity.INFO


def test_a_run_to_see_whether_the_script_works_is_information(tmp_path: Path) -> None:
    found = told(tmp_path, lambda run: falling(run, 0.55, updates=60), "insufficient_training")["insufficient_training"]
    assert found.severity is Severity.INFO
