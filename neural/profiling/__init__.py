"""Profilers that are fed by hand: what `neural profile` measures by itself, for code that is no training script.

`ProfilerManager` has one of each. Importing costs nothing: each is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bottleneck_analyzer import BottleneckAnalyzer
    from .comparative_profiler import ComparativeProfiler
    from .distributed_profiler import DistributedTrainingProfiler
    from .gpu_profiler import GPUUtilizationProfiler
    from .layer_profiler import LayerProfiler
    from .memory_profiler import MemoryLeakDetector, MemoryProfiler
    from .profiler_manager import ProfilerManager

__all__ = [
    "BottleneckAnalyzer",
    "ComparativeProfiler",
    "DistributedTrainingProfiler",
    "GPUUtilizationProfiler",
    "LayerProfiler",
    "MemoryLeakDetector",
    "MemoryProfiler",
    "ProfilerManager",
]

_WHERE = {
    "BottleneckAnalyzer": "bottleneck_analyzer",
    "ComparativeProfiler": "comparative_profiler",
    "DistributedTrainingProfiler": "distributed_profiler",
    "GPUUtilizationProfiler": "gpu_profiler",
    "LayerProfiler": "layer_profiler",
    "MemoryLeakDetector": "memory_profiler",
    "MemoryProfiler": "memory_profiler",
    "ProfilerManager": "profiler_manager",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    return made
