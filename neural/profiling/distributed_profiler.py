"""Several nodes that train together: whose work is larger, and what talking and waiting cost."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from .plain import mapping, number

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
        """Forgets every node and event."""
        self.node_profiles: dict[str, dict[str, Any]] = {}
        self.communication_events: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.synchronization_events: deque[dict[str, Any]] = deque(maxlen=HISTORY)

    @classmethod
    def of_run(cls, run: str | os.PathLike[str]) -> DistributedTrainingProfiler:
        """Filled with what the ranks of a recorded run measured; a node is a rank. Its time is its own work; what it
        spent in collectives and waiting for others is synchronisation, and of that the collectives that the script made
        by itself are communication, each the mean of a rank. Nothing where the run had one process."""
        from neuraldbg.analysis.rank_steps import communication, rank_steps
        from neuraldbg.trace import open_trace

        filled = cls()
        with open_trace(run) as trace:
            times, sent = rank_steps(trace), communication(trace)
        if times is None:
            return filled
        nodes = [f"rank_{rank}" for rank in times.ranks]
        for node, own in zip(nodes, np.nansum(times.own_s, axis=1).tolist(), strict=True):
            filled.add_node_profile(node, {"summary": {"total_time": own}, "steps": len(times.steps)})
        waited_ms = float(np.nansum(times.sync_s)) * 1e3 / len(nodes)
        barriers = sum(one["seconds"] for one in sent if one["operation"] in ("barrier", "monitored_barrier"))
        waits = {"barrier_wait_ms": barriers * 1e3 / len(nodes)}
        filled.record_synchronization(nodes, "collectives and gradients", waited_ms, **waits)
        for one in sent:
            share = {"data_size_mb": one["bytes"] / 1e6 / len(nodes), "duration_ms": one["seconds"] * 1e3 / len(nodes)}
            filled.record_communication("all", "all", operation_type=one["operation"], **share)
        return filled

    def add_node_profile(self, node_id: Any, profile_data: Mapping[str, Any]) -> None:
        """Its seconds are `summary.total_time`, `total_time`, or what its `layer_stats` add up to."""
        _time_of(mapping(profile_data, f"the profile of {node_id!r}"), node_id)
        self.node_profiles[str(node_id)] = dict(profile_data)

    def record_node_metrics(self, node_id: Any, metrics: Mapping[str, Any]) -> None:
        """Numbers of a node, under names of your own."""
        _time_of(mapping(metrics, f"metrics of {node_id!r}"), node_id)
        self.node_profiles.setdefault(str(node_id), {}).update(metrics)

    def record_communication(self, *args: Any, **given: Any) -> None:
        """One transfer; the shorter names `source, dest, size, duration, type` are taken too."""
        names = ("source_node", "dest_node", "data_size_mb", "duration_ms", "operation_type")
        told = _arguments("record_communication", names, args, given, {"operation_type": "transfer"})
        size, duration = (number(told[name], name) for name in ("data_size_mb", "duration_ms"))
        rate = size * 8 / (duration / 1e3) if duration > 0 else None  # megabits a second
        told |= {"data_size_mb": size, "duration_ms": duration, "bandwidth_mbps": rate}
        told |= {name: str(told[name]) for name in ("source_node", "dest_node")}
        self.communication_events.append(told)

    def record_synchronization(self, *args: Any, **given: Any) -> None:
        """One barrier or collective, and how long nodes waited for it."""
        names = ("node_ids", "sync_type", "duration_ms", "barrier_wait_ms")
        given = {("sync_type" if name in ("type", "operation_type") else name): value for name, value in given.items()}
        told = _arguments("record_synchronization", names, args, given, {"barrier_wait_ms": None})
        waited = told["barrier_wait_ms"]
        told["duration_ms"] = number(told["duration_ms"], "duration_ms")
        told["barrier_wait_ms"] = None if waited is None else number(waited, "barrier_wait_ms")
        nodes = told["node_ids"]
        alone = isinstance(nodes, str) or not isinstance(nodes, Iterable)
        told["node_ids"] = [str(node) for node in ([nodes] if alone else nodes)]
        self.synchronization_events.append(told)

    def _times(self) -> dict[str, float]:
        known = {node: _time_of(data, node) for node, data in self.node_profiles.items()}
        return {node: seconds for node, seconds in known.items() if seconds is not None}

    def analyze_load_balance(self) -> dict[str, Any]:
        """Who is slow, and by how much."""
        times = self._times()
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
        """Time, data and rate of the transfers, by kind."""
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
        """Time and waiting of synchronisations, by kind."""
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
        """What holds the nodes back, with what to do."""
        balance = self.analyze_load_balance()
        talking, waiting = self.analyze_communication_overhead(), self.analyze_synchronization_overhead()
        whole_ms = max(self._times().values(), default=0.0) * 1e3
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
        """All of it."""
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


def _time_of(profile: Mapping[str, Any], node: Any) -> float | None:
    """Seconds a node was busy, wherever its profile says so."""
    what = f"the time of {str(node)!r}"
    for place in (mapping(profile.get("summary") or {}, f"the summary of {node!r}"), profile):
        for name in ("total_time", "execution_time"):
            if place.get(name) is not None:
                return number(place[name], what)
    layers = mapping(profile.get("layer_stats") or {}, f"layer_stats of {node!r}").values()
    times = [mapping(each, f"a layer of {node!r}").get("total_time") for each in layers]
    return sum(number(time, what) for time in times) if times and all(time is not None for time in times) else None


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
