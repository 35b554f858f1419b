"""The debugging toolkit from end to end: tensors, gradients, a model, hooks, a profiler, one report.

    python examples/debug_session_demo.py [FOLDER]

Writes a run into FOLDER/by-hand (a loop that tells everything itself, with NumPy) and one into FOLDER/attached (a torch
model that is watched); `neural report FOLDER/attached` and `neural view FOLDER/by-hand` open them.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from neuraldbg.debug import (
    AlertSeverity,
    Comparison,
    DebugConfig,
    DebugSession,
    HookAction,
    HookBuilder,
    HookCondition,
    HookTrigger,
    ModelArchitectureInfo,
    ModelPerformanceMetrics,
)


def look_at_tensors(session: DebugSession) -> None:
    print("== tensors")
    inspector = session.tensor_inspector_mut()
    healthy = inspector.inspect_tensor(np.linspace(0.0, 1.0, 1000), "my_tensor", "layer_1", "forward")
    stats = inspector.get_tensor_info(healthy).stats
    print(f"mean {stats.mean:.3f}, std {stats.std:.3f}, {stats.min} to {stats.max}, norm {stats.l2_norm:.2f}")
    skewed = np.random.default_rng(0).lognormal(sigma=1.5, size=10_000).astype(np.float32)
    other = inspector.inspect_tensor(skewed, "skewed", "layer_2", "forward")
    shape = inspector.get_tensor_info(other).distribution
    print(f"95 % below {shape.percentiles['p95']:.2f}, {shape.outlier_count} outliers, skewness {shape.skewness:.1f}")
    inspector.inspect_tensor(np.array([1.0, np.nan, np.inf]), "broken", "layer_3", "forward")
    inspector.inspect_tensor(skewed * 2, "skewed", "layer_2", "forward")
    print(f"since the step before: mean difference {inspector.compare_steps('skewed').mae:.2f}")
    for alert in inspector.get_alerts(AlertSeverity.Critical):
        print(f"alert: {alert.message}")


def look_at_gradients(session: DebugSession) -> None:
    print("== gradients")
    debugger = session.gradient_debugger_mut()
    draw = np.random.default_rng(1)
    for _ in range(12):
        for depth in range(6):  # a signal that fades on its way down
            debugger.record_gradient_flow(f"block_{depth}", draw.standard_normal(256) * 1e-2 * 0.02 ** (5 - depth))
        debugger.record_gradient_norm("head", 0.5)
    analysis = debugger.analyze_gradient_flow()
    print(f"overall {analysis.overall_health.value}, score {analysis.health_score:.2f}")
    print(f"vanishing in {', '.join(analysis.vanishing_layers)}; {analysis.recommendations[0]}")


def look_at_the_model(session: DebugSession) -> None:
    print("== model")
    diagnostics = session.model_diagnostics_mut()
    diagnostics.record_architecture(
        ModelArchitectureInfo(
            total_parameters=125_000_000, trainable_parameters=125_000_000, model_size_mb=500.0, layer_count=24
        )
    )
    for step in range(0, 1000, 20):
        diagnostics.record_performance(
            ModelPerformanceMetrics(
                training_step=step,
                loss=2.5 * np.exp(-step / 300),
                accuracy=1 - np.exp(-step / 300),
                learning_rate=1e-4,
                batch_size=32,
                validation_loss=1.0 + abs(step - 400) / 1000,
            )
        )
    dynamics = diagnostics.analyze_training_dynamics()
    print(f"{dynamics.convergence_status.value}, {dynamics.training_stability.value}")
    print(f"overfitting: {dynamics.overfitting_indicators[0]}")


def time_layers(session: DebugSession) -> None:
    print("== profiler")
    profiler = session.profiler_mut()
    profiler.start_timer("layer_forward")
    np.linalg.svd(np.random.default_rng(2).standard_normal((120, 120)))
    print(f"layer_forward took {profiler.end_timer('layer_forward') * 1e3:.1f} ms")
    profiler.record_layer_execution("transformer_block_0", "TransformerBlock", 0.010, 0.021, 4_000_000, 7_000_000)
    profiler.record_layer_execution("transformer_block_1", "TransformerBlock", 0.011, 0.045, 4_000_000, 7_000_000)
    profiler.record_layer_execution("lm_head", "Linear", 0.080, 0.110, 64_000_000, 38_000_000)
    for bottleneck in profiler.report().bottlenecks:
        print(f"{bottleneck.type.value}: {bottleneck.message}")


async def by_hand(folder: Path) -> None:
    config = DebugConfig(output_dir=folder, max_tracked_tensors=1000, max_gradient_history=200, alert_log=False)
    session = DebugSession(config)
    await session.start()
    look_at_tensors(session)
    look_at_gradients(session)
    look_at_the_model(session)
    time_layers(session)
    report = await session.stop()
    summary = report.summary()
    print(
        f"{summary['total_issues']} issues, {summary['critical_issues']} critical; the run is in {report.run_dir.name}"
    )


def attached(folder: Path) -> None:
    print("== a torch model, watched")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    with DebugSession(output_dir=folder, alert_log=False) as session:
        session.attach(model)
        monitor = HookBuilder("Layer Monitor").trigger(HookTrigger.EveryForward).action(HookAction.InspectTensor)
        watched = session.hooks.register_hook(monitor.layer_patterns([r"^[02]$"]).max_executions(100).build())
        small = HookCondition.LossThreshold(0.05, Comparison.Less)
        done = HookBuilder("Good Enough").trigger(HookTrigger.Conditional(small)).max_executions(1)
        done.action(HookAction.Alert("the loss is below 0.05", AlertSeverity.Info))
        done.action(HookAction.SaveSnapshot(folder.parent / "snapshots"))
        session.hooks.register_hook(done.layer_patterns(["^4$"]).build())
        train(model)
        print(f"hook {watched} acted {session.hooks.get_hook_stats(watched).total_executions} times")
        print(f"alerts: {[alert.message for alert in session.alerts]}")
    report = session.stop()
    print(f"gradients {report.gradients.overall_health.value}, verdict {report.verdict.state}")
    print(f"training {report.diagnostics.dynamics.convergence_status.value}")


def train(model: nn.Module) -> None:
    inputs = torch.randn(256, 8)
    targets = inputs[:, :1] - inputs[:, 1:2]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="debug-session-"))
    asyncio.run(by_hand(place / "by-hand"))
    attached(place / "attached")
    print(f"look closer: neural report {place / 'attached'}")
