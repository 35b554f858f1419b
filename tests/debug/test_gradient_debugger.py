"""The gradient debugger: flow, trends, dead units from the values, health."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from neuraldbg.debug import DebugSession, GradientDebugConfig, GradientTrend, LayerHealth
from neuraldbg.errors import UnknownLayer
from neuraldbg.trace import open_trace

Make = Callable[..., DebugSession]


def test_a_flow_is_what_the_values_say(session: DebugSession) -> None:
    flow = session.gradient_debugger.record_gradient_flow("fc1", [3.0, 0.0, -4.0, 0.0])
    assert flow is not None
    assert (flow.gradient_norm, flow.gradient_mean, flow.gradient_max, flow.gradient_min) == (5.0, -0.25, 3.0, -4.0)
    assert (flow.dead_neurons_ratio, flow.active_neurons_ratio) == (0.5, 0.5)
    rows = session.gradient_debugger.record_gradient_flow("fc2", torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    assert rows is not None
    assert rows.dead_neurons_ratio == pytest.approx(1 / 3)
    half = session.gradient_debugger.record_gradient_flow("fc3", torch.tensor([0.0, -0.0, 1.0], dtype=torch.bfloat16))
    assert half is not None
    assert half.dead_neurons_ratio == pytest.approx(2 / 3)


def test_a_gradient_without_values_is_neither_bad_nor_vanished(session: DebugSession) -> None:
    flow = session.gradient_debugger.record_gradient_flow("shard", np.empty((0, 4), np.float32))
    assert flow is not None
    assert (flow.gradient_norm, flow.elements, flow.gradient_mean) == (0.0, 0, None)
    assert session.gradient_debugger.analyze_gradient_flow().overall_health is LayerHealth.Unknown
    assert session.stop().summary()["total_issues"] == 0


def test_a_norm_alone_leaves_the_rest_unknown(session: DebugSession) -> None:
    flow = session.gradient_debugger.record_gradient_norm("fc1", torch.tensor(2.0))
    assert flow is not None
    assert (flow.gradient_norm, flow.gradient_mean, flow.dead_neurons_ratio) == (2.0, None, None)
    assert session.gradient_debugger.analyze_gradient_flow().overall_health is LayerHealth.Healthy


def test_nothing_recorded_is_unknown_not_healthy(session: DebugSession) -> None:
    analysis = session.gradient_debugger.analyze_gradient_flow()
    assert (analysis.overall_health, analysis.health_score) == (LayerHealth.Unknown, None)


def test_history_is_bounded_and_the_newest_stay(make_session: Make) -> None:
    session = make_session(max_gradient_history=7)
    for step in range(20):
        session.gradient_debugger.record_gradient_norm("fc1", step)
    assert [flow.gradient_norm for flow in session.gradient_debugger.get_flow("fc1")] == list(range(13, 20))
    with pytest.raises(UnknownLayer, match="fc1"):
        session.gradient_debugger.get_flow("fc")


def test_records_that_are_not_sampled_count_as_steps(make_session: Make) -> None:
    debugger = make_session(sampling_rate=0.25).gradient_debugger
    for _ in range(9):
        debugger.record_gradient_flow("values", [1.0])
        debugger.record_gradient_norm("norm", 1.0)
    assert [flow.step for flow in debugger.get_flow("values")] == [0, 4, 8]
    assert [flow.step for flow in debugger.get_flow("norm")] == [0, 4, 8]


@pytest.mark.parametrize(
    ("norms", "trend"),
    [
        ([1.0] * 20, GradientTrend.Stable),
        ([1.5**i * 1e-3 for i in range(20)], GradientTrend.Increasing),
        ([0.7**i for i in range(20)], GradientTrend.Decreasing),
        ([1.0] * 4, GradientTrend.Unknown),
    ],
)
def test_trends(session: DebugSession, norms: list[float], trend: GradientTrend) -> None:
    for norm in norms:
        session.gradient_debugger.record_gradient_norm("fc1", norm)
    assert session.gradient_debugger.get_trend("fc1") is trend
    assert session.gradient_debugger.analyze_gradient_flow().layers["fc1"].trend is trend


def test_vanishing_layers_are_named_by_the_threshold_and_against_the_others(session: DebugSession) -> None:
    record = session.gradient_debugger.record_gradient_flow
    for _ in range(3):
        record("first", np.full(100, 1e-10))
        record("middle", np.full(100, 1e-5))
        record("last", np.full(100, 0.3))
    analysis = session.gradient_debugger.analyze_gradient_flow()
    assert analysis.vanishing_layers == ("first",)
    assert analysis.overall_health is LayerHealth.Critical
    assert analysis.health_score == pytest.approx(2 / 3)
    assert analysis.decay_per_layer is not None
    assert analysis.decay_per_layer < 1e-3
    assert any("skip connections" in text for text in analysis.recommendations)


def test_exploding_and_bad_gradients_are_told_apart(session: DebugSession) -> None:
    record = session.gradient_debugger.record_gradient_flow
    record("warm", [12.0])
    record("hot", [5e3])
    record("nan", [1.0, math.nan])
    analysis = session.gradient_debugger.analyze_gradient_flow()
    assert analysis.exploding_layers == ("warm", "hot")
    assert analysis.bad_layers == ("nan",)
    assert [analysis.layers[name].health for name in ("warm", "hot", "nan")] == [
        LayerHealth.Warning,
        LayerHealth.Critical,
        LayerHealth.Critical,
    ]


def test_a_unit_is_dead_when_no_record_of_the_window_reached_it(session: DebugSession) -> None:
    draw = np.random.default_rng(0)
    for step in range(12):
        gradient = draw.standard_normal((10, 4))
        gradient[:3] = 0.0  # never
        gradient[3 + step % 7] = 0.0  # now and then, as the rows of an embedding
        session.gradient_debugger.record_gradient_flow("fc1", gradient)
    one = session.gradient_debugger.analyze_gradient_flow().layers["fc1"]
    assert one.dead_neurons_ratio == pytest.approx(0.3)
    assert one.health is LayerHealth.Warning


def test_too_few_records_say_nothing_of_dead_units(session: DebugSession) -> None:
    session.gradient_debugger.record_gradient_flow("fc1", np.eye(4)[:1])
    assert session.gradient_debugger.analyze_gradient_flow().layers["fc1"].dead_neurons_ratio is None


def test_swings_and_silence_are_issues(make_session: Make) -> None:
    session = make_session(gradients=GradientDebugConfig(exploding_threshold=1e6, no_gradient_steps=3))
    for step in range(6):
        session.gradient_debugger.record_gradient_norm("swinging", 40.0 * (step % 2) + 1)
        session.gradient_debugger.record_gradient_norm("silent", 0.0)
    layers = session.gradient_debugger.analyze_gradient_flow().layers
    assert layers["swinging"].health is LayerHealth.Warning
    assert "swings" in layers["swinging"].issues[0]
    assert layers["silent"].issues == ("no gradient in the last 3 records",)


def test_the_integration_loop_of_the_original(session: DebugSession) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    for _ in range(5):
        model.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        for name, parameter in model.named_parameters():
            session.gradient_debugger_mut().record_gradient_flow(name, parameter.grad)
    assert session.gradient_debugger().analyze_gradient_flow().overall_health is LayerHealth.Healthy
    directory = session.stop().run_dir
    assert directory is not None
    with open_trace(directory) as trace:
        assert len(trace.history("weight", kind="gradient", field="l2")) == 5
