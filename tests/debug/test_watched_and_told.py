"""A watched model and what somebody records beside it: one history, one curve for each layer, nothing counted twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from neuraldbg.debug import (
    Comparison,
    DebugSession,
    GradientFlow,
    HookAction,
    HookBuilder,
    HookCondition,
    HookContext,
    HookTrigger,
    ModelPerformanceMetrics,
    TrainingStability,
)
from neuraldbg.errors import UsageError
from neuraldbg.trace import open_trace

Make = Callable[..., DebugSession]


def model_of() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def train(model: nn.Module, steps: int, each: Callable[[float], None] = lambda _: None) -> list[float]:
    torch.manual_seed(2)
    inputs = torch.randn(64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        each(losses[-1])
    return losses


def test_a_layer_that_hooks_track_is_judged_by_that_alone(make_session: Make) -> None:
    model = model_of()
    session = make_session(budget="full").attach(model)
    train(model, 12)
    debugger = session.gradient_debugger
    assert [one.step for one in debugger.get_flow("0")] == list(range(12))
    tracking = HookBuilder("track").trigger(HookTrigger.EveryBackward).action(HookAction.TrackGradients)
    session.hooks.register_hook(tracking.layer_patterns(["^0$"]).build())
    train(model, 15)
    analysis = debugger.analyze_gradient_flow()
    assert [one.step for one in debugger.get_flow("0")] == list(range(12, 27))
    assert [one.step for one in debugger.get_flow("2")] == list(range(27))
    assert analysis.layers["0"].dead_neurons_ratio == 0.0  # of the values that hooks have
    assert analysis.layers["2"].dead_neurons_ratio is None


def test_a_gradient_of_an_output_is_not_held_against_those_of_weights(session: DebugSession) -> None:
    debugger = session.gradient_debugger
    for step in range(12):
        debugger.add(GradientFlow("weights", step, 1.0, elements=10))
        debugger.record_gradient_flow("output", np.full(100, 1e-6))
    assert debugger.analyze_gradient_flow().vanishing_layers == ()
    for _ in range(12):
        debugger.record_gradient_flow("another output", np.full(100, 1.0))
    assert debugger.analyze_gradient_flow().vanishing_layers == ("output",)


def test_records_beside_a_watched_model_belong_to_its_steps(make_session: Make) -> None:
    model = model_of()
    session = make_session(budget="full").attach(model)
    diagnostics = session.model_diagnostics
    numbers = iter(range(1000))

    def record(loss: float) -> None:
        metrics = ModelPerformanceMetrics(training_step=next(numbers) % 10, loss=loss, accuracy=0.5, batch_size=64)
        diagnostics.record_performance(metrics)

    losses = train(model, 40, record)
    history = diagnostics.history
    assert [one.training_step for one in history] == list(range(41))  # the last was told after the last update
    assert [one.loss for one in history[:40]] == pytest.approx(losses)
    assert [one.accuracy for one in history] == [None, *[0.5] * 40]
    assert history[5].learning_rate == 0.02
    assert diagnostics.analyze_training_dynamics().training_stability is TrainingStability.Stable
    directory = session.stop().run_dir
    assert directory is not None
    with open_trace(directory) as trace:
        assert trace.history("loss", kind="scalar")["value"].tolist() == pytest.approx(losses)
        assert len(trace.history("loss.user", kind="scalar")) == 40


def test_a_loss_that_only_the_user_knows_is_the_one_that_conditions_see(make_session: Make) -> None:
    model = model_of()
    session = make_session().attach(model)
    seen: list[HookContext] = []
    builder = HookBuilder("low").trigger(HookTrigger.EveryForward).action(HookAction.CustomCallback(seen.append))
    condition = HookCondition.LossThreshold(1.0, Comparison.Less)
    session.hooks.register_hook(builder.condition(condition).layer_patterns(["^0$"]).build())
    with torch.no_grad():
        model(torch.ones(1, 4))
        session.model_diagnostics.record_performance(ModelPerformanceMetrics(training_step=0, loss=0.5))
        model(torch.ones(1, 4))
    assert [one.loss for one in seen] == [0.5]


def test_lazy_layers_are_counted_when_they_have_run(make_session: Make) -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, 1))
    with pytest.raises(UsageError, match="run it once"):
        make_session().model_diagnostics.record_architecture(model)
    session = make_session().attach(model)
    model(torch.ones(2, 4))
    train(model, 3)
    diagnostics = session.stop().diagnostics
    assert diagnostics is not None
    assert diagnostics.architecture is not None
    assert diagnostics.architecture.total_parameters == 4 * 8 + 8 + 8 + 1


def test_a_run_that_somebody_deletes_costs_the_report_what_was_in_it(
    make_session: Make, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of()
    session = make_session().attach(model)
    train(model, 5)
    assert session.run_dir is not None
    shutil.rmtree(session.run_dir)
    with pytest.raises(ZeroDivisionError, match="of the loop"), session:
        raise ZeroDivisionError("of the loop")
    assert session.stop().verdict is None
    assert caplog.text.count("cannot be read") == 1
