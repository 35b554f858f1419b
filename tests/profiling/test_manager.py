"""The manager of neural.profiling: every order of calls works, and its reports have the documented keys."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from neural.profiling import ProfilerManager
from neural.profiling.profiler_manager import KINDS


def test_layers_may_be_profiled_before_start_and_inside_each_other() -> None:
    manager = ProfilerManager()
    with manager.profile_layer("outer"), manager.profile_layer("inner"):
        pass
    manager.end_profiling()
    assert manager.layer_profiler is not None
    assert set(manager.layer_profiler.get_all_stats()) == {"outer", "inner"}


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_kind_can_be_enabled_alone(kind: str) -> None:
    manager = ProfilerManager(enable_all=False)
    assert all(getattr(manager, attribute) is None for attribute in KINDS.values())
    manager.enable_profiler(kind)
    with manager.profile_layer("fc"):
        pass
    assert getattr(manager, KINDS[kind]) is not None
    assert sum(getattr(manager, attribute) is not None for attribute in KINDS.values()) == 1
    assert json.dumps(manager.get_comprehensive_report(), allow_nan=False)


def test_the_configuration_example_of_the_documents_works() -> None:
    profiler = ProfilerManager(enable_all=False)
    profiler.enable_profiler("layer")
    profiler.enable_profiler("memory")
    profiler.enable_profiler("bottleneck")
    with profiler.profile_layer("fc"):
        pass
    assert profiler.analyze_bottlenecks()["summary"]["total_bottlenecks"] == 0
    assert "error" in ProfilerManager(enable_all=False).analyze_bottlenecks()
    with pytest.raises(ValueError, match="did you mean 'bottleneck'"):
        profiler.enable_profiler("bottlenecks")


def test_a_layer_is_charged_what_it_allocated_and_not_what_was_there() -> None:
    manager = ProfilerManager()
    manager.start_profiling()
    kept = []
    with manager.profile_layer("large"):
        kept.append(bytearray(b"x") * (600 << 20))
    with manager.profile_layer("small"):
        pass
    found = {one["layer"]: one["bottleneck_type"] for one in manager.analyze_bottlenecks()["bottlenecks"]}
    manager.end_profiling()
    assert "memory" in found["large"]
    assert "memory" not in found.get("small", [])  # though the process is as large as before


def test_an_exception_inside_a_layer_passes_on_and_its_time_is_kept() -> None:
    manager = ProfilerManager(enable_all=False)
    manager.enable_profiler("layer")
    with pytest.raises(ZeroDivisionError), manager.profile_layer("fc"):
        1 / 0  # noqa: B018
    with manager.profile_layer("fc"):
        pass
    assert manager.layer_profiler is not None
    assert manager.layer_profiler.get_layer_stats("fc")["call_count"] == 2


def test_threads_have_stacks_of_their_own() -> None:
    manager = ProfilerManager(enable_all=False)
    manager.enable_profiler("layer")

    def work(name: str) -> None:
        for _ in range(50):
            with manager.profile_layer(name):
                pass

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert manager.layer_profiler is not None
    assert manager.layer_profiler.get_summary()["total_calls"] == 200


def test_the_report_and_the_dashboard_have_the_documented_keys(tmp_path: Path) -> None:
    manager = ProfilerManager()
    manager.start_profiling()
    for backend in ("pytorch", "onnx"):
        with manager.profile_layer("fc", {"batch": 4}):
            pass
        assert manager.compare_backends(backend) is None  # type: ignore[func-returns-value]
    assert manager.distributed_profiler is not None
    for node in ("a", "b"):
        manager.distributed_profiler.add_node_profile(node, {"total_time": 1.0})
    manager.end_profiling()
    report = manager.get_comprehensive_report()
    assert set(report) == {
        *("profiling_session", "layer_profiling", "memory_profiling", "memory_leaks", "bottlenecks"),
        *("gpu_utilization", "gpu_recommendations", "distributed_training", "backend_comparison"),
    }
    assert set(report["profiling_session"]) == {"start_time", "end_time", "duration_seconds"}
    manager.export_report(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["layer_profiling"]["summary"]["total_calls"] == 2
    data = manager.get_dashboard_data()
    assert {
        *("timestamp", "execution_history", "layer_stats", "memory_snapshots", "memory_growth", "bottlenecks"),
        *("recommendations", "gpu_metrics", "gpu_summary", "distributed_metrics"),
    } <= set(data)
    assert set(data["distributed_metrics"]) == {"load_balance", "communication"}
    assert "summary" in manager.get_comparison_results(["pytorch", "onnx"])
    manager.reset_all()
    assert manager.get_dashboard_data()["layer_stats"] == {}
