"""The profiling views as figures: plain dicts of `data` and `layout` in Plotly's form, which need no Plotly to be made.

`plotly.graph_objects.Figure(view)` draws one; the page shows the same numbers without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figure = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
COLOURS = {"high": "#d64545", "medium": "#e0a030", "low": "#4c8dff"}


def _figure(title: str, data: list[Figure], **layout: Any) -> Figure:
    if not data:
        layout["annotations"] = [{"text": "No data available", "showarrow": False}]
    return {"data": data, "layout": {"title": {"text": title}, **layout}}


def _axis(title: str) -> Figure:
    return {"title": {"text": title}}


def create_layer_profiling_view(layer_stats: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Mean time of every layer with its standard deviation."""
    known = {name: each for name, each in layer_stats.items() if each.get("mean_time") is not None}
    bars = {
        "type": "bar",
        "x": list(known),
        "y": [each["mean_time"] * 1e3 for each in known.values()],
        "error_y": {"type": "data", "array": [(each.get("std_time") or 0.0) * 1e3 for each in known.values()]},
    }
    return _figure("Layer times", [bars] if known else [], yaxis=_axis("ms"))


def create_memory_profiling_view(snapshots: Rows) -> Figure:
    """Memory of the process and the devices over time."""
    data = []
    for name, label in (("cpu_memory_mb", "CPU"), ("gpu_memory_mb", "GPU"), ("gpu_reserved_mb", "GPU reserved")):
        points = [(each["timestamp"], each[name]) for each in snapshots if each.get(name) is not None]
        if points:
            data.append({"type": "scatter", "mode": "lines", "name": label, **_points(points)})
    return _figure("Memory", data, yaxis=_axis("MB"))


def _points(points: Sequence[tuple[Any, Any]]) -> Figure:
    return {"x": [at for at, _ in points], "y": [value for _, value in points]}


def create_bottleneck_view(bottlenecks: Rows) -> Figure:
    """The gravest layers, coloured by how grave they are."""
    shown = list(bottlenecks)[:10]
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": [each["overhead_percentage"] for each in shown],
        "y": [each["layer"] for each in shown],
        "text": [", ".join(each["bottleneck_type"]) for each in shown],
        "marker": {"color": [COLOURS[_severity(each["severity_score"])] for each in shown]},
    }
    return _figure("Bottlenecks", [bar] if shown else [], xaxis=_axis("% above the threshold"))


def _severity(score: float) -> str:
    return "high" if score >= 100 else "medium" if score >= 50 else "low"


def create_comparative_profiling_view(comparison: Mapping[str, Any]) -> Figure:
    """Every layer's time on every backend, side by side."""
    layers = comparison.get("layer_comparisons") or {}
    data = [
        {
            "type": "bar",
            "name": backend,
            "x": list(layers),
            "y": [
                None if (mean := each["backend_data"].get(backend, {}).get("mean_time")) is None else mean * 1e3
                for each in layers.values()
            ],
        }
        for backend in comparison.get("backends") or ()
    ]
    text = (comparison.get("summary") or {}).get("recommendation") or comparison.get("error") or ""
    return _figure(f"Backends: {text}" if text else "Backends", data, barmode="group", yaxis=_axis("ms"))


def create_gpu_utilization_view(gpu_metrics: Rows) -> Figure:
    """Four panels: how busy, how full, how warm, how much power."""
    panels = {
        "gpu_utilization_percent": "busy (%)",
        "memory_allocated_mb": "memory (MB)",
        "temperature_celsius": "temperature (°C)",
        "power_watts": "power (W)",
    }
    data, axes = [], {}
    for number, (name, title) in enumerate(panels.items()):
        points = [(each["timestamp"], each[name]) for each in gpu_metrics if each.get(name) is not None]
        at = "" if not number else str(number + 1)  # Plotly calls its first axis x, the next one x2
        axes[f"yaxis{at}"] = _axis(title)
        if points:
            data.append({"type": "scatter", "name": name, "xaxis": f"x{at}", "yaxis": f"y{at}", **_points(points)})
    return _figure("GPU", data, grid={"rows": 2, "columns": 2, "pattern": "independent"}, **axes)


def create_memory_leak_view(summary: Mapping[str, Any]) -> Figure:
    """What each leak added."""
    leaks = summary.get("leaks") or []
    bar = {
        "type": "bar",
        "x": [each["timestamp"] for each in leaks],
        "y": [each["increase_mb"] for each in leaks],
        "text": [", ".join(each["layers_involved"]) for each in leaks],
    }
    return _figure("Leaks" if leaks else "No leaks", [bar] if leaks else [], yaxis=_axis("MB"))


def create_distributed_profiling_view(metrics: Mapping[str, Any]) -> Figure:
    """Time of every node, and what communication took by kind."""
    balance, talking = metrics.get("load_balance") or {}, metrics.get("communication") or {}
    times, kinds = balance.get("node_times") or {}, talking.get("by_operation_type") or {}
    data = []
    if times:
        data.append({"type": "bar", "name": "nodes (s)", "x": list(times), "y": list(times.values())})
    if kinds:
        spent = [each["total_time_ms"] for each in kinds.values()]
        data.append({"type": "bar", "name": "communication (ms)", "x": list(kinds), "y": spent, "yaxis": "y2"})
    return _figure("Nodes", data, yaxis2={"overlaying": "y", "side": "right"})


def create_recommendations_view(recommendations: Rows) -> Figure:
    shown = list(recommendations)
    names = ("priority", "layer", "category", "recommendation")
    cells = {"values": [[each.get(name) for each in shown] for name in names]}
    table = {"type": "table", "header": {"values": list(names)}, "cells": cells}
    return _figure("Recommendations", [table] if shown else [])


def create_execution_timeline(execution_history: Rows) -> Figure:
    """When every call ran and how long."""
    shown = list(execution_history)
    bar = {
        "type": "bar",
        "orientation": "h",
        "base": [each["timestamp"] - each["execution_time"] for each in shown],
        "x": [each["execution_time"] for each in shown],
        "y": [each["layer"] for each in shown],
    }
    return _figure("Timeline", [bar] if shown else [], xaxis=_axis("s"))
