"""How long layers take, told by whoever runs them: `start_layer` and `end_layer`, nested as the calls are."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from neuraldbg.analysis.durations import Durations
from neuraldbg.errors import UsageError

HISTORY = 10_000  # calls that the timeline keeps
RECENT = 1_000  # times of each layer that are kept one by one


class UnpairedLayer(UsageError, ValueError):
    """`end_layer` of a layer that is not the innermost one under way."""


class LayerProfiler:
    """Constant time and memory per call: totals and spread are carried along, only the newest calls are kept."""

    def __init__(self, *, max_history: int = HISTORY, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._max_history = max_history
        self._local = threading.local()
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        with self._lock:
            self._stats: dict[str, Durations] = {}
            self._recent: dict[str, deque[float]] = {}
            self._history: deque[dict[str, Any]] = deque(maxlen=self._max_history)
            self._cumulative = 0.0
        self._local = threading.local()

    @property
    def _stack(self) -> list[tuple[str, float]]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[tuple[str, float]] = self._local.stack
        return stack

    def start_layer(self, layer_name: str) -> None:
        stack = self._stack
        stack.append((layer_name, self._clock()))  # last: what came before is not the layer's time

    def end_layer(self, layer_name: str, metadata: dict[str, Any] | None = None) -> float:
        """Seconds since its start. Calls end in the opposite order of their start; anything else is refused, and the
        layer under way stays so."""
        now, stack = self._clock(), self._stack
        if not stack or stack[-1][0] != layer_name:
            running = f"{stack[-1][0]!r} is under way: end it first" if stack else "call start_layer first"
            raise UnpairedLayer(f"end_layer({layer_name!r}) has no start_layer; {running}")
        _, start = stack.pop()
        self._note(layer_name, now - start, metadata)
        return now - start

    def _note(self, name: str, seconds: float, metadata: dict[str, Any] | None) -> None:
        with self._lock:
            self._stats.setdefault(name, Durations()).add(seconds)
            self._recent.setdefault(name, deque(maxlen=RECENT)).append(seconds)
            if not self._stack:  # what is inside another layer is part of that one's time
                self._cumulative += seconds
            entry = {"layer": name, "execution_time": seconds, "timestamp": time.time()}
            self._history.append({**(metadata or {}), **entry, "cumulative_time": self._cumulative})

    def get_layer_stats(self, layer_name: str) -> dict[str, Any]:
        """Seconds; `execution_times` has the newest calls. Empty for a layer nobody timed."""
        with self._lock:
            told = self._stats.get(layer_name)
            if told is None:
                return {}
            return {
                "execution_times": list(self._recent[layer_name]),
                "call_count": told.count,
                "total_time": told.total,
                "min_time": told.min,
                "max_time": told.max,
                "mean_time": told.mean,
                "std_time": told.std,
            }

    def get_percentiles(self, layer_name: str) -> dict[str, float | None]:
        """p50, p95 and p99 of all calls, within one percent."""
        told = self._stats.get(layer_name)
        return {} if told is None else {f"p{each}": told.percentile(each) for each in (50, 95, 99)}

    def get_all_stats(self) -> dict[str, dict[str, Any]]:
        return {name: self.get_layer_stats(name) for name in list(self._stats)}

    def get_slowest_layers(self, top_n: int = 5) -> list[tuple[str, float]]:
        """By mean time."""
        means = [(name, told.mean or 0.0) for name, told in self._stats.items()]
        return sorted(means, key=lambda each: -each[1])[:top_n]

    def get_most_variable_layers(self, top_n: int = 5) -> list[tuple[str, float]]:
        """By standard deviation."""
        spreads = [(name, told.std or 0.0) for name, told in self._stats.items()]
        return sorted(spreads, key=lambda each: -each[1])[:top_n]

    def get_execution_timeline(self) -> list[dict[str, Any]]:
        """The newest calls in the order they ended."""
        with self._lock:
            return [dict(each) for each in self._history]

    def get_summary(self) -> dict[str, Any]:
        calls = sum(told.count for told in self._stats.values())
        total = sum(told.total for told in self._stats.values())
        return {
            "total_layers": len(self._stats),
            "total_time": total,
            "total_calls": calls,
            "average_time_per_call": total / calls if calls else 0.0,
            "slowest_layers": self.get_slowest_layers(),
            "most_variable_layers": self.get_most_variable_layers(),
        }

    def export_to_dict(self) -> dict[str, Any]:
        return {
            "layer_stats": self.get_all_stats(),
            "execution_history": self.get_execution_timeline(),
            "summary": self.get_summary(),
        }
