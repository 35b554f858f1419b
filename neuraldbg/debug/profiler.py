"""The profiler of a session: named timers and layers told by hand, in constant time and memory each."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from neuraldbg.analysis.durations import Durations
from neuraldbg.analysis.results import Result
from neuraldbg.capture.resources import rss_bytes
from neuraldbg.debug.record import Record
from neuraldbg.errors import UsageError, nearest
from neuraldbg.records import Phase

MOST_NAMES: Final = 10_000
DOMINANT: Final = 0.25  # share of the layers' time
BACKWARD_HEAVY: Final = 3.0  # times the forward
LARGE: Final = 0.5  # share of all layers' memory
FEWEST: Final = 3  # layers among which one can dominate
UNEVEN: Final = 0.5  # std over mean
SLOWEST: Final = 10


class BottleneckType(Enum):
    """What holds a training back. From what was told by hand DataLoading, ModelComputation, GradientComputation and
    MemoryBound can be concluded; the others are words for bottlenecks of your own."""

    CpuBound = "cpu_bound"
    MemoryBound = "memory_bound"
    IoBound = "io_bound"
    GpuBound = "gpu_bound"
    NetworkBound = "network_bound"
    DataLoading = "data_loading"
    ModelComputation = "model_computation"
    GradientComputation = "gradient_computation"


@dataclass(frozen=True, eq=False)
class Bottleneck(Result):
    name: str
    type: BottleneckType
    share: float  # of the time (or memory) that was told
    message: str
    suggestion: str


@dataclass(frozen=True, eq=False)
class ProfilerReport(Result):
    """Seconds. `memory_efficiency`: bytes of parameters over the bytes that layers were told to use; None without."""

    total_events: int
    total_runtime: float
    statistics: dict[str, dict[str, float | None]]
    bottlenecks: tuple[Bottleneck, ...]
    slowest_layers: tuple[tuple[str, float], ...]
    memory_efficiency: float | None
    recommendations: tuple[str, ...]


@dataclass(slots=True)
class _Layer:
    type: str
    forward: Durations = field(default_factory=Durations)
    backward: Durations = field(default_factory=Durations)
    memory: Durations = field(default_factory=Durations)
    parameters: int = 0


class Profiler:
    """`start_timer(name)`, `end_timer(name)`; also `with profiler.timed(name):`. Nested and in any thread."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._timers: dict[str, Durations] = {}
        self._layers: dict[str, _Layer] = {}
        self._local = threading.local()
        self._lock = threading.RLock()
        self._began = time.perf_counter()
        self._events = 0

    def __call__(self) -> Profiler:
        return self

    def _running(self) -> dict[str, list[int]]:
        if not hasattr(self._local, "running"):
            self._local.running = {}
        running: dict[str, list[int]] = self._local.running
        return running

    def start_timer(self, name: str) -> None:
        """Of this thread; the same name may run several times, nested."""
        self._running().setdefault(name, []).append(time.perf_counter_ns())

    def end_timer(self, name: str) -> float:
        """Seconds since the last `start_timer(name)` of this thread."""
        now, running = time.perf_counter_ns(), self._running()
        if not running.get(name):
            near = nearest(name, [one for one, starts in running.items() if starts], 1)
            hint = f"did you mean {near[0]!r}?" if near else f"call start_timer({name!r}) first"
            raise UsageError(f"no timer {name!r} is running in this thread; {hint}")
        took = now - running[name].pop()
        if not running[name]:
            del running[name]
        with self._lock:
            if name in self._timers or len(self._timers) < MOST_NAMES:
                self._timers.setdefault(name, Durations()).add(took / 1e9)
            self._events += 1
        self._record.span(name, Phase.FORWARD, took)
        return took / 1e9

    def timed(self, name: str) -> _Timed:
        """`with profiler.timed("data loading") as it: ...`, then `it.seconds`."""
        return _Timed(self, name)

    def record_layer_execution(
        self,
        layer: str,
        layer_type: str,
        forward_time: float,
        backward_time: float | None = None,
        memory_usage: int | None = None,
        parameter_count: int | None = None,
    ) -> None:
        """Seconds and bytes, as somebody measured them."""
        with self._lock:
            if layer not in self._layers and len(self._layers) >= MOST_NAMES:
                return
            one = self._layers.setdefault(layer, _Layer(layer_type))
            one.forward.add(_seconds(forward_time))
            if backward_time is not None:
                one.backward.add(_seconds(backward_time))
            if memory_usage is not None:
                one.memory.add(float(memory_usage))
            one.parameters = parameter_count or one.parameters
            self._events += 1
        size = {} if memory_usage is None else {"host_bytes": int(memory_usage)}
        self._record.span(layer, Phase.FORWARD, int(_seconds(forward_time) * 1e9), **size)
        if backward_time is not None:
            self._record.span(layer, Phase.BACKWARD, int(_seconds(backward_time) * 1e9))

    def memory_mb(self) -> float | None:
        """Of the process, now."""
        used = rss_bytes()
        return None if used is None else used / 2**20

    def clear(self) -> None:
        """Forgets every timer and layer."""
        with self._lock:
            self._timers.clear()
            self._layers.clear()
            self._events = 0
        self._began = time.perf_counter()

    # -- asking ------------------------------------------------------------------------------------------------------

    def report(self) -> ProfilerReport:
        """What was timed and told so far."""
        with self._lock:
            timers = {name: one.told() for name, one in self._timers.items()}
            layers = dict(self._layers)
            total = {name: one.forward.total + one.backward.total for name, one in layers.items()}
            found = tuple(_bottlenecks(layers, total, self._timers))
            used = sum(one.memory.mean or 0.0 for one in layers.values())
            weights = 4 * sum(one.parameters for one in layers.values())
        slowest = sorted(total.items(), key=lambda each: -each[1])[:SLOWEST]
        forward = {f"{name} forward": one.forward.told() for name, one in layers.items()}
        backward = {f"{name} backward": one.backward.told() for name, one in layers.items() if one.backward.count}
        return ProfilerReport(
            total_events=self._events,
            total_runtime=time.perf_counter() - self._began,
            statistics={**timers, **forward, **backward},
            bottlenecks=found,
            slowest_layers=tuple(slowest),
            memory_efficiency=min(weights / used, 1.0) if used and weights else None,
            recommendations=tuple(dict.fromkeys(one.suggestion for one in found)),
        )


def _seconds(given: Any) -> float:
    """Of a number, or of a timedelta."""
    seconds = given.total_seconds() if hasattr(given, "total_seconds") else float(given)
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"a time is a number of seconds from 0 on, not {given!r}")
    return float(seconds)


def _bottlenecks(layers: dict[str, _Layer], total: dict[str, float], timers: dict[str, Durations]) -> list[Bottleneck]:
    found, everything = [], sum(total.values())
    for name, one in layers.items():
        share = total[name] / everything if everything else 0.0
        if len(layers) >= FEWEST and share > DOMINANT:
            text = f"{name} takes {share:.0%} of the layers' time"
            cure = f"{name}: lower its precision, fuse its operations or compile it"
            found.append(Bottleneck(name, BottleneckType.ModelComputation, share, text, cure))
        forward, backward = one.forward.mean or 0.0, one.backward.mean or 0.0
        if forward > 0 and backward > BACKWARD_HEAVY * forward:
            text = f"the backward of {name} takes {backward / forward:.1f} times its forward"
            cure = f"{name}: look for recomputation or scattered gradients in its backward"
            found.append(Bottleneck(name, BottleneckType.GradientComputation, share, text, cure))
    sizes = {name: one.memory.mean or 0.0 for name, one in layers.items()}
    for name, size in sizes.items():
        if len(layers) >= FEWEST and size > LARGE * sum(sizes.values()) > 0:
            share = size / sum(sizes.values())
            text = f"{name} uses {share:.0%} of the layers' memory"
            found.append(
                Bottleneck(name, BottleneckType.MemoryBound, share, text, f"{name}: checkpoint its activations")
            )
    waited = {name: one.total for name, one in timers.items() if "data" in name.lower() or "load" in name.lower()}
    timed = sum(one.total for one in timers.values())
    for name, seconds in waited.items():
        if timed and seconds > DOMINANT * timed:
            text = f"{name} takes {seconds / timed:.0%} of what was timed"
            cure = f"{name}: load ahead in other processes (num_workers)"
            found.append(Bottleneck(name, BottleneckType.DataLoading, seconds / timed, text, cure))
    return found


class _Timed:
    def __init__(self, profiler: Profiler, name: str) -> None:
        self._profiler, self._name = profiler, name
        self.seconds: float | None = None

    def __enter__(self) -> _Timed:
        self._profiler.start_timer(self._name)
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = self._profiler.end_timer(self._name)
