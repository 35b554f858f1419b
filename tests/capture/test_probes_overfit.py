"""The overfit experiment follows the run's own optimizer, and shows what one change would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import facts, net, watching

from neuraldbg.capture.torch.probes import runner


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """What experiments find must not depend on how busy the machine is."""
    monkeypatch.setattr(runner, "LEAST_SECONDS", 20.0)
    monkeypatch.setattr(runner, "MOST_SECONDS", 60.0)


def trained(
    folder: Path,
    make: Any,
    *,
    model: nn.Module | None = None,
    steps: int = 30,
    clip: float | None = None,
    **options: Any,
) -> dict[str, Any]:
    model = net() if model is None else model
    torch.manual_seed(0)
    w = torch.randn(4, 1)
    with watching(folder, **options):
        optimizer = make(model.parameters())
        for _ in range(steps):
            x = torch.randn(16, 4)
            optimizer.zero_grad()
            functional.mse_loss(model(x), x @ w).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return next(fact for fact in facts(folder, "probe") if fact["name"] == "overfit")


def test_a_rate_that_blows_up_is_learned_at_a_hundredth(tmp_path: Path) -> None:
    found = trained(tmp_path, lambda p: torch.optim.SGD(p, lr=5.0))
    arms = found["arms"]
    assert arms["own"]["diverged"] or arms["own"]["last"] > found["run_first_loss"]
    assert min(arms[name]["last"] or 1e9 for name in ("lr_x0.1", "lr_x0.01")) < 0.7 * found["run_first_loss"]


def test_a_rate_that_does_nothing_is_learned_at_ten_thousand_times(tmp_path: Path) -> None:
    found = trained(tmp_path, lambda p: torch.optim.Adam(p, lr=1e-7), steps=100)
    assert found["arms"]["own"]["last"] > 0.99 * found["run_first_loss"]
    assert found["arms"]["lr_x10000"]["last"] < 0.8 * found["run_first_loss"]
    assert found["updates"] <= 100


def test_the_clipping_of_the_run_is_part_of_its_own_settings(tmp_path: Path) -> None:
    found = trained(tmp_path, lambda p: torch.optim.SGD(p, lr=0.05), clip=1e-5)
    assert found["clip"] == ["clip_grad_norm_", 1e-5]
    assert found["arms"]["own"]["last"] > 0.99 * found["run_first_loss"]
    assert found["arms"]["unclipped"]["last"] < 0.7 * found["run_first_loss"]


def test_a_run_that_learned_needs_no_other_arm(tmp_path: Path) -> None:
    found = trained(tmp_path, lambda p: torch.optim.Adam(p, lr=0.05), steps=120)
    assert found["final_loss"] < 0.1 * found["run_first_loss"]
    assert list(found["arms"]) == ["own"]


def test_a_run_that_is_on_its_way_is_taken_further(tmp_path: Path) -> None:
    found = trained(tmp_path, lambda p: torch.optim.Adam(p, lr=0.005), steps=60)
    more = found["continued"]
    assert more["updates"] == 60
    assert more["held_last"] < more["held_first"] < found["run_first_loss"]


def test_faster_rates_are_not_tried_where_the_weights_move(tmp_path: Path) -> None:
    found = trained(tmp_path, lambda p: torch.optim.Adam(p, lr=0.005), steps=30)
    assert not {"lr_x100", "lr_x10000"} & set(found["arms"])


def test_an_optimizer_of_the_users_own_is_not_imitated(tmp_path: Path) -> None:
    class Mine(torch.optim.SGD):
        pass

    assert "Mine" in trained(tmp_path, lambda p: Mine(p, lr=0.05))["skipped"]


def test_several_losses_in_turn_are_no_single_training(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(12):
            for sign in (1.0, -1.0):
                optimizer.zero_grad()
                loss = functional.mse_loss(model(torch.randn(8, 4)), torch.full((8, 1), sign))
                if sign > 0:
                    loss.backward()
                else:
                    (2 * loss).backward()
                optimizer.step()
    found = next(fact for fact in facts(tmp_path, "probe") if fact["name"] == "overfit")
    assert "several losses" in found["skipped"]


def test_windows_of_accumulation_tell_factors_and_counts(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            for rows in (4, 16):
                target = torch.zeros(rows, dtype=torch.long)
                (functional.cross_entropy(model(torch.randn(rows, 4)), target) / 2).backward()
            optimizer.step()
    window = facts(tmp_path, "accumulation_window")[0]
    assert (window["backwards"], window["factors"], window["valids"]) == (2, [0.5, 0.5], [4, 16])
    assert window["reductions"] == ["mean", "mean"]


def test_schedulers_are_written_down_with_their_settings(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.3)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()
            scheduler.step()
    (found,) = facts(tmp_path, "scheduler")
    assert (found["class"], found["settings"]["step_size"]) == ("StepLR", 5)
    assert found["source"].rpartition("/")[2].startswith("test_probes_overfit.py:")


def test_dropout_that_leaves_next_to_nothing_is_tried_without(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.97), nn.Linear(32, 1))
    found = trained(tmp_path, lambda p: torch.optim.Adam(p, lr=0.01), model=model, steps=60)
    assert found["arms"]["no_dropout"]["last"] < 0.5 * min(found["arms"]["own"]["last"], found["final_loss"])
