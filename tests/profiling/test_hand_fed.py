"""neural.profiling as it is documented: every class, its keys, and the orders of calls that used to fail."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from neural.profiling import (
    BottleneckAnalyzer,
    ComparativeProfiler,
    DistributedTrainingProfiler,
    GPUUtilizationProfiler,
    LayerProfiler,
    MemoryLeakDetector,
    MemoryProfiler,
)


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def timed(*calls: tuple[str, float]) -> LayerProfiler:
    clock = Hands()
    profiler = LayerProfiler(clock=clock)
    for name, seconds in calls:
        profiler.start_layer(name)
        clock.now += seconds
        profiler.end_layer(name)
    return profiler


# -- layers ------------------------------------------------------------------------------------------------------------


def test_statistics_of_a_layer_are_those_of_its_calls() -> None:
    stats = timed(("fc", 1.0), ("fc", 3.0), ("conv", 5.0)).get_layer_stats("fc")
    assert set(stats) == {
        *("execution_times", "call_count", "total_time", "min_time", "max_time", "mean_time", "std_time"),
    }
    assert (stats["call_count"], stats["total_time"], stats["mean_time"], stats["std_time"]) == (2, 4.0, 2.0, 1.0)
    assert (stats["min_time"], stats["max_time"], stats["execution_times"]) == (1.0, 3.0, [1.0, 3.0])


def test_layers_are_ranked_by_time_and_by_spread() -> None:
    profiler = timed(("even", 4.0), ("even", 4.0), ("odd", 1.0), ("odd", 3.0))
    assert profiler.get_slowest_layers(1) == [("even", 4.0)]
    assert profiler.get_most_variable_layers(1) == [("odd", 1.0)]
    summary = profiler.get_summary()
    assert (summary["total_layers"], summary["total_calls"], summary["total_time"]) == (2, 4, 12.0)
    assert summary["average_time_per_call"] == 3.0


def test_the_timeline_has_every_call_with_its_metadata() -> None:
    clock = Hands()
    profiler = LayerProfiler(clock=clock)
    profiler.start_layer("outer")
    clock.now += 1
    profiler.start_layer("inner")
    clock.now += 2
    profiler.end_layer("inner", {"batch": 8})
    profiler.end_layer("outer")
    inner, outer = profiler.get_execution_timeline()
    assert (inner["layer"], inner["execution_time"], inner["batch"]) == ("inner", 2.0, 8)
    assert (outer["execution_time"], outer["cumulative_time"]) == (3.0, 3.0)  # what is inside is not counted twice
    assert {"layer", "execution_time", "timestamp", "cumulative_time"} <= set(inner)


def test_an_end_without_its_start_is_refused_and_loses_nothing() -> None:
    profiler = timed(("fc", 1.0))
    profiler.start_layer("a")
    with pytest.raises(ValueError, match="'a' is under way"):
        profiler.end_layer("b")
    assert profiler.end_layer("a") >= 0
    with pytest.raises(ValueError, match="call start_layer first"):
        profiler.end_layer("a")
    assert profiler.get_layer_stats("fc")["call_count"] == 1
    assert profiler.get_layer_stats("nobody") == {}


def test_a_million_calls_take_no_more_memory_than_ten_thousand() -> None:
    profiler = timed(*[("fc", 0.001)] * 20_000)
    assert profiler.get_layer_stats("fc")["call_count"] == 20_000
    assert len(profiler.get_execution_timeline()) == 10_000
    assert len(profiler.get_layer_stats("fc")["execution_times"]) == 1_000
    assert profiler.get_percentiles("fc")["p95"] == pytest.approx(0.001, rel=0.011)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_snapshot_tells_what_the_process_uses() -> None:
    profiler = MemoryProfiler()
    profiler.start_profiling()
    taken = profiler.take_snapshot("fc", {"step": 3})
    assert taken is not None
    assert {"layer", "timestamp", "cpu_memory_mb", "memory_delta_mb"} <= set(taken)
    assert taken["step"] == 3
    assert taken["cpu_memory_mb"] > 5
    profiler.take_snapshot("fc")
    stats = profiler.get_layer_memory_stats("fc")
    assert {"layer", "call_count", "mean_memory_mb", "std_memory_mb", "min_memory_mb", "max_memory_mb"} <= set(stats)
    assert [set(each) for each in profiler.get_memory_growth()] == [{"layer", "timestamp", "memory_growth_mb"}]
    summary = profiler.get_summary()
    assert {"baseline_memory_mb", "peak_memory_mb", "total_snapshots", "memory_growth"} <= set(summary)
    assert summary["total_snapshots"] == 2


def test_an_allocation_shows_in_the_next_snapshot() -> None:
    profiler = MemoryProfiler()
    profiler.start_profiling()
    held = bytearray(b"x") * (512 * 2**20)  # the system may take back other pages meanwhile
    taken = profiler.take_snapshot("big")
    assert taken is not None
    assert taken["memory_delta_mb"] == pytest.approx(512, abs=128)
    assert len(held) == 512 * 2**20


def test_a_snapshot_interval_takes_every_nth() -> None:
    profiler = MemoryProfiler(snapshot_interval=3)
    taken = [profiler.take_snapshot("fc") is not None for _ in range(7)]
    assert taken == [True, False, False, True, False, False, True]
    with pytest.raises(ValueError, match="from 1 on"):
        MemoryProfiler(snapshot_interval=0)


def test_growth_is_counted_once() -> None:
    detector = MemoryLeakDetector(threshold_mb=10.0, window_size=10)
    for number in range(40):
        detector.add_measurement("fc", 100.0 + 2.0 * number, timestamp=float(number))
    told = detector.get_summary()
    assert detector.has_leaks()
    assert told["total_memory_leaked_mb"] == pytest.approx(78.0)
    assert told["leak_count"] == 3
    assert told["average_growth_rate"] == pytest.approx(2.0)
    assert set(told["leaks"][0]) == {
        *("start_memory_mb", "end_memory_mb", "increase_mb", "window_size", "layers_involved", "timestamp"),
        "growth_rate_mb_per_step",
    }


def test_a_slow_leak_is_found_once_it_has_added_up() -> None:
    detector = MemoryLeakDetector(threshold_mb=20.0, window_size=15)
    for number in range(400):
        detector.add_measurement("fc", 100.0 + 0.1 * number)
    assert detector.has_leaks()
    assert detector.get_summary()["total_memory_leaked_mb"] == pytest.approx(39.9, abs=2.0)


@pytest.mark.parametrize(
    "level",
    [
        lambda n: 100.0,
        lambda n: 100.0 + 30.0 * (n % 7),  # comes and goes
        lambda n: 100.0 + 50.0 * (n > 20),  # a cache that is filled once
        lambda n: 100.0 + min(n, 30) - (90 if n > 35 else 0),  # grows, and is given back
        lambda n: 100.0 + 8.0 * math.sin(n),
    ],
)
def test_memory_that_does_not_grow_for_good_is_no_leak(level: Any) -> None:
    detector = MemoryLeakDetector(threshold_mb=60.0)
    for number in range(120):
        detector.add_measurement("fc", level(number))
    assert detector.get_summary() == {"has_leaks": False, "leak_count": 0}


def test_impossible_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        MemoryLeakDetector().add_measurement("fc", -1.0)
    with pytest.raises(ValueError, match="execution_time of 'fc'"):
        BottleneckAnalyzer().record_layer_metrics("fc", {"execution_time": -0.1})
    with pytest.raises(ValueError, match="duration_ms"):
        DistributedTrainingProfiler().record_communication("a", "b", 1.0, -5.0)


# -- bottlenecks -------------------------------------------------------------------------------------------------------


def analysed() -> dict[str, Any]:
    analyzer = BottleneckAnalyzer(threshold_percentile=75.0)
    for name in ("a", "b", "c", "d"):
        analyzer.record_layer_metrics(name, {"execution_time": 0.01, "gpu_utilization": 90})
    analyzer.record_layer_metrics("slow", {"execution_time": 0.2, "memory_usage": 800, "gpu_utilization": 90})
    analyzer.record_layer_metrics("reads", {"execution_time": 0.01, "io_operations": 500, "gpu_utilization": 20})
    return analyzer.analyze()


def test_each_kind_of_bottleneck_is_named() -> None:
    told = analysed()
    by_layer = {one["layer"]: one for one in told["bottlenecks"]}
    assert by_layer["slow"]["bottleneck_type"] == ["compute", "memory"]
    assert by_layer["reads"]["bottleneck_type"] == ["io", "underutilization"]
    assert set(by_layer) == {"slow", "reads"}
    assert told["bottlenecks"][0]["layer"] == "slow"
    assert {"layer", "mean_execution_time", "execution_time_std", "threshold", "overhead_percentage"} <= set(
        by_layer["slow"]
    )
    assert by_layer["slow"]["mean_memory_usage"] == 800
    assert (by_layer["reads"]["io_intensity"], by_layer["reads"]["gpu_utilization"]) == (500, 20)


def test_recommendations_have_their_reasons() -> None:
    told = analysed()
    assert {one["type"] for one in told["recommendations"]} == {"compute", "memory", "io", "underutilization"}
    first = told["recommendations"][0]
    assert set(first) == {"layer", "type", "category", "priority", "recommendation", "details"}
    assert first["priority"] == "high"
    summary = told["summary"]
    assert (summary["total_bottlenecks"], summary["critical_bottlenecks"]) == (2, 1)
    assert summary["top_bottlenecks"][0]["layer"] == "slow"
    assert summary["bottleneck_types"] == {"compute": 1, "memory": 1, "io": 1, "underutilization": 1}


def test_a_layer_with_uneven_times_is_told() -> None:
    analyzer = BottleneckAnalyzer()
    for seconds in (0.1, 0.1, 0.9):
        analyzer.record_layer_metrics("jumpy", {"execution_time": seconds})
    for name in "abc":
        analyzer.record_layer_metrics(name, {"execution_time": 0.01})
    told = [(one["type"], one["priority"]) for one in analyzer.get_recommendations()]
    assert told == [("compute", "medium"), ("variance", "low")]


def test_a_layer_that_is_hardly_slower_than_the_others_is_no_urgent_matter() -> None:
    analyzer = BottleneckAnalyzer()
    for name, seconds in (("a", 0.0100), ("b", 0.0101)):
        analyzer.record_layer_metrics(name, {"execution_time": seconds})
    assert [(one["layer"], one["priority"]) for one in analyzer.get_recommendations()] == [("b", "low")]
    analyzer.record_layer_metrics("b", {"execution_time": 0.1})
    assert next((one["layer"], one["priority"]) for one in analyzer.get_recommendations()) == ("b", "medium")


def test_nothing_measured_is_nothing_found() -> None:
    empty = {"total_bottlenecks": 0, "critical_bottlenecks": 0, "total_overhead_ms": 0}
    assert BottleneckAnalyzer().analyze() == {"bottlenecks": [], "recommendations": [], "summary": empty}
    assert BottleneckAnalyzer().get_bottlenecks() == BottleneckAnalyzer().get_recommendations() == []
    assert LayerProfiler().get_summary()["average_time_per_call"] == 0
    assert MemoryProfiler().get_summary()["total_snapshots"] == 0


# -- backends and nodes ------------------------------------------------------------------------------------------------


def test_the_first_comparison_already_knows_who_wins() -> None:
    comparative = ComparativeProfiler()
    for name, factor in (("tensorflow", 2.0), ("pytorch", 1.0), ("onnx", 1.5)):
        profile = timed(("conv", 0.2 * factor), ("fc", 0.1 * factor)).export_to_dict()
        comparative.add_backend_profile(name, profile)
    told = comparative.compare_backends()
    assert told["summary"]["fastest_backend"] == "pytorch"
    assert told["summary"]["slowest_backend"] == "tensorflow"
    assert told["summary"]["overall_speedup"] == pytest.approx(2.0)
    assert told["summary"]["layer_wins"] == {"tensorflow": 0, "pytorch": 2, "onnx": 0}
    assert "use pytorch: 2.00 times as fast as tensorflow" in told["summary"]["recommendation"]
    conv = told["layer_comparisons"]["conv"]
    assert (conv["fastest_backend"], conv["slowest_backend"]) == ("pytorch", "tensorflow")
    assert conv["time_difference_ms"] == pytest.approx(200)
    assert conv["speedup"] == pytest.approx(2.0)
    assert set(conv["backend_data"]["onnx"]) == {"mean_time", "std_time", "total_time", "call_count"}
    assert [name for name, _ in comparative.get_backend_ranking()] == ["pytorch", "onnx", "tensorflow"]
    assert set(comparative.export_comparison()) == {"backend_profiles", "comparison_results", "backend_ranking"}
    assert comparative.compare_backends(["onnx", "tensorflow"])["summary"]["fastest_backend"] == "onnx"


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_times_that_cannot_be_are_refused_and_what_is_known_stays(seconds: float) -> None:
    backends, nodes = ComparativeProfiler(), DistributedTrainingProfiler()
    backends.add_backend_profile("pytorch", {"summary": {"total_time": 1.0}})
    nodes.add_node_profile("a", {"total_time": 1.0})
    for wrong in ({"summary": {"total_time": seconds}}, {"layer_stats": {"fc": {"mean_time": seconds}}}):
        with pytest.raises(ValueError, match="on pytorch is a number from 0 on"):
            backends.add_backend_profile("pytorch", wrong)
    for tell in (nodes.add_node_profile, nodes.record_node_metrics):
        with pytest.raises(ValueError, match="the time of 'a' is a number from 0 on"):
            tell("a", {"total_time": seconds})
    assert backends.get_backend_ranking() == [("pytorch", 1.0)]
    assert nodes.node_profiles == {"a": {"total_time": 1.0}}


def test_one_backend_cannot_be_compared() -> None:
    comparative = ComparativeProfiler()
    comparative.add_backend_profile("onnx", {"summary": {"total_time": 1.0}})
    told = comparative.compare_backends()
    assert set(told) == {"error", "available_backends"}
    assert told["available_backends"] == ["onnx"]
    with pytest.raises(ValueError, match="layer_stats"):
        comparative.add_backend_profile("keras", {})


def distributed() -> DistributedTrainingProfiler:
    profiler = DistributedTrainingProfiler()
    for node, seconds in (("node_0", 1.0), ("node_1", 1.0), ("node_2", 2.0)):
        profiler.add_node_profile(node, timed(("step", seconds)).export_to_dict())
    profiler.record_communication(
        source_node="node_0", dest_node="node_1", data_size_mb=100, duration_ms=500, operation_type="gradient_transfer"
    )
    profiler.record_communication(source="node_1", dest="node_2", size=50, duration=250, type="broadcast")
    profiler.record_synchronization(["node_0", "node_1"], "barrier", 100, barrier_wait_ms=80)
    profiler.record_synchronization(nodes=["node_0"], type="barrier", duration=300)
    return profiler


def test_nodes_that_do_not_do_the_same_are_told() -> None:
    balance = distributed().analyze_load_balance()
    assert (balance["slowest_node"], balance["max_time"], balance["min_time"]) == ("node_2", 2.0, 1.0)
    assert balance["imbalance_factor"] == pytest.approx(0.75)
    assert balance["is_balanced"] is False
    assert set(balance) == {
        *("node_times", "mean_time", "std_time", "max_time", "min_time", "imbalance_factor"),
        *("slowest_node", "fastest_node", "is_balanced"),
    }
    assert "error" in DistributedTrainingProfiler().analyze_load_balance()


def test_communication_is_summed_by_kind_and_rates_are_bits() -> None:
    told = distributed().analyze_communication_overhead()
    assert (told["total_communication_time_ms"], told["total_data_transferred_mb"], told["event_count"]) == (
        750,
        150,
        2,
    )
    assert told["mean_bandwidth_mbps"] == pytest.approx(1600)  # 100 MB in half a second, in megabits
    assert set(told["by_operation_type"]) == {"gradient_transfer", "broadcast"}
    waiting = distributed().analyze_synchronization_overhead()
    assert (waiting["total_sync_time_ms"], waiting["total_barrier_wait_ms"]) == (400, 80)
    assert waiting["by_sync_type"]["barrier"]["count"] == 2


def test_the_cut_offs_of_the_documents_hold() -> None:
    analysis = distributed().get_bottleneck_analysis()
    found = {one["type"]: one["severity"] for one in analysis["bottlenecks"]}
    # 0.75 > 0.5; 750 ms of 2 s is 37.5 %; 400 ms is 20 %
    assert found == {"load_imbalance": "high", "communication_overhead": "medium", "synchronization_overhead": "medium"}
    assert all(set(one) == {"type", "severity", "details", "recommendation"} for one in analysis["bottlenecks"])
    assert json.dumps(distributed().get_summary(), allow_nan=False)
    with pytest.raises(TypeError, match="no argument 'speed'"):
        distributed().record_communication(source="a", dest="b", size=1, duration=1, speed=2)
    with pytest.raises(TypeError, match="needs dest_node"):
        distributed().record_communication("a")


def test_without_a_gpu_nothing_is_told_about_one() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    profiler = GPUUtilizationProfiler()
    assert profiler.record_gpu_metrics("fc") is None
    assert profiler.record_memory_snapshot("before") is None
    assert profiler.get_utilization_summary() == {"torch_available": False, "device_count": 0, "measurements": 0}
    assert profiler.detect_memory_inefficiency() == {"has_issues": False}
    assert profiler.get_recommendations() == []
    assert profiler.get_layer_gpu_stats("fc") == {}
