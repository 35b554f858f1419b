"""The dashboard's import paths in the original project; its names are fetched when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dashboard import (
        AnomalyDetector,
        BreakpointManager,
        PerformanceProfiler,
        anomaly_detector,
        breakpoint_manager,
        get_trace_data,
        profiler,
        update_dashboard_data,
        update_profiling_data,
    )

__all__ = [
    "AnomalyDetector",
    "BreakpointManager",
    "PerformanceProfiler",
    "anomaly_detector",
    "breakpoint_manager",
    "get_trace_data",
    "profiler",
    "update_dashboard_data",
    "update_profiling_data",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.dashboard"), name)
