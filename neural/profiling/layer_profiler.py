"""How long layers take, told by whoever runs them: `start_layer` and `end_layer`, nested as the calls are."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from neuraldbg.analysis.durations import Durations
from neuraldbg.errors import UsageError

from .plain import BadMeasurement, mapping

HISTORY = 10_000  # calls that the timeline keeps
RECENT = 1_000  # times of each layer that are kept one by one


class UnpairedLayer(UsageError, ValueError):
    """`end_layer` of a layer that is not the innermost one under way."""


class _Begun:
    """A layer under way."""

    __slots__ = ("inside", "name", "start")

    def __init__(self, name: str, start: float) -> None:
        self.name, self.start = name, start
        self.inside = 0.0  # seconds of the layers that it called


class LayerProfiler:
    """Constant time and memory per call: totals and spread are carried along, only the newest calls are kept."""

    def __init__(self, *, max_history: int = HISTORY, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._max_history = max_history
        self._local = threading.local()
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forgets every call."""
        with self._lock:
            self._stats: dict[str, Durations] = {}
            self._recent: dict[str, deque[float]] = {}
            self._history: deque[dict[str, Any]] = deque(maxlen=self._max_history)
            self._cumulative = self._exported = 0.0
            self._since: dict[str, Durations] | None = None  # the last `export_newest`; None: there was none
        self._local = threading.local()

    @property
    def _stack(self) -> list[_Begun]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[_Begun] = self._local.stack
        return stack

    def start_layer(self, layer_name: str) -> None:
        """Calls may be nested; each needs its `end_layer`."""
        stack = self._stack
        stack.append(_Begun(layer_name, self._clock()))  # last: what came before is not the layer's time

    def end_layer(self, layer_name: str, metadata: dict[str, Any] | None = None) -> float:
        """Seconds since its start. Calls end in the opposite order of their start; anything else is refused, and the
        layer under way stays so."""
        now, stack = self._clock(), self._stack
        told = {} if metadata is None else dict(mapping(metadata, "metadata"))
        if not stack or stack[-1].name != layer_name:
            running = f"{stack[-1].name!r} is under way: end it first" if stack else "call start_layer first"
            raise UnpairedLayer(f"end_layer({layer_name!r}) has no start_layer; {running}")
        seconds = now - stack[-1].start
        if not 0 <= seconds < float("inf"):
            raise BadMeasurement(
                f"{layer_name!r} would have taken {seconds!r} s: look at the clock; it stays under way"
            )
        own = max(seconds - stack.pop().inside, 0.0)
        if stack:
            stack[-1].inside += seconds
        self._note(layer_name, seconds, own, told)
        return seconds

    def enter(self, layer_name: str) -> tuple[list[_Begun], int]:
        """`start_layer` of a block; what it gives goes to `leave`."""
        stack = self._stack
        stack.append(_Begun(layer_name, self._clock()))
        return stack, len(stack)

    def leave(
        self, entered: tuple[list[_Begun], int], metadata: dict[str, Any] | None = None, *, failed: bool
    ) -> float | None:
        """`end_layer` of a block. What was begun inside of one that failed ends with it. None where everything was
        forgotten meanwhile (`reset`)."""
        stack, depth = entered
        if stack is not self._stack or len(stack) < depth:
            return None
        while failed and len(stack) > depth:
            self.end_layer(stack[-1].name)
        return self.end_layer(stack[depth - 1].name, metadata)

    def _note(self, name: str, seconds: float, own: float, metadata: dict[str, Any]) -> None:
        with self._lock:
            self._stats.setdefault(name, Durations()).add(seconds)
            self._recent.setdefault(name, deque(maxlen=RECENT)).append(seconds)
            if self._since is not None:
                self._since.setdefault(name, Durations()).add(seconds)
            self._cumulative += own  # what is inside another layer is part of that one's time: counted once
            entry = {"layer": name, "execution_time": seconds, "timestamp": time.time()}
            self._history.append({**metadata, **entry, "cumulative_time": self._cumulative})

    def get_layer_stats(self, layer_name: str) -> dict[str, Any]:
        """Seconds; `execution_times` has the newest calls. Empty for a layer nobody timed."""
        with self._lock:
            told = self._stats.get(layer_name)
            return {} if told is None else {"execution_times": list(self._recent[layer_name]), **_told(told)}

    def get_percentiles(self, layer_name: str) -> dict[str, float | None]:
        """p50, p95 and p99 of all calls, within one percent."""
        with self._lock:
            told = self._stats.get(layer_name)
            return {} if told is None else {f"p{each}": told.percentile(each) for each in (50, 95, 99)}

    def get_all_stats(self) -> dict[str, dict[str, Any]]:
        """`get_layer_stats` of every layer."""
        return {name: self.get_layer_stats(name) for name in list(self._stats)}

    def get_slowest_layers(self, top_n: int = 5) -> list[tuple[str, float]]:
        """By mean time."""
        means = [(name, told.mean or 0.0) for name, told in list(self._stats.items())]
        return sorted(means, key=lambda each: -each[1])[:top_n]

    def get_most_variable_layers(self, top_n: int = 5) -> list[tuple[str, float]]:
        """By standard deviation."""
        spreads = [(name, told.std or 0.0) for name, told in list(self._stats.items())]
        return sorted(spreads, key=lambda each: -each[1])[:top_n]

    def get_execution_timeline(self) -> list[dict[str, Any]]:
        """The newest calls in the order they ended."""
        with self._lock:
            return [dict(each) for each in self._history]

    def get_summary(self) -> dict[str, Any]:
        """`total_time` has every moment once, also where layers are inside of others."""
        known = list(self._stats.values())  # another thread may add one meanwhile
        calls, taken = sum(told.count for told in known), sum(told.total for told in known)
        return {
            "total_layers": len(known),
            "total_time": self._cumulative,
            "total_calls": calls,
            "average_time_per_call": taken / calls if calls else 0.0,
            "slowest_layers": self.get_slowest_layers(),
            "most_variable_layers": self.get_most_variable_layers(),
        }

    def export_to_dict(self) -> dict[str, Any]:
        """Everything as plain data, for `ComparativeProfiler` and JSON."""
        return {
            "layer_stats": self.get_all_stats(),
            "execution_history": self.get_execution_timeline(),
            "summary": self.get_summary(),
        }

    def export_newest(self) -> dict[str, Any]:
        """What was timed since the last call of this, in the form of `export_to_dict`; without a summary where nothing
        was."""
        with self._lock:
            stats = self._stats if self._since is None else self._since
            layers = {name: _told(told) for name, told in stats.items()}
            total, self._exported = self._cumulative - self._exported, self._cumulative
            self._since = {}
        return {"layer_stats": layers, "summary": {"total_time": total}} if layers else {"layer_stats": {}}


def _told(durations: Durations) -> dict[str, Any]:
    return {
        "call_count": durations.count,
        "total_time": durations.total,
        "min_time": durations.min,
        "max_time": durations.max,
        "mean_time": durations.mean,
        "std_time": durations.std,
    }
