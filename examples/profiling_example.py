"""Layers timed by hand, and what the profilers make of it."""

from __future__ import annotations

import time

from neural.profiling import ProfilerManager
from neural.profiling.utils import format_profiling_report

profiler = ProfilerManager(enable_all=True)
profiler.start_profiling()

COSTS_S = {"Input": 0.0, "Conv2D": 0.004, "ReLU": 0.0005, "MaxPool": 0.001, "Dense": 0.002, "Softmax": 0.0005}
for _ in range(10):
    for layer, seconds in COSTS_S.items():
        with profiler.profile_layer(layer, {"batch": 32}):
            time.sleep(seconds)  # your layer's computation

profiler.end_profiling()
print(format_profiling_report(profiler.get_comprehensive_report()))
profiler.export_report("profiling_report.json")
