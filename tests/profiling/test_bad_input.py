"""What users really hand in: wrong numbers and shapes, NaN, arrays, blocks that fail. Refused by name, or written."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neural.profiling import (
    BottleneckAnalyzer,
    ComparativeProfiler,
    DistributedTrainingProfiler,
    LayerProfiler,
    MemoryLeakDetector,
    ProfilerManager,
)
from neural.profiling.plain import plain_json
from neuraldbg.errors import UsageError

REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "memory that is text": ("memory in MB", lambda: MemoryLeakDetector().add_measurement("fc", "12")),  # type: ignore[arg-type]
    "no memory": ("memory in MB", lambda: MemoryLeakDetector().add_measurement("fc", None)),  # type: ignore[arg-type]
    "a threshold of nothing": ("threshold_mb is above 0", lambda: MemoryLeakDetector(threshold_mb=0)),
    "a percentile above all": ("between 0 and 100", lambda: BottleneckAnalyzer(threshold_percentile=101)),
    "metrics that are a number": (
        "metrics of 'fc' is a dict, not float",
        lambda: BottleneckAnalyzer().record_layer_metrics("fc", 0.1),  # type: ignore[arg-type]
    ),
    "a time that is text": (
        "execution_time of 'fc'",
        lambda: BottleneckAnalyzer().record_layer_metrics("fc", {"execution_time": "0.1"}),
    ),
    "several times in one": (
        "execution_time of 'fc'",
        lambda: BottleneckAnalyzer().record_layer_metrics("fc", {"execution_time": np.ones(3)}),
    ),
    "a profile that is a list": (
        "layer_stats or summary",
        lambda: ComparativeProfiler().add_backend_profile("onnx", []),
    ),  # type: ignore[arg-type]
    "layers that are a list": (
        "layer_stats of 'onnx' is a dict",
        lambda: ComparativeProfiler().add_backend_profile("onnx", {"layer_stats": [1]}),
    ),
    "a layer that is a number": (
        "'fc' on onnx is a dict",
        lambda: ComparativeProfiler().add_backend_profile("onnx", {"layer_stats": {"fc": 0.1}}),
    ),
    "a node without a profile": (
        "the profile of 'a' is a dict",
        lambda: DistributedTrainingProfiler().add_node_profile("a", None),  # type: ignore[arg-type]
    ),
    "a node whose time is text": (
        "the time of 'a'",
        lambda: DistributedTrainingProfiler().add_node_profile("a", {"total_time": "long"}),
    ),
    "a transfer of text": (
        "data_size_mb",
        lambda: DistributedTrainingProfiler().record_communication("a", "b", "1 MB", 5),
    ),
    "metadata that is text": (
        "metadata is a dict, not str",
        lambda: ProfilerManager().profile_layer("fc", "train").__enter__(),  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_what_cannot_be_is_refused_by_name(what: str) -> None:
    message, call = REFUSED[what]
    with pytest.raises(ValueError, match=message) as refused:
        call()
    assert isinstance(refused.value, UsageError)


def test_numbers_of_any_library_are_numbers() -> None:
    nodes = DistributedTrainingProfiler()
    for name, seconds in (("a", np.float32(1.0)), ("b", np.int64(3))):
        nodes.add_node_profile(name, {"layer_stats": {"fc": {"total_time": seconds}}})
    nodes.record_synchronization("a", "barrier", np.float32(600))  # one node is no row of letters
    assert nodes.analyze_load_balance()["node_times"] == {"a": 1.0, "b": 3.0}
    assert nodes.synchronization_events[0]["node_ids"] == ["a"]
    assert json.dumps(nodes.get_summary(), allow_nan=False)
    backends = ComparativeProfiler()
    for name, seconds in (("onnx", np.float32(1.0)), ("jax", np.float32(2.0))):
        backends.add_backend_profile(name, {"layer_stats": {"fc": {"mean_time": seconds, "total_time": seconds}}})
    assert json.dumps(backends.compare_backends(), allow_nan=False)


def test_one_node_is_enough_to_tell_what_talking_costs() -> None:
    nodes = DistributedTrainingProfiler()
    nodes.add_node_profile("a", {"total_time": 1.0})
    nodes.record_communication("a", "b", 10, 500)
    (found,) = nodes.get_bottleneck_analysis()["bottlenecks"]
    assert (found["type"], found["severity"]) == ("communication_overhead", "high")


def test_a_clock_that_goes_back_is_refused_and_the_layer_stays_under_way() -> None:
    times = iter([10.0, 9.0, 11.0])
    profiler = LayerProfiler(clock=lambda: next(times))
    profiler.start_layer("fc")
    with pytest.raises(ValueError, match=r"'fc' would have taken -1\.0 s"):
        profiler.end_layer("fc")
    assert profiler.get_all_stats() == {}
    assert profiler.end_layer("fc") == 1.0


def test_the_time_of_layers_inside_of_others_is_counted_once() -> None:
    times = iter([0.0, 1.0, 3.0, 4.0])
    profiler = LayerProfiler(clock=lambda: next(times))
    profiler.start_layer("block")
    profiler.start_layer("block.fc")
    profiler.end_layer("block.fc")
    assert profiler.get_summary()["total_time"] == 2.0  # also while the outer one goes on
    profiler.end_layer("block")
    assert profiler.get_summary()["total_time"] == 4.0
    assert profiler.get_layer_stats("block")["total_time"] == 4.0


METADATA = {
    "loss": math.nan,
    "most": np.float32(math.inf),
    "batch": np.int64(4),
    "shape": (2, np.int64(3)),
    "row": np.arange(3),
    "large": np.zeros(5000),
    ("a", 1): {"b"},
    "device": object,
}


def test_a_report_is_strict_json_whatever_the_metadata_is(tmp_path: Path) -> None:
    manager = ProfilerManager()
    with manager.profile_layer("fc", METADATA):  # type: ignore[arg-type]
        pass
    manager.end_profiling()
    manager.export_report(tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    (call,) = report["layer_profiling"]["execution_history"]
    assert (call["loss"], call["most"], call["batch"]) == ("nan", "inf", 4)
    assert (call["shape"], call["row"], call["('a', 1)"]) == ([2, 3], [0, 1, 2], ["b"])
    assert "..." in call["large"]
    assert call["device"] == "<class 'object'>"


def test_tensors_are_written_as_their_numbers() -> None:
    torch = pytest.importorskip("torch")
    told = plain_json({"loss": torch.tensor(0.5, requires_grad=True), "row": torch.arange(2)})
    assert told == {"loss": 0.5, "row": [0, 1]}


def test_an_exception_is_the_users_own_whatever_was_begun_before_it() -> None:
    manager = ProfilerManager(enable_all=False)
    manager.enable_profiler("layer")
    layers = manager.layer_profiler
    assert layers is not None

    def fails() -> None:
        with manager.profile_layer("outer"):
            layers.start_layer("by hand")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert set(layers.get_all_stats()) == {"outer", "by hand"}
    with manager.profile_layer("next"):
        pass
    with pytest.raises(ValueError, match="call start_layer first"):
        layers.end_layer("outer")


def test_everything_may_be_forgotten_inside_a_layer() -> None:
    manager = ProfilerManager()
    with manager.profile_layer("epoch"):
        manager.reset_all()
        with manager.profile_layer("step"):
            pass
    assert manager.layer_profiler is not None
    assert set(manager.layer_profiler.get_all_stats()) == {"step"}


def test_a_backend_is_what_was_timed_since_the_one_before() -> None:
    clock = iter([0.0, 4.0, 10.0, 11.0])
    manager = ProfilerManager(enable_all=False)
    manager.layer_profiler = LayerProfiler(clock=lambda: next(clock))
    for backend in ("slow", "fast", "never run"):
        if backend != "never run":
            with manager.profile_layer("fc"):
                pass
        manager.compare_backends(backend)
    told = manager.get_comparison_results()
    assert told["summary"]["total_times"] == {"slow": 4.0, "fast": 1.0}
    assert told["summary"]["fastest_backend"] == "fast"
    assert manager.layer_profiler.get_layer_stats("fc")["call_count"] == 2


def test_leaks_are_looked_for_also_without_the_memory_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = iter(range(100, 1000, 10))
    monkeypatch.setattr("neural.profiling.profiler_manager.host_mb", lambda: float(next(levels)))
    manager = ProfilerManager(enable_all=False)
    manager.enable_profiler("leak")
    for _ in range(25):
        with manager.profile_layer("fc"):
            pass
    assert manager.get_comprehensive_report()["memory_leaks"]["total_memory_leaked_mb"] == pytest.approx(240)


def test_reports_can_be_asked_for_while_threads_profile() -> None:
    manager, failed = ProfilerManager(), []

    def work(number: int) -> None:
        try:
            for turn in range(400):
                with manager.profile_layer(f"layer {number} {turn}"):
                    pass
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        manager.get_comprehensive_report()
        manager.get_dashboard_data()
    for thread in threads:
        thread.join()
    assert failed == []
