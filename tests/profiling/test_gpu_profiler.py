"""GPUUtilizationProfiler where there are devices: torch and the driver are played by numbers, the rest is real."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from neural.profiling import GPUUtilizationProfiler, ProfilerManager, gpu_profiler
from neural.profiling.dashboard_integration import create_gpu_utilization_view

MB = 2**20
READ = {
    "utilization_percent": 20.0,
    "memory_utilization_percent": 10.0,
    "temperature_celsius": 90.0,
    "power_watts": None,  # this one does not tell
    "sm_clock_mhz": 1980.0,
    "throttled_power": 1.0,
}


class Driver:
    """Two of the devices of a machine that has more: the ones that CUDA_VISIBLE_DEVICES=2,0 leaves."""

    opened = closed = 0

    def __call__(self) -> dict[str, float | None]:
        return {f"gpu{number}.{name}": value for number, read in ((2, READ), (0, COOL)) for name, value in read.items()}

    def close(self) -> None:
        Driver.closed += 1


COOL = {**READ, "temperature_celsius": 40.0}


class Opens:
    @staticmethod
    def found() -> Driver:
        Driver.opened += 1
        return Driver()


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[GPUUtilizationProfiler]:
    Driver.opened = Driver.closed = 0
    used = iter([10 * MB, 10 * MB, 400 * MB] * 100)
    monkeypatch.setattr(gpu_profiler, "Nvml", Opens)
    monkeypatch.setattr(gpu_profiler, "device_names", lambda: ["one", "other"])
    monkeypatch.setattr(
        gpu_profiler, "device_memory", lambda _: {"allocated": next(used), "reserved": 1000 * MB, "peak": 400 * MB}
    )
    made = GPUUtilizationProfiler(interval_s=0.01)
    yield made
    made.close()


def test_a_measurement_has_the_documented_keys_and_no_number_that_was_not_read(
    profiler: GPUUtilizationProfiler,
) -> None:
    told = profiler.record_gpu_metrics("fc", device_id=0)
    assert told is not None
    assert set(told) == {
        *("layer", "device_id", "timestamp", "memory_allocated_mb", "memory_reserved_mb", "memory_cached_mb"),
        *("gpu_utilization_percent", "memory_utilization_percent", "temperature_celsius"),
        *("sm_clock_mhz", "throttled_power"),
    }
    assert (told["memory_allocated_mb"], told["memory_cached_mb"], told["gpu_utilization_percent"]) == (10, 990, 20)
    assert profiler.record_gpu_metrics("fc", device_id=2) is None
    assert profiler.record_gpu_metrics("fc", device_id=-1) is None


def test_devices_are_numbered_as_torch_numbers_them(profiler: GPUUtilizationProfiler) -> None:
    first, second = (profiler.record_gpu_metrics("fc", number) for number in (0, 1))
    assert first is not None
    assert second is not None
    assert (first["temperature_celsius"], second["temperature_celsius"]) == (90.0, 40.0)


def test_the_driver_is_opened_once_and_closed_with_the_thread(profiler: GPUUtilizationProfiler) -> None:
    for _ in range(20):
        profiler.record_gpu_metrics("fc")
    assert Driver.opened == 1
    profiler.close()
    assert Driver.closed == 1
    assert "neuraldbg-gpu" not in {thread.name for thread in threading.enumerate()}


def test_a_summary_says_what_stands_out_and_what_to_do(profiler: GPUUtilizationProfiler) -> None:
    for layer in ("conv", "fc", "fc"):
        profiler.record_gpu_metrics(layer)
    told = profiler.get_utilization_summary()
    assert set(told) == {
        *("torch_available", "device_count", "measurements", "device_names"),
        *("mean_memory_allocated_mb", "peak_memory_allocated_mb", "utilization_warning"),
        *(f"{how}_gpu_utilization_percent" for how in ("mean", "min", "max")),
        *("mean_temperature_celsius", "max_temperature_celsius"),
    }
    assert (told["device_count"], told["mean_memory_allocated_mb"], told["utilization_warning"]) == (2, 140, True)
    issues = profiler.detect_memory_inefficiency()
    assert [one["type"] for one in issues["issues"]] == ["high_variance", "underutilization", "peak_memory"]
    assert (issues["has_issues"], issues["issue_count"]) == (True, 3)
    advice = profiler.get_recommendations()
    assert [one["category"] for one in advice] == ["utilization", "temperature", "power", *["memory"] * 3]
    assert all(set(one) == {"category", "priority", "recommendation"} for one in advice)
    assert profiler.get_layer_gpu_stats("fc")["call_count"] == 2
    snapshot = profiler.record_memory_snapshot("before")
    assert snapshot is not None
    assert (snapshot["label"], snapshot["memory_peak_mb"]) == ("before", 400)


def test_the_manager_hands_the_measurements_on(profiler: GPUUtilizationProfiler) -> None:
    manager = ProfilerManager()
    manager.gpu_profiler = profiler
    with manager.profile_layer("fc"):
        pass
    manager.end_profiling()
    (found,) = manager.analyze_bottlenecks()["bottlenecks"]
    assert (found["bottleneck_type"], found["gpu_utilization"]) == (["underutilization"], 20)
    assert manager.get_comprehensive_report()["gpu_recommendations"]
    view = create_gpu_utilization_view(manager.get_dashboard_data()["gpu_metrics"])
    assert [(one["name"], one["xaxis"], one["yaxis"]) for one in view["data"]] == [
        ("gpu_utilization_percent", "x", "y"),
        ("memory_allocated_mb", "x2", "y2"),
        ("temperature_celsius", "x3", "y3"),
    ]
