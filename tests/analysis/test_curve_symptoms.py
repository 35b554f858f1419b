"""Shapes of curves are noticed, never warned about, and not seen where they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_runs import made_run
from numpy.typing import NDArray

from neuraldbg.analysis.catalogue import catalogue
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Severity
from neuraldbg.trace import open_trace

CURVES = ("diverging_loss", "loss_spike", "oscillating_loss", "no_learning", "loss_plateau", "slow_convergence",
          "exploding_gradient", "overfitting", "underfitting")  # fmt: skip
T = np.arange(300)
NOISE = np.random.default_rng(0).normal(size=300)


def seen(folder: Path, loss: NDArray[np.float64], norms: NDArray[np.float64] | None = None) -> set[str]:
    with made_run(folder / "run") as run:
        for step, value in enumerate(loss.tolist()):
            run.scalar("loss", step, value)
            run.scalar("grad_norm", step, 1.0 if norms is None else float(norms[step]))
        run.end(steps=len(loss))
    with open_trace(run.directory) as trace:
        evidence = Evidence(trace)
        found = [finding for id in CURVES for finding in catalogue()[id].find(evidence)]
    assert all(finding.severity is Severity.INFO for finding in found)
    return {finding.kind for finding in found}


def test_a_run_that_learns_shows_no_symptom(tmp_path: Path) -> None:
    assert seen(tmp_path, 2.3 * np.exp(-T / 40) + 0.05 + 0.02 * np.abs(NOISE)) == set()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_flat_noisy_loss_is_no_learning_at_any_scale(tmp_path: Path, scale: float) -> None:
    assert "no_learning" in seen(tmp_path, scale * (1.0 + 0.1 * NOISE))


def test_a_rising_loss_diverges(tmp_path: Path) -> None:
    assert "diverging_loss" in seen(tmp_path, np.exp(T / 60.0))


def test_one_high_value_is_a_spike(tmp_path: Path) -> None:
    loss = 1.0 - T / 400 + 0.01 * NOISE
    loss[200] = 20.0
    assert seen(tmp_path, loss) == {"loss_spike"}


def test_a_loss_that_swings_around_its_start_oscillates(tmp_path: Path) -> None:
    assert "oscillating_loss" in seen(tmp_path, 1.0 + 0.9 * np.sin(T))


def test_a_loss_that_stops_half_way_is_a_plateau(tmp_path: Path) -> None:
    assert seen(tmp_path, 1.0 + np.exp(-T / 15.0) + 0.01 * NOISE) == {"loss_plateau"}


def test_a_loss_that_creeps_is_slow(tmp_path: Path) -> None:
    assert "slow_convergence" in seen(tmp_path, 1.0 - T / 2000)


def test_a_gradient_a_hundred_times_its_first_ones_explodes(tmp_path: Path) -> None:
    assert seen(tmp_path, 2.3 * np.exp(-T / 40) + 0.05, np.where(T > 150, 500.0, 1.0)) == {"exploding_gradient"}
