"""Debugging by hand, in any loop and for any framework's arrays: sessions, tensors, gradients, models, hooks, alerts.

Everything that is looked at is written to the same trace as everything else: `neural report` and `neural view` open it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

EXPORTS = {  # name -> module of this package, fetched when first used
    "AlertSeverity": "alerts",
    "BottleneckType": "profiler",
    "Comparison": "hook_parts",
    "ConvergenceStatus": "dynamics",
    "Dashboard": "visualizer",
    "DebugConfig": "settings",
    "DebugReport": "report",
    "DebugSession": "session",
    "DebugVisualizer": "visualizer",
    "GradientDebugConfig": "settings",
    "GradientDebugger": "gradients",
    "GradientFlow": "gradients",
    "GradientTrend": "gradients",
    "Hook": "hook_building",
    "HookAction": "hook_parts",
    "HookBuilder": "hook_building",
    "HookCondition": "hook_parts",
    "HookContext": "hook_parts",
    "HookResult": "hook_parts",
    "HookStats": "hooks",
    "HookTrigger": "hook_parts",
    "LayerHealth": "gradients",
    "ModelArchitectureInfo": "architecture",
    "ModelDiagnostics": "diagnostics",
    "ModelPerformanceMetrics": "diagnostics",
    "Profiler": "profiler",
    "ProfilerReport": "profiler",
    "TensorAlert": "alerts",
    "TensorComparison": "comparing",
    "TensorDistribution": "tensors",
    "TensorInfo": "inspector",
    "TensorInspector": "inspector",
    "TensorStats": "tensors",
    "TerminalVisualizer": "terminal",
    "TrainingDynamics": "dynamics",
    "TrainingStability": "dynamics",
    "VisualizationConfig": "visualizer",
    "compare": "inspector",
    "debug_session": "session",
    "describe": "inspector",
}

__all__ = sorted(EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{EXPORTS[name]}"), name)
    globals()[name] = value
    return value
