"""`enable_visualization`: what a session was told lies as plots beside its run when it stops."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from neuraldbg.debug import DebugSession, ModelPerformanceMetrics

Make = Callable[..., DebugSession]


def told(session: DebugSession, steps: int = 5, **health: float) -> None:
    for step in range(steps):
        held = 1.5 if step % 2 else None
        metrics = ModelPerformanceMetrics(training_step=step, loss=1 / (step + 1), validation_loss=held)
        session.model_diagnostics.record_performance(metrics)
        for layer, norm in health.items():
            session.gradient_debugger.record_gradient_norm(layer, norm)


def test_loss_and_gradient_flow_are_drawn_into_the_run(make_session: Make) -> None:
    session = make_session(enable_visualization=True)
    told(session, fc1=0.5, fc2=math.nan)
    report = session.stop()
    assert report.run_dir is not None
    assert report.dashboard == report.run_dir / "dashboard.html"
    page = report.dashboard.read_text()
    titles = ["loss", "validation loss", "Gradient flow of fc1", "Gradient flow of fc2"]
    assert [page.index(f"<h2>{title}</h2>") for title in titles] == sorted(page.index(f"<h2>{t}</h2>") for t in titles)
    assert "loss: 5 values" in page
    assert "validation loss: 2 values" in page
    assert "fc2: 5 not finite" in page
    assert "default-src 'none'" in page
    saved = json.loads((report.run_dir / "debug_report.json").read_text())
    assert saved["dashboard"] == str(report.dashboard)


def test_of_a_watched_model_the_losses_and_layers_of_its_trace_are_drawn(make_session: Make) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = make_session(enable_visualization=True).start(model)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 1)).backward()
        optimizer.step()
    report = session.stop()
    assert report.dashboard is not None
    page = report.dashboard.read_text()
    assert "loss: 12 values" in page
    assert "<h2>Gradient flow of 0</h2>" in page
    assert "<h2>Gradient flow of 2</h2>" in page


def test_of_many_layers_the_least_healthy_are_drawn(make_session: Make) -> None:
    session = make_session(enable_visualization=True)
    told(session, **{f"layer{at}": 1e3 if at in (3, 38) else 0.5 for at in range(40)})
    dashboard = session.stop().dashboard
    assert dashboard is not None
    page = dashboard.read_text()
    assert page.count("<h2>Gradient flow of") == 24
    assert "<h2>Gradient flow of layer3</h2>" in page
    assert "<h2>Gradient flow of layer38</h2>" in page
    assert "<h2>Gradient flow of layer37</h2>" not in page


def test_nothing_is_drawn_where_nothing_was_told_or_nobody_asked(make_session: Make) -> None:
    empty, unasked = make_session(enable_visualization=True), make_session()
    told(unasked, fc1=0.5)
    for session in (empty, unasked):
        report = session.stop()
        assert report.dashboard is None
        assert report.run_dir is not None
        assert not (report.run_dir / "dashboard.html").exists()


def test_a_page_that_cannot_be_written_costs_only_itself(make_session: Make, caplog: pytest.LogCaptureFixture) -> None:
    session = make_session(enable_visualization=True)
    told(session, fc1=0.5)
    assert session.run_dir is not None
    (session.run_dir / "dashboard.html").mkdir()
    report = session.stop()
    assert report.dashboard is None
    assert report.gradients is not None
    assert "the plots are not written" in caplog.text
