"""All profilers behind one door."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from neuraldbg.errors import nearest

from .bottleneck_analyzer import BottleneckAnalyzer
from .comparative_profiler import ComparativeProfiler
from .distributed_profiler import DistributedTrainingProfiler
from .gpu_profiler import GPUUtilizationProfiler
from .layer_profiler import LayerProfiler
from .memory_profiler import MemoryLeakDetector, MemoryProfiler, host_mb
from .plain import BadMeasurement, mapping, number_or_none, plain_json

Report = dict[str, Any]
KINDS: Final = {  # name -> attribute
    "layer": "layer_profiler",
    "memory": "memory_profiler",
    "leak": "memory_leak_detector",
    "bottleneck": "bottleneck_analyzer",
    "comparative": "comparative_profiler",
    "distributed": "distributed_profiler",
    "gpu": "gpu_profiler",
}


class ProfilerManager:
    """`with manager.profile_layer(name):` around each layer; before `start_profiling`, nested and in threads as well.

    `snapshot_interval`: of how many layers one has its memory looked at.
    """

    def __init__(self, enable_all: bool = True, *, snapshot_interval: int = 1) -> None:
        self.layer_profiler: LayerProfiler | None = None
        self.memory_profiler: MemoryProfiler | None = None
        self.memory_leak_detector: MemoryLeakDetector | None = None
        self.bottleneck_analyzer: BottleneckAnalyzer | None = None
        self.comparative_profiler: ComparativeProfiler | None = None
        self.distributed_profiler: DistributedTrainingProfiler | None = None
        self.gpu_profiler: GPUUtilizationProfiler | None = None
        self.snapshot_interval = snapshot_interval
        self._started: float | None = None
        self._ended: float | None = None
        self._lock = threading.Lock()  # around what looks at more than the clock
        for name in KINDS if enable_all else ():
            self.enable_profiler(name)

    def enable_profiler(self, profiler_name: str) -> None:
        """One that is enabled already keeps what it has."""
        if profiler_name not in KINDS:
            near = nearest(profiler_name, KINDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(KINDS)}"
            raise BadMeasurement(f"no profiler {profiler_name!r}; {hint}")
        if getattr(self, KINDS[profiler_name]) is None:
            setattr(self, KINDS[profiler_name], self._make(profiler_name))

    def _make(self, name: str) -> Any:
        if name == "memory":
            return MemoryProfiler(snapshot_interval=self.snapshot_interval)
        kinds: dict[str, type] = {
            "layer": LayerProfiler,
            "leak": MemoryLeakDetector,
            "bottleneck": BottleneckAnalyzer,
            "comparative": ComparativeProfiler,
            "distributed": DistributedTrainingProfiler,
            "gpu": GPUUtilizationProfiler,
        }
        return kinds[name]()

    def start_profiling(self) -> None:
        """Begins a session; layers may also be profiled without."""
        self._started, self._ended = time.time(), None
        if self.memory_profiler is not None:
            self.memory_profiler.start_profiling()

    def end_profiling(self) -> None:
        """Ends it; what was measured stays."""
        self._ended = time.time()
        if self.gpu_profiler is not None:
            self.gpu_profiler.close()

    @contextmanager
    def profile_layer(self, layer_name: str, metadata: Report | None = None) -> Iterator[ProfilerManager]:
        """Times what is inside. What it raises passes on, and its time is kept, with that of layers begun in it."""
        if metadata is not None:
            mapping(metadata, "metadata")
        if self._started is None:
            self.start_profiling()
        timer = LayerProfiler() if self.layer_profiler is None else self.layer_profiler
        before_mb = host_mb() if self.memory_profiler is not None and self.memory_profiler.due else None
        entered, failed = timer.enter(layer_name), False
        try:
            yield self
        except BaseException:
            failed = True
            raise
        finally:
            seconds = timer.leave(entered, metadata, failed=failed)
            if seconds is not None:
                with self._lock:
                    self._look_around(layer_name, seconds, metadata, before_mb)

    def _look_around(self, layer: str, seconds: float, metadata: Report | None, before_mb: float | None) -> None:
        """`before_mb`: what the process used when the layer began, of which nothing is the layer's."""
        metrics: Report = {"execution_time": seconds}
        if self.memory_profiler is not None:
            used = (self.memory_profiler.take_snapshot(layer, metadata) or {}).get("cpu_memory_mb")
        else:
            used = None if self.memory_leak_detector is None else host_mb()
        if used is not None and self.memory_leak_detector is not None:
            self.memory_leak_detector.add_measurement(layer, used)
        if used is not None and before_mb is not None:
            metrics["memory_usage"] = max(used - before_mb, 0.0)
        if self.gpu_profiler is not None:
            read = self.gpu_profiler.record_gpu_metrics(layer)
            if read is not None:
                metrics["gpu_utilization"] = read["gpu_utilization_percent"]
        if metadata is not None and number_or_none(metadata.get("io_operations")) is not None:
            metrics["io_operations"] = metadata["io_operations"]
        if self.bottleneck_analyzer is not None:
            self.bottleneck_analyzer.record_layer_metrics(layer, metrics)

    # -- what they found ---------------------------------------------------------------------------------------------

    def analyze_bottlenecks(self) -> Report:
        """What `BottleneckAnalyzer.analyze` says of the layers so far."""
        if self.bottleneck_analyzer is None:
            return {"error": "the bottleneck analyzer is not enabled: enable_profiler('bottleneck')"}
        return self.bottleneck_analyzer.analyze()

    def compare_backends(self, backend_name: str) -> None:
        """What the layers took since the last call of this is the profile of the backend; `get_comparison_results`
        compares."""
        self.enable_profiler("comparative")
        assert self.comparative_profiler is not None
        data: Report = {"layer_stats": {}} if self.layer_profiler is None else self.layer_profiler.export_newest()
        self.comparative_profiler.add_backend_profile(backend_name, data)

    def get_comparison_results(self, backends: Sequence[str] | None = None) -> Report:
        """What `compare_backends` has recorded, compared."""
        if self.comparative_profiler is None:
            return {"error": "nothing to compare: call compare_backends(name) after each", "available_backends": []}
        return self.comparative_profiler.compare_backends(backends)

    def get_comprehensive_report(self) -> Report:
        """What every enabled profiler has, as JSON can say it: a NaN in metadata is "nan"."""
        ended = self._ended if self._ended is not None or self._started is None else time.time()
        lasted = None if self._started is None or ended is None else ended - self._started
        told: Report = {
            "profiling_session": {"start_time": self._started, "end_time": self._ended, "duration_seconds": lasted}
        }
        if self.layer_profiler is not None:
            told["layer_profiling"] = self.layer_profiler.export_to_dict()
        if self.memory_profiler is not None:
            told["memory_profiling"] = self.memory_profiler.export_to_dict()
        if self.memory_leak_detector is not None:
            told["memory_leaks"] = self.memory_leak_detector.get_summary()
        if self.bottleneck_analyzer is not None:
            told["bottlenecks"] = self.bottleneck_analyzer.analyze()
        if self.gpu_profiler is not None:
            told["gpu_utilization"] = self.gpu_profiler.get_utilization_summary()
            told["gpu_recommendations"] = self.gpu_profiler.get_recommendations()
        if self.distributed_profiler is not None and self.distributed_profiler.node_profiles:
            told["distributed_training"] = self.distributed_profiler.get_summary()
        if self.comparative_profiler is not None and self.comparative_profiler.backend_profiles:
            told["backend_comparison"] = self.comparative_profiler.compare_backends()
        plain: Report = plain_json(told)
        return plain

    def export_report(self, filepath: str | Path) -> None:
        """The comprehensive report as JSON; the folder must be there."""
        write_json(self.get_comprehensive_report(), filepath)

    def get_dashboard_data(self) -> Report:
        """For `neural.dashboard.dashboard.update_profiling_data`."""
        told: Report = {"timestamp": time.time()}
        layer, memory, gpu = self.layer_profiler, self.memory_profiler, self.gpu_profiler
        told["execution_history"] = [] if layer is None else layer.get_execution_timeline()
        told["layer_stats"] = {} if layer is None else layer.get_all_stats()
        told["memory_snapshots"] = [] if memory is None else [dict(each) for each in list(memory.snapshots)]
        told["memory_growth"] = [] if memory is None else memory.get_memory_growth()
        judged = {} if self.bottleneck_analyzer is None else self.bottleneck_analyzer.analyze()
        told["bottlenecks"] = judged.get("bottlenecks", [])
        told["recommendations"] = judged.get("recommendations", [])
        told["gpu_metrics"] = [] if gpu is None else [dict(each) for each in list(gpu.measurements)]
        told["gpu_summary"] = {} if gpu is None else gpu.get_utilization_summary()
        if self.memory_leak_detector is not None:
            told["memory_leak_summary"] = self.memory_leak_detector.get_summary()
        nodes = self.distributed_profiler
        if nodes is not None and nodes.node_profiles:
            talking = nodes.analyze_communication_overhead()
            told["distributed_metrics"] = {"load_balance": nodes.analyze_load_balance(), "communication": talking}
        backends = self.comparative_profiler
        if backends is not None and len(backends.backend_profiles) > 1:
            told["backend_comparison"] = backends.compare_backends()
        return told

    def reset_all(self) -> None:
        """Forgets what was measured; what is enabled stays so."""
        for attribute in KINDS.values():
            profiler = getattr(self, attribute)
            if profiler is not None:
                profiler.reset()
        self._started = self._ended = None


def write_json(told: Any, filepath: str | Path) -> None:
    """Whole, or not at all: the text is made before the file is opened."""
    text = json.dumps(plain_json(told), indent=2, allow_nan=False)
    Path(filepath).write_text(text + "\n", encoding="utf-8")
