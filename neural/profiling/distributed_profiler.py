"""Several nodes that train together: whose work is larger, and what talking and waiting cost."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from neural.profiling.memory_profiler import BadMeasurement

BALANCED: Final = 0.1
LIMITS: Final = {  # above the first it is medium, above the second high
    "load_imbalance": (0.2, 0.5),
    "communication_overhead": (20.0, 40.0),  # percent
    "synchronization_overhead": (15.0, 30.0),
}
ADVICE: Final = {
    "load_imbalance": "give the slowest node less, or look at what else runs there",
    "communication_overhead": "overlap it with the backward, compress gradients, or accumulate over more batches",
    "synchronization_overhead": "synchronise less often, and make the nodes' work equal: waiting is for the slowest",
}
HISTORY: Final = 100_000
_OTHER_NAMES: Final = {
    "source": "source_node",
    "dest": "dest_node",
    "size": "data_size_mb",
    "duration": "duration_ms",
    "type": "operation_type",
    "nodes": "node_ids",
}


class DistributedTrainingProfiler:
    """Both sets of argument names work: (source_node, dest_node, data_size_mb, duration_ms, operation_type) and
    (source, dest, size, duration, type)."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.node_profiles: dict[str, dict[str, Any]] = {}
        self.communication_events: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.synchronization_events: deque[dict[str, Any]] = deque(maxlen=HISTORY)

    def add_node_profile(self, node_id: Any, profile_data: Mapping[str, Any]) -> None:
        if not isinstance(profile_data, Mapping):
            raise BadMeasurement(f"the profile of {node_id!r} is a dict, not {type(profile_data).__name__}")
        _checked(node_id, profile_data)
        self.node_profiles[str(node_id)] = dict(profile_data)

    def record_node_metrics(self, node_id: Any, metrics: Mapping[str, Any]) -> None:
        _checked(node_id, metrics)
        self.node_profiles.setdefault(str(node_id), {}).update(metrics)

    def record_communication(self, *args: Any, **given: Any) -> None:
        names = ("source_node", "dest_node", "data_size_mb", "duration_ms", "operation_type")
        told = _arguments("record_communication", names, args, given, {"operation_type": "transfer"})
        size, duration = (_number(told[name], name) for name in ("data_size_mb", "duration_ms"))
        rate = size * 8 / (duration / 1e3) if duration > 0 else None  # megabits a second
        told |= {"data_size_mb": size, "duration_ms": duration, "bandwidth_mbps": rate}
        told |= {name: str(told[name]) for name in ("source_node", "dest_node")}
        self.communication_events.append(told)

    def record_synchronization(self, *args: Any, **given: Any) -> None:
        names = ("node_ids", "sync_type", "duration_ms", "barrier_wait_ms")
        given = {("sync_type" if name in ("type", "operation_type") else name): value for name, value in given.items()}
        told = _arguments("record_synchronization", names, args, given, {"barrier_wait_ms": None})
        waited = told["barrier_wait_ms"]
        told["duration_ms"] = _number(told["duration_ms"], "duration_ms")
        told["barrier_wait_ms"] = None if waited is None else _number(waited, "barrier_wait_ms")
        told["node_ids"] = [str(node) for node in told["node_ids"]]
        self.synchronization_events.append(told)

    def analyze_load_balance(self) -> dict[str, Any]:
        times = {node: time for node, data in self.node_profiles.items() if (time := _time_of(data)) is not None}
        if len(times) < 2:
            return {"error": "times of two nodes or more are needed: add_node_profile(node_id, data) for each"}
        values = np.array(list(times.values()))
        mean = float(values.mean())
        factor = float((values.max() - values.min()) / mean) if mean > 0 else 0.0
        return {
            "node_times": times,
            "mean_time": mean,
            "std_time": float(values.std()),
            "max_time": float(values.max()),
            "min_time": float(values.min()),
            "imbalance_factor": factor,
            "slowest_node": max(times, key=lambda node: times[node]),
            "fastest_node": min(times, key=lambda node: times[node]),
            "is_balanced": bool(factor < BALANCED),
        }

    def analyze_communication_overhead(self) -> dict[str, Any]:
        events = list(self.communication_events)
        rates = [each["bandwidth_mbps"] for each in events if each["bandwidth_mbps"] is not None]
        by_type: dict[str, dict[str, Any]] = {}
        for each in events:
            one = by_type.setdefault(
                str(each["operation_type"]), {"count": 0, "total_time_ms": 0.0, "total_data_mb": 0.0}
            )
            one["count"] += 1
            one["total_time_ms"] += each["duration_ms"]
            one["total_data_mb"] += each["data_size_mb"]
        return {
            "total_communication_time_ms": sum(each["duration_ms"] for each in events),
            "total_data_transferred_mb": sum(each["data_size_mb"] for each in events),
            "event_count": len(events),
            "mean_bandwidth_mbps": float(np.mean(rates)) if rates else None,
            "by_operation_type": by_type,
        }

    def analyze_synchronization_overhead(self) -> dict[str, Any]:
        events = list(self.synchronization_events)
        by_type: dict[str, dict[str, Any]] = {}
        for each in events:
            one = by_type.setdefault(str(each["sync_type"]), {"count": 0, "total_time_ms": 0.0})
            one["count"] += 1
            one["total_time_ms"] += each["duration_ms"]
        return {
            "total_sync_time_ms": sum(each["duration_ms"] for each in events),
            "total_barrier_wait_ms": sum(each["barrier_wait_ms"] or 0.0 for each in events),
            "event_count": len(events),
            "by_sync_type": by_type,
        }

    def get_bottleneck_analysis(self) -> dict[str, Any]:
        balance = self.analyze_load_balance()
        talking, waiting = self.analyze_communication_overhead(), self.analyze_synchronization_overhead()
        whole_ms = balance.get("max_time", 0.0) * 1e3
        measured = {
            "load_imbalance": balance.get("imbalance_factor"),
            "communication_overhead": _percent(talking["total_communication_time_ms"], whole_ms),
            "synchronization_overhead": _percent(waiting["total_sync_time_ms"], whole_ms),
        }
        found = [_bottleneck(kind, value, balance) for kind, value in measured.items()]
        return {
            "bottlenecks": [one for one in found if one is not None],
            "load_balance": balance,
            "communication_overhead": talking,
            "synchronization_overhead": waiting,
        }

    def get_summary(self) -> dict[str, Any]:
        analysis = self.get_bottleneck_analysis()
        return {
            "total_nodes": len(self.node_profiles),
            "communication_events": len(self.communication_events),
            "synchronization_events": len(self.synchronization_events),
            "load_balance": analysis["load_balance"],
            "communication_overhead": analysis["communication_overhead"],
            "synchronization_overhead": analysis["synchronization_overhead"],
            "bottleneck_analysis": analysis,
        }


def _arguments(
    function: str, names: Sequence[str], args: Sequence[Any], given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    if len(args) > len(names):
        raise TypeError(f"{function}() takes {len(names)} arguments: {', '.join(names)}")
    told = dict(zip(names, args, strict=False))
    for name, value in given.items():
        known = name if name in names else _OTHER_NAMES.get(name)
        if known is None or known not in names:
            raise TypeError(f"{function}() has no argument {name!r}; it takes {', '.join(names)}")
        if known in told:
            raise TypeError(f"{function}() got {known} twice")
        told[known] = value
    missing = [name for name in names if name not in told and name not in defaults]
    if missing:
        raise TypeError(f"{function}() needs {', '.join(missing)}")
    return {**defaults, **told}


def _number(value: Any, name: str) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise BadMeasurement(f"{name} is a number from 0 on, not {value!r}")
    return number


def _time_of(profile: Mapping[str, Any]) -> float | None:
    """Seconds a node was busy, wherever its profile says so."""
    for place in (profile.get("summary") or {}, profile):
        for name in ("total_time", "execution_time"):
            if isinstance(place.get(name), int | float):
                return float(place[name])
    times = [each.get("total_time") for each in (profile.get("layer_stats") or {}).values()]
    return float(sum(times)) if times and all(time is not None for time in times) else None


def _checked(node_id: Any, profile: Mapping[str, Any]) -> None:
    seconds = _time_of(profile)
    if seconds is not None:
        _number(seconds, f"the time of {str(node_id)!r}")


def _percent(part_ms: float, whole_ms: float) -> float | None:
    return part_ms / whole_ms * 100 if whole_ms > 0 else None


def _bottleneck(kind: str, value: float | None, balance: Mapping[str, Any]) -> dict[str, Any] | None:
    some, much = LIMITS[kind]
    if value is None or value <= some:
        return None
    if kind == "load_imbalance":
        slow, fast = balance["slowest_node"], balance["fastest_node"]
        details = f"{slow} takes {balance['max_time']:.3g} s, {fast} {balance['min_time']:.3g} s"
    else:
        details = f"{value:.0f} % of the slowest node's time"
    severity = "high" if value > much else "medium"
    return {"type": kind, "severity": severity, "details": details, "recommendation": ADVICE[kind]}
