"""Layers that stand out among the others, by what was measured of them, and what to do about each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from neuraldbg.analysis.durations import Durations

from .plain import BadMeasurement, mapping, number

METRICS: Final = ("execution_time", "memory_usage", "io_operations", "gpu_utilization")
COMPUTE: Final = 1.5  # times the threshold
MEMORY_MB, IO, GPU_PERCENT = 500.0, 100.0, 50.0
CRITICAL_PERCENT: Final = 50.0  # above the threshold
SLIGHTLY: Final = 1.1  # times the others: one layer is always above the threshold
UNEVEN: Final = 0.3  # std over mean
ADVICE: Final = {
    "compute": ("optimization", "fuse or simplify its operations, lower its precision, or compile it"),
    "memory": ("memory", "checkpoint it, lower its precision, or take smaller batches"),
    "io": ("data", "load ahead in other processes, cache, or read larger pieces"),
    "underutilization": ("gpu", "larger batches, or fewer and larger operations: the device waits for work"),
    "variance": ("stability", "look for what happens now and then: first calls, garbage collection, varying shapes"),
}


class BottleneckAnalyzer:
    """Which layers hold a training back, and by what: `compute`, `memory`, `io` or `underutilization`."""

    def __init__(self, threshold_percentile: float = 90.0) -> None:
        if not 0 <= threshold_percentile <= 100:
            raise BadMeasurement(f"threshold_percentile lies between 0 and 100, not {threshold_percentile!r}")
        self.threshold_percentile = threshold_percentile
        self.reset()

    def reset(self) -> None:
        """Forgets every measurement."""
        self._layers: dict[str, dict[str, Durations]] = {}
        self._result: dict[str, Any] | None = None

    def record_layer_metrics(self, layer_name: str, metrics: Mapping[str, Any]) -> None:
        """Seconds, MB, operations, percent. Other names are left alone; what is None was not measured."""
        known = mapping(metrics, f"metrics of {layer_name!r}")
        given = {
            name: number(known[name], f"{name} of {layer_name!r}") for name in METRICS if known.get(name) is not None
        }
        measured = self._layers.setdefault(layer_name, {name: Durations() for name in METRICS})
        for name, value in given.items():
            measured[name].add(value)
        self._result = None

    def analyze(self) -> dict[str, Any]:
        """Bottlenecks, recommendations and a summary of what was recorded."""
        layers = dict(self._layers)  # another thread may add one meanwhile
        times = [each["execution_time"].mean for each in layers.values()]
        means = [mean for mean in times if mean is not None]
        threshold = float(np.percentile(means, self.threshold_percentile)) if means else 0.0
        found = [one for name in layers if (one := self._judge(name, threshold)) is not None]
        found.sort(key=lambda one: -one["severity_score"])
        others = max((mean for mean in means if mean <= threshold), default=0.0)
        advice = [each for one in found for each in self._advise(one, others)]
        self._result = {"bottlenecks": found, "recommendations": advice, "summary": self._summary(found)}
        return self._result

    def _judge(self, layer: str, threshold: float) -> dict[str, Any] | None:
        known = self._layers[layer]
        mean = known["execution_time"].mean
        memory, io, gpu = (known[name].mean for name in METRICS[1:])
        types = [
            name
            for name, holds in (
                ("compute", mean is not None and mean > COMPUTE * threshold > 0),
                ("memory", memory is not None and memory > MEMORY_MB),
                ("io", io is not None and io > IO),
                ("underutilization", gpu is not None and gpu < GPU_PERCENT),
            )
            if holds
        ]
        slow = mean is not None and mean > threshold
        if not slow and not types:
            return None
        over = (mean - threshold) / threshold * 100 if mean is not None and threshold > 0 else 0.0
        told = {
            "layer": layer,
            "mean_execution_time": mean,
            "execution_time_std": known["execution_time"].std,
            "threshold": threshold,
            "overhead_percentage": over,
            "bottleneck_type": types or ["compute"],
            "severity_score": max(over, 0.0) + 25.0 * len(types),
        }
        more = {"mean_memory_usage": memory, "io_intensity": io, "gpu_utilization": gpu}
        return {**told, **{name: value for name, value in more.items() if value is not None}}

    def _advise(self, one: dict[str, Any], others: float) -> Iterator[dict[str, Any]]:
        """`others`: the slowest of those that are not above the threshold."""
        mean, spread = one["mean_execution_time"], one["execution_time_std"]
        uneven = bool(mean) and spread is not None and spread / mean > UNEVEN
        for kind in [*one["bottleneck_type"], *(["variance"] if uneven else [])]:
            category, text = ADVICE[kind]
            yield {
                "layer": one["layer"],
                "type": kind,
                "category": category,
                "priority": _priority(kind, one, others),
                "recommendation": f"{one['layer']}: {text}",
                "details": _details(kind, one),
            }

    def _summary(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        over = [one for one in found if one["mean_execution_time"] is not None]
        told: dict[str, Any] = {
            "total_bottlenecks": len(found),
            "critical_bottlenecks": sum(one["overhead_percentage"] > CRITICAL_PERCENT for one in found),
            "total_overhead_ms": sum(max(one["mean_execution_time"] - one["threshold"], 0.0) for one in over) * 1e3,
        }
        if found:
            types: dict[str, int] = {}
            for one in found:
                for kind in one["bottleneck_type"]:
                    types[kind] = types.get(kind, 0) + 1
            top = [{"layer": one["layer"], "overhead_percentage": one["overhead_percentage"]} for one in found[:5]]
            told |= {"bottleneck_types": types, "top_bottlenecks": top}
        return told

    def get_bottlenecks(self) -> list[dict[str, Any]]:
        """The worst first."""
        return list((self._result or self.analyze())["bottlenecks"])

    def get_recommendations(self) -> list[dict[str, Any]]:
        """What to do about each of them."""
        return list((self._result or self.analyze())["recommendations"])


def _priority(kind: str, one: Mapping[str, Any], others: float) -> str:
    slight = kind == "compute" and (one["mean_execution_time"] or 0.0) < SLIGHTLY * others
    if kind == "variance" or slight:
        return "low"
    return "high" if one["overhead_percentage"] > CRITICAL_PERCENT else "medium"


def _details(kind: str, one: dict[str, Any]) -> str:
    if kind == "memory":
        return f"{one['mean_memory_usage']:.0f} MB on average (cut-off {MEMORY_MB:.0f})"
    if kind == "io":
        return f"{one['io_intensity']:.0f} operations on average (cut-off {IO:.0f})"
    if kind == "underutilization":
        return f"{one['gpu_utilization']:.0f} % of the GPU on average (cut-off {GPU_PERCENT:.0f})"
    spread = one["execution_time_std"]
    if kind == "variance":
        return f"{one['mean_execution_time'] * 1e3:.3g} ms on average, +- {spread * 1e3:.3g}"
    return (
        f"{one['mean_execution_time'] * 1e3:.3g} ms on average, {one['overhead_percentage']:.0f} % above the threshold"
    )
