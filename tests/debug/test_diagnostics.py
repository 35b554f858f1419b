"""Model diagnostics: what a model is, how its training goes, how healthy that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import nn

from neuraldbg.analysis.dynamics import dynamics_of
from neuraldbg.debug import (
    ConvergenceStatus,
    DebugSession,
    ModelArchitectureInfo,
    ModelPerformanceMetrics,
    TrainingStability,
)
from neuraldbg.errors import UsageError
from neuraldbg.trace import open_trace

DRAW = np.random.default_rng(0)
NOISE = DRAW.standard_normal(200)
STEPS = np.arange(200)


@pytest.mark.parametrize(
    ("losses", "status"),
    [
        (2.0 * np.exp(-STEPS / 150) + 0.01 * NOISE, ConvergenceStatus.Converging),
        (2.0 * np.exp(-STEPS / 10) + 0.1 + 0.001 * NOISE, ConvergenceStatus.Converged),
        (2.3 + 0.01 * NOISE, ConvergenceStatus.Plateau),
        (1.0 + STEPS / 40 + 0.01 * NOISE, ConvergenceStatus.Diverging),
        (np.where(STEPS > 150, np.nan, 1.0), ConvergenceStatus.Diverging),
        (1.0 + 0.9 * np.sin(STEPS), ConvergenceStatus.Oscillating),
        (np.ones(5), ConvergenceStatus.Unknown),
    ],
)
def test_how_a_loss_goes(losses: Sequence[float], status: ConvergenceStatus) -> None:
    assert dynamics_of(range(len(losses)), losses).convergence_status is status


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_scale_of_a_loss_does_not_matter(scale: float) -> None:
    losses = scale * (2.0 * np.exp(-STEPS / 150) + 0.01 * NOISE)
    found = dynamics_of(STEPS.tolist(), losses)
    assert found.convergence_status is ConvergenceStatus.Converging
    assert found.training_stability is TrainingStability.Stable
    assert found.learning_efficiency == pytest.approx(0.35, abs=0.05)


@pytest.mark.parametrize(
    ("losses", "stability"),
    [
        (1.0 + 0.01 * NOISE, TrainingStability.Stable),
        (np.where(STEPS == 90, 50.0, 1.0), TrainingStability.Unstable),
        (np.where(STEPS == 90, math.inf, 1.0), TrainingStability.Unstable),
        (np.abs(1.0 + 1.5 * NOISE), TrainingStability.HighVariance),
        (np.ones(4), TrainingStability.Unknown),
    ],
)
def test_how_steady_a_loss_is(losses: Sequence[float], stability: TrainingStability) -> None:
    assert dynamics_of(range(len(losses)), losses).training_stability is stability


def test_a_plateau_is_told_with_its_beginning_and_level() -> None:
    losses = np.concatenate([np.linspace(3, 2, 40), np.full(160, 2.0)]) + 0.001 * NOISE
    plateau = dynamics_of((STEPS * 10).tolist(), losses).plateau_detection
    assert plateau is not None
    assert (plateau.since_step, plateau.level) == (1000, pytest.approx(2.0, abs=0.01))


def test_overfitting_is_read_off_the_loss_on_other_data() -> None:
    train = 2.0 * np.exp(-STEPS / 50)
    held = [(step, 1.0 + abs(step - 60) / 100) for step in range(0, 200, 20)]
    found = dynamics_of(STEPS.tolist(), train, held).overfitting_indicators
    assert "rose from 1 (step 60)" in found[0]
    assert (
        dynamics_of(STEPS.tolist(), train, [(step, 2.0 * math.exp(-step / 55)) for step in range(0, 200, 20)])[
            "overfitting_indicators"
        ]
        == ()
    )


def test_underfitting_is_a_loss_that_stays_where_it_began() -> None:
    assert dynamics_of(STEPS.tolist(), 2.3 + 0.01 * NOISE).underfitting_indicators
    assert dynamics_of(STEPS.tolist(), 2.0 * np.exp(-STEPS / 40)).underfitting_indicators == ()


def test_the_records_of_the_original_example(session: DebugSession) -> None:
    architecture = ModelArchitectureInfo(
        total_parameters=125_000_000, trainable_parameters=125_000_000, model_size_mb=500.0, layer_count=24
    )
    session.model_diagnostics_mut().record_architecture(architecture)
    metrics = ModelPerformanceMetrics(training_step=100, loss=0.5, accuracy=0.85, learning_rate=1e-4)
    session.model_diagnostics_mut().record_performance(metrics)
    report = session.model_diagnostics().analyze()
    assert report.architecture is architecture
    assert (report.health_score, report.records, report.recommendations) == (1.0, 1, ())
    directory = session.stop().run_dir
    assert directory is not None
    with open_trace(directory) as trace:
        assert trace.history("loss", kind="scalar").steps.tolist() == [100]
        assert trace.facts("architecture")[0]["total_parameters"] == 125_000_000


def test_an_architecture_is_read_from_a_model(session: DebugSession) -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), shared, nn.ReLU(), shared, nn.Linear(8, 2))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    found = session.model_diagnostics.record_architecture(model)
    assert found is not None
    assert (found.total_parameters, found.trainable_parameters) == (40 + 72 + 18, 72 + 18)
    assert found.model_size_mb == pytest.approx(130 * 4 / 2**20)
    assert found.layer_types == {"Linear": 3, "ReLU": 2}
    assert (found.width, found.activation_functions) == (8, {"ReLU": 2})
    with pytest.raises(UsageError, match="ModelArchitectureInfo"):
        session.model_diagnostics.record_architecture(3)


def test_a_loss_of_torch_and_numpy_is_a_number_and_nan_ends_the_health(session: DebugSession) -> None:
    record = session.model_diagnostics.record_performance
    record(ModelPerformanceMetrics(training_step=0, loss=torch.tensor(2.0, requires_grad=True)))  # type: ignore[arg-type]
    assert session.model_diagnostics.latest_loss == 2.0
    record(ModelPerformanceMetrics(training_step=1, loss=np.float32("nan")))
    report = session.model_diagnostics.analyze()
    assert report.health_score == 0.0
    assert report.anomalies == ("the loss is nan at step 1",)
    assert "alert-on-nan" in report.recommendations[0]


def test_a_drop_of_throughput_and_memory_that_only_grows_are_anomalies(session: DebugSession) -> None:
    for step in range(12):
        metrics = ModelPerformanceMetrics(
            training_step=step,
            loss=1.0,
            throughput_samples_per_sec=100.0 if step < 9 else 20.0,
            memory_usage_mb=1000.0 + 100 * step,
        )
        session.model_diagnostics.record_performance(metrics)
    assert session.model_diagnostics.analyze().anomalies == (
        "throughput fell from 100 to 20 samples a second",
        "memory grew at every record, from 1000 to 2100 MB",
    )


def test_history_is_bounded(make_session: Callable[..., DebugSession]) -> None:
    session = make_session(max_performance_history=5)
    for step in range(9):
        session.model_diagnostics.record_performance(ModelPerformanceMetrics(training_step=step, loss=1.0))
    assert [one.training_step for one in session.model_diagnostics.history] == [4, 5, 6, 7, 8]
