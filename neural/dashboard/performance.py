"""Timing by hand: `start_layer` and `end_layer`, nested as the calls are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from neuraldbg.errors import UsageError


class UnpairedLayer(UsageError, ValueError):
    """`end_layer` of a layer that is not the innermost one under way."""


class PerformanceProfiler:
    """`layer_profiles` has the totals of every layer, `flame_data` every call; both grow until `clear()`.

    Each thread has its own `call_stack`. `on_end(name, start_ns, duration_ns, depth)` hears of every call.
    """

    def __init__(self, *, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.layer_profiles: dict[str, dict[str, Any]] = {}
        self.flame_data: list[dict[str, Any]] = []
        self.on_end: list[Callable[[str, int, int, int], None]] = []
        self._clock_ns = clock_ns
        self._began_ns: int | None = None
        self._local = threading.local()
        self._lock = threading.Lock()

    @property
    def call_stack(self) -> list[tuple[str, int]]:
        """The layers under way in this thread, innermost last, with when they began."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[tuple[str, int]] = self._local.stack
        return stack

    def start_layer(self, layer_name: str) -> None:
        """Calls may be nested; each needs its `end_layer`."""
        now = self._clock_ns()
        if self._began_ns is None:
            self._began_ns = now
        self.call_stack.append((layer_name, now))

    def end_layer(self, layer_name: str) -> float:
        """Seconds since its start. Calls end in the opposite order of their start."""
        now, stack = self._clock_ns(), self.call_stack
        if not stack or stack[-1][0] != layer_name:
            running = f"{stack[-1][0]!r} is under way: end it first" if stack else "call start_layer first"
            raise UnpairedLayer(f"end_layer({layer_name!r}) has no start_layer; {running}")
        _, start = stack.pop()
        self._note(layer_name, start, now - start, len(stack))
        for notice in self.on_end:
            notice(layer_name, start, now - start, len(stack))
        return (now - start) / 1e9

    def _note(self, name: str, start_ns: int, duration_ns: int, depth: int) -> None:
        seconds, began = duration_ns / 1e9, self._began_ns or 0
        with self._lock:
            known = self.layer_profiles.setdefault(
                name, {"total_time": 0.0, "call_count": 0, "min_time": seconds, "max_time": seconds}
            )
            known["total_time"] += seconds
            known["call_count"] += 1
            known["min_time"] = min(known["min_time"], seconds)
            known["max_time"] = max(known["max_time"], seconds)
            start = (start_ns - began) / 1e9
            self.flame_data.append(
                {"name": name, "start": start, "end": start + seconds, "duration": seconds, "depth": depth}
            )

    def get_summary(self) -> dict[str, dict[str, Any]]:
        """By layer: total, calls, smallest, largest and mean time in seconds."""
        with self._lock:
            return {
                name: {**each, "avg_time": each["total_time"] / each["call_count"]}
                for name, each in self.layer_profiles.items()
            }

    def get_flame_graph_data(self) -> list[dict[str, Any]]:
        """Every call once, in the order they began, in seconds since the first one."""
        with self._lock:
            return sorted((dict(each) for each in self.flame_data), key=lambda each: (each["start"], each["depth"]))

    def clear(self) -> None:
        """Forgets what is over; calls under way go on."""
        with self._lock:
            self.layer_profiles.clear()
            self.flame_data.clear()
            self._began_ns = self.call_stack[0][1] if self.call_stack else None
