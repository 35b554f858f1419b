"""The GPUs around layers: how busy, how full, how warm. Without one nothing is told, and nothing is made up."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Final

import numpy as np

from neuraldbg.capture.resources import Nvml, device_memory, device_names

MB: Final = 2**20
HISTORY: Final = 10_000
INTERVAL_S: Final = 0.1
LOW_PERCENT, HOT_CELSIUS = 50.0, 83.0
UNEVEN, RESERVED, NEAR_FULL = 0.5, 2.0, 0.9
_NAMES: Final = {
    "gpu_utilization_percent": "utilization_percent",
    "memory_utilization_percent": "memory_utilization_percent",
    "temperature_celsius": "temperature_celsius",
    "power_watts": "power_watts",
    "sm_clock_mhz": "sm_clock_mhz",
    "throttled_power": "throttled_power",
    "throttled_heat": "throttled_heat",
}


class GPUUtilizationProfiler:
    """Reads the driver on a thread of its own, opened with the first measurement and ended by `close()`; a measurement
    takes the newest reading and waits for nothing."""

    def __init__(self, *, max_history: int = HISTORY, interval_s: float = INTERVAL_S) -> None:
        self._max_history, self._interval_s = max_history, interval_s
        self._latest: dict[str, float | None] = {}
        self._stop = threading.Event()
        self._first = threading.Event()
        self._thread: threading.Thread | None = None
        self.reset()

    def reset(self) -> None:
        """Forgets every measurement."""
        self.measurements: deque[dict[str, Any]] = deque(maxlen=self._max_history)
        self.memory_snapshots: deque[dict[str, Any]] = deque(maxlen=self._max_history)

    def close(self) -> None:
        """Ends the thread. A later measurement begins another."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join(2.0)

    def _read_along(self) -> None:
        if self._thread is None:
            self._stop, self._first = threading.Event(), threading.Event()
            self._thread = threading.Thread(target=self._run, name="neuraldbg-gpu", daemon=True)
            self._thread.start()
            self._first.wait(2.0)

    def _run(self) -> None:
        stop, first = self._stop, self._first
        nvml = Nvml.found()
        try:
            while nvml is not None:
                self._latest = dict(nvml())
                first.set()
                if stop.wait(self._interval_s):
                    break
        finally:
            first.set()
            if nvml is not None:
                nvml.close()

    def record_gpu_metrics(self, layer_name: str, device_id: int = 0) -> dict[str, Any] | None:
        """None without CUDA, or where there is no such device."""
        used = _used(device_id)
        if used is None:
            return None
        self._read_along()
        told: dict[str, Any] = {
            "layer": layer_name,
            "device_id": device_id,
            "timestamp": time.time(),
            "memory_allocated_mb": used["allocated"] / MB,
            "memory_reserved_mb": used["reserved"] / MB,
            "memory_cached_mb": (used["reserved"] - used["allocated"]) / MB,
            "gpu_utilization_percent": None,
            "memory_utilization_percent": None,
        }
        told |= self._newest(device_id)
        self.measurements.append(told)
        return dict(told)

    def _newest(self, device_id: int) -> dict[str, float]:
        """What the driver told last. It numbers all devices of the machine, torch those it may use, in their order."""
        latest = self._latest
        devices = list(dict.fromkeys(name.partition(".")[0] for name in latest))
        if device_id >= len(devices):
            return {}
        read = {name: latest.get(f"{devices[device_id]}.{key}") for name, key in _NAMES.items()}
        return {name: value for name, value in read.items() if value is not None}

    def record_memory_snapshot(self, label: str = "", device_id: int = 0) -> dict[str, Any] | None:
        """Memory of a device now; None without CUDA."""
        used = _used(device_id)
        if used is None:
            return None
        told = {"label": label, "device_id": device_id, "timestamp": time.time()}
        told |= {f"memory_{name}_mb": value / MB for name, value in used.items()}
        self.memory_snapshots.append(told)
        return dict(told)

    def get_layer_gpu_stats(self, layer_name: str) -> dict[str, Any]:
        """Means and peaks of one layer."""
        mine = [each for each in list(self.measurements) if each["layer"] == layer_name]
        if not mine:
            return {}
        told: dict[str, Any] = {"layer": layer_name, "call_count": len(mine)}
        for name in ("memory_allocated_mb", "gpu_utilization_percent", "temperature_celsius", "power_watts"):
            values = _known(mine, name)
            if values:
                told |= {f"mean_{name}": float(np.mean(values)), f"max_{name}": float(np.max(values))}
        return told

    def get_utilization_summary(self) -> dict[str, Any]:
        """Of all measurements; what no device told is absent."""
        names = device_names()
        mine = list(self.measurements)
        told: dict[str, Any] = {
            "torch_available": bool(names),
            "device_count": len(names),
            "measurements": len(mine),
        }
        if not mine:
            return told
        used, busy = _known(mine, "memory_allocated_mb"), _known(mine, "gpu_utilization_percent")
        told |= {"device_names": names, "mean_memory_allocated_mb": float(np.mean(used))}
        told["peak_memory_allocated_mb"] = float(np.max(used))
        if busy:
            told |= {f"{how}_gpu_utilization_percent": float(getattr(np, how)(busy)) for how in ("mean", "min", "max")}
            told["utilization_warning"] = bool(np.mean(busy) < LOW_PERCENT)
        for name in ("temperature_celsius", "power_watts"):
            values = _known(mine, name)
            if values:
                told |= {f"{how}_{name}": float(getattr(np, how)(values)) for how in ("mean", "max")}
        return told

    def detect_memory_inefficiency(self) -> dict[str, Any]:
        """Memory that swings, lies idle or is nearly full."""
        mine = list(self.measurements)
        issues: list[dict[str, Any]] = []
        if len(mine) > 1:
            used = np.array(_known(mine, "memory_allocated_mb"))
            mean, spread = float(used.mean()), float(used.std())
            if mean > 0 and spread / mean > UNEVEN:
                told = {"mean_mb": mean, "std_mb": spread}
                issues.append({"type": "high_variance", **told, "description": "memory in use varies widely"})
            reserved = float(np.mean(_known(mine, "memory_reserved_mb")))
            if mean > 0 and reserved / mean > RESERVED:
                told = {"allocated_mb": mean, "reserved_mb": reserved}
                text = "most of what is reserved is not in use: fragmented, or a peak long past"
                issues.append({"type": "underutilization", **told, "description": text})
            if mean > 0 and float(used.max()) > 2 * mean:
                told = {"peak_mb": float(used.max()), "mean_mb": mean}
                issues.append({"type": "peak_memory", **told, "description": "one peak decides how much is needed"})
        return {"has_issues": True, "issue_count": len(issues), "issues": issues} if issues else {"has_issues": False}

    def get_recommendations(self) -> list[dict[str, Any]]:
        """What to do about it."""
        told = self.get_utilization_summary()
        found = []
        busy = told.get("mean_gpu_utilization_percent")
        if busy is not None and busy < LOW_PERCENT:
            text = f"the GPU is {busy:.0f} % busy: larger batches, more loader workers, or fewer host synchronisations"
            found.append(_advice("utilization", "high", text))
        warm = told.get("max_temperature_celsius")
        if warm is not None and warm > HOT_CELSIUS:
            found.append(_advice("temperature", "medium", f"{warm:.0f} C: look at the cooling, clocks may be lowered"))
        if any(each.get("throttled_power") for each in list(self.measurements)):
            found.append(_advice("power", "medium", "clocks were lowered for power: raise the limit, or expect less"))
        for issue in self.detect_memory_inefficiency().get("issues", ()):
            found.append(_advice("memory", "medium", issue["description"]))
        return found


def _used(device_id: int) -> dict[str, int] | None:
    return device_memory(device_id) if 0 <= device_id < len(device_names()) else None


def _known(rows: list[dict[str, Any]], name: str) -> list[float]:
    return [each[name] for each in rows if each.get(name) is not None]


def _advice(category: str, priority: str, text: str) -> dict[str, Any]:
    return {"category": category, "priority": priority, "recommendation": text}
