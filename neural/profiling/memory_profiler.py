"""Memory of the process and of the devices around layers, and whether it grows for good."""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise
from typing import Any, Final

from neuraldbg.analysis.durations import Durations
from neuraldbg.capture.resources import device_memory, rss_bytes

from .plain import BadMeasurement, number

MB: Final = 2**20
HISTORY: Final = 10_000
STEADY: Final = 0.7  # share of the steps of a window that must not fall
FALL: Final = 0.25  # of a window's rise that one step may give back


class MemoryProfiler:
    """One snapshot per `snapshot_interval` calls of `take_snapshot`; the newest are kept, the peak of all."""

    def __init__(self, *, snapshot_interval: int = 1, max_history: int = HISTORY) -> None:
        if snapshot_interval < 1:
            raise BadMeasurement(f"snapshot_interval is a number of calls from 1 on, not {snapshot_interval}")
        self.snapshot_interval = snapshot_interval
        self._max_history = max_history
        self.reset()

    def reset(self) -> None:
        """Forgets every snapshot."""
        self.snapshots: deque[dict[str, Any]] = deque(maxlen=self._max_history)
        self._stats: dict[str, tuple[Durations, Durations]] = {}  # of each layer: host, device
        self._baseline: float | None = None
        self._peak = self._gpu_peak = None  # type: float | None
        self._taken = self._asked = 0

    def start_profiling(self) -> None:
        """What is in use now is what growth is counted from."""
        self._baseline = host_mb()

    @property
    def due(self) -> bool:
        """Whether the next call of `take_snapshot` takes one."""
        return self._asked % self.snapshot_interval == 0

    def take_snapshot(self, layer_name: str, metadata: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """None between two snapshots where `snapshot_interval` is above 1."""
        due = self.due
        self._asked += 1
        if not due:
            return None
        host = host_mb()
        if self._baseline is None:
            self._baseline = host
        delta = None if host is None or self._baseline is None else host - self._baseline
        taken = {**(metadata or {}), "layer": layer_name, "timestamp": time.time()}
        taken |= {"cpu_memory_mb": host, "memory_delta_mb": delta, **_gpu_mb()}
        self._keep(layer_name, taken)
        return dict(taken)

    def _keep(self, layer: str, taken: dict[str, Any]) -> None:
        self.snapshots.append(taken)
        self._taken += 1
        on_host, on_device = self._stats.setdefault(layer, (Durations(), Durations()))
        host, device = taken["cpu_memory_mb"], taken.get("gpu_memory_mb")
        if host is not None:
            on_host.add(host)
            self._peak = max(self._peak or 0.0, host)
        if device is not None:
            on_device.add(device)
            self._gpu_peak = max(self._gpu_peak or 0.0, taken["gpu_peak_mb"])

    def get_memory_growth(self) -> list[dict[str, Any]]:
        """From each snapshot to the next."""
        found = []
        before: float | None = None
        for taken in list(self.snapshots):  # another thread may add one meanwhile
            now = taken["cpu_memory_mb"]
            if before is not None and now is not None:
                grown = {"layer": taken["layer"], "timestamp": taken["timestamp"]}
                found.append({**grown, "memory_growth_mb": now - before})
            before = now if now is not None else before
        return found

    def get_layer_memory_stats(self, layer_name: str) -> dict[str, Any]:
        """Empty for a layer without snapshots."""
        known = self._stats.get(layer_name)
        if known is None or not known[0].count:
            return {}
        host, device = known
        told = {
            "layer": layer_name,
            "call_count": host.count,
            "mean_memory_mb": host.mean,
            "std_memory_mb": host.std,
            "min_memory_mb": host.min,
            "max_memory_mb": host.max,
        }
        on_device = {"mean_gpu_memory_mb": device.mean, "max_gpu_memory_mb": device.max} if device.count else {}
        return {**told, **on_device}

    def get_summary(self) -> dict[str, Any]:
        """Baseline, peak and growth; of the GPU where there is one."""
        last = self.snapshots[-1]["cpu_memory_mb"] if self.snapshots else None
        grown = None if last is None or self._baseline is None else last - self._baseline
        told = {
            "baseline_memory_mb": self._baseline,
            "peak_memory_mb": self._peak,
            "total_snapshots": self._taken,
            "memory_growth": grown,
        }
        return told if self._gpu_peak is None else {**told, "peak_gpu_memory_mb": self._gpu_peak}

    def export_to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        layers = {name: self.get_layer_memory_stats(name) for name in list(self._stats)}
        return {
            "snapshots": [dict(each) for each in list(self.snapshots)],
            "layers": layers,
            "summary": self.get_summary(),
        }


class MemoryLeakDetector:
    """Growth by more than `threshold_mb`, seen over windows of `window_size` measurements that do not overlap: what was
    counted once is not counted again, and what is given back later was no leak."""

    def __init__(self, threshold_mb: float = 10.0, window_size: int = 10) -> None:
        if not threshold_mb > 0 or window_size < 2:
            raise BadMeasurement("threshold_mb is above 0 and window_size 2 or more")
        self.threshold_mb = threshold_mb
        self.window_size = window_size
        self.reset()

    def reset(self) -> None:
        """Forgets every measurement."""
        self._window: list[tuple[str, float, float]] = []  # layer, MB, when; since the last window ended
        self._anchor: tuple[float, int] | None = None  # level that growth is counted from, and at which measurement
        self._layers: dict[str, None] = {}  # since the anchor, in order
        self._count = 0
        self._leaks: list[dict[str, Any]] = []

    def add_measurement(self, layer_name: str, memory_mb: float, timestamp: float | None = None) -> None:
        """MB in use, after this layer."""
        memory_mb = number(memory_mb, "memory in MB")
        self._count += 1
        when = time.time() if timestamp is None else timestamp
        if self._anchor is None:
            self._anchor = (memory_mb, self._count)
        self._window.append((layer_name, memory_mb, when))
        self._layers[layer_name] = None
        if len(self._window) > self.window_size:  # its first one was the last of the window before
            self._close_window()

    def _close_window(self) -> None:
        levels = [level for _, level, _ in self._window]
        assert self._anchor is not None
        start, _ = self._anchor
        self._leaks = [leak for leak in self._leaks if min(levels) > leak["start_memory_mb"] + leak["increase_mb"] / 2]
        if levels[-1] < start:
            self._move_anchor(levels[-1])
        elif levels[-1] - start > self.threshold_mb and _steady(levels):
            self._leaks.append(self._leak())
            self._move_anchor(levels[-1])
        self._window = self._window[-1:]

    def _leak(self) -> dict[str, Any]:
        """From the anchor to the newest measurement."""
        assert self._anchor is not None
        (start, since), (_, level, when) = self._anchor, self._window[-1]
        steps = max(self._count - since, 1)
        return {
            "start_memory_mb": start,
            "end_memory_mb": level,
            "increase_mb": level - start,
            "window_size": steps,
            "layers_involved": list(self._layers),
            "timestamp": when,
            "growth_rate_mb_per_step": (level - start) / steps,
        }

    def _move_anchor(self, level: float) -> None:
        self._anchor = (level, self._count)
        self._layers = {self._window[-1][0]: None}

    def has_leaks(self) -> bool:
        """Whether memory grew by the threshold within a window and was not given back."""
        return bool(self._leaks)

    def get_leaks(self) -> list[dict[str, Any]]:
        """The last one with what has been added to it since."""
        found = [dict(each) for each in self._leaks]
        levels, since = [level for _, level, _ in self._window], self._anchor
        growing = since is not None and found and since[0] == found[-1]["end_memory_mb"] < levels[-1]
        if growing and _steady([found[-1]["end_memory_mb"], *levels]):
            grown, last = self._leak(), found[-1]
            steps = last["window_size"] + grown["window_size"]
            rise = grown["end_memory_mb"] - last["start_memory_mb"]
            layers = list(dict.fromkeys([*last["layers_involved"], *grown["layers_involved"]]))
            found[-1] = {**grown, "start_memory_mb": last["start_memory_mb"], "increase_mb": rise}
            found[-1] |= {"window_size": steps, "layers_involved": layers, "growth_rate_mb_per_step": rise / steps}
        return found

    def get_summary(self) -> dict[str, Any]:
        """Whether, how many and how much; the leaks themselves where there are some."""
        leaks = self.get_leaks()
        if not leaks:
            return {"has_leaks": False, "leak_count": 0}
        return {
            "has_leaks": True,
            "leak_count": len(leaks),
            "total_memory_leaked_mb": sum(each["increase_mb"] for each in leaks),
            "average_growth_rate": sum(each["growth_rate_mb_per_step"] for each in leaks) / len(leaks),
            "leaks": leaks,
        }


def _steady(levels: list[float]) -> bool:
    """Nearly always up, and never down by much: what comes and goes is no growth."""
    changes = [later - before for before, later in pairwise(levels)]
    rising = sum(change >= 0 for change in changes) / len(changes)
    return rising >= STEADY and -min(changes) <= FALL * max(levels[-1] - levels[0], 0.0)


def host_mb() -> float | None:
    """Memory of the process."""
    used = rss_bytes()
    return None if used is None else used / MB


def _gpu_mb() -> dict[str, float]:
    told = device_memory()
    if told is None:
        return {}
    names = {"gpu_memory_mb": "allocated", "gpu_reserved_mb": "reserved", "gpu_peak_mb": "peak"}
    return {name: told[key] / MB for name, key in names.items()}
