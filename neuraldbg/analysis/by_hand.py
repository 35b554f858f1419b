"""What `update_profiling_data` was told, in the shape that views read.

It comes from the user's own code: what has not the documented shape is left out, and a number that is none is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

Told = dict[str, Any]
_OF_LAYER: Final = ("call_count", "total_time", "mean_time", "std_time", "min_time", "max_time")
_SNAPSHOT: Final = ("timestamp", "cpu_memory_mb", "gpu_memory_mb")
_OF_GPU: Final = (
    *("timestamp", "device_id", "memory_allocated_mb", "gpu_utilization_percent"),
    *("temperature_celsius", "power_watts"),
)
_ADVICE: Final = ("layer", "type", "category", "priority", "recommendation", "details")


def by_hand(trace: Trace) -> Told:
    """The last of each name."""
    told: Told = {}
    for fact in trace.told("profiling_data"):
        told |= fact
    return readable(told)


def readable(told: Mapping[str, Any]) -> Told:
    """Of what was told the part that views read, by its known names."""
    return {name: _READ[name](value) for name, value in told.items() if name in _READ}


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if known else None


def _numbers(row: Mapping[str, Any], names: Sequence[str]) -> Told:
    return {name: _number(row[name]) for name in names if name in row}


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rows(value: Any) -> Iterator[Mapping[str, Any]]:
    return (row for row in value if isinstance(row, Mapping)) if isinstance(value, list) else iter(())


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _by_name(value: Any) -> dict[str, float | None]:
    return {name: _number(each) for name, each in _dict(value).items()}


def _layer_stats(value: Any) -> Told:
    return {name: _numbers(row, _OF_LAYER) for name, row in _dict(value).items() if isinstance(row, Mapping)}


def _measured(names: Sequence[str]) -> Callable[[Any], list[Told]]:
    def read(value: Any) -> list[Told]:
        return [{"layer": str(row.get("layer", "")), **_numbers(row, names)} for row in _rows(value)]

    return read


def _bottlenecks(value: Any) -> list[Told]:
    return [
        {
            "layer": str(row["layer"]),
            "bottleneck_type": _texts(row.get("bottleneck_type")),
            **_numbers(row, ("overhead_percentage", "severity_score", "mean_execution_time")),
        }
        for row in _rows(value)
        if "layer" in row
    ]


def _recommendations(value: Any) -> list[Told]:
    """A sentence is one that is of no layer."""
    given = value if isinstance(value, list) else [value]
    rows = [{"recommendation": one} if isinstance(one, str) else one for one in given]
    return [
        {name: str(row[name]) for name in _ADVICE if row.get(name) is not None}
        for row in _rows(rows)
        if row.get("recommendation")
    ]


def _leak_summary(value: Any) -> Told:
    names = ("increase_mb", "growth_rate_mb_per_step", "start_memory_mb", "end_memory_mb")
    leaks = [
        {"layers_involved": _texts(row.get("layers_involved")), **_numbers(row, names)}
        for row in _rows(_dict(value).get("leaks"))
    ]
    return {"leaks": leaks}


def _distributed(value: Any) -> Told:
    balance, talking = (_dict(_dict(value).get(name)) for name in ("load_balance", "communication"))
    kinds = _dict(talking.get("by_operation_type"))
    return {
        "load_balance": {
            "node_times": _by_name(balance.get("node_times")),
            "imbalance_factor": _number(balance.get("imbalance_factor")),
        },
        "communication": {
            "by_operation_type": {name: _by_name(row) for name, row in kinds.items()},
            "total_communication_time_ms": _number(talking.get("total_communication_time_ms")),
        },
    }


def _backends(value: Any) -> Told:
    told, summary = _dict(value), _dict(_dict(value).get("summary"))
    layers = {}
    for name, row in _dict(told.get("layer_comparisons")).items():
        data = _dict(_dict(row).get("backend_data"))
        means = {backend: _numbers(_dict(each), ("mean_time",)) for backend, each in data.items()}
        layers[name] = {"fastest_backend": _dict(row).get("fastest_backend"), "backend_data": means}
    said = {"total_times": _by_name(summary.get("total_times")), "recommendation": summary.get("recommendation")}
    return {"backends": _texts(told.get("backends")), "layer_comparisons": layers, "summary": said}


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "layer_stats": _layer_stats,
    "memory_snapshots": _measured(_SNAPSHOT),
    "bottlenecks": _bottlenecks,
    "recommendations": _recommendations,
    "gpu_metrics": _measured(_OF_GPU),
    "memory_leak_summary": _leak_summary,
    "distributed_metrics": _distributed,
    "backend_comparison": _backends,
}
