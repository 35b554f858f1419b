"""Around the profilers: decorators, text, views, the command group, and the examples as they stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from neural.profiling import BottleneckAnalyzer, MemoryLeakDetector, ProfilerManager, dashboard_integration, utils
from neural.profiling.cli import profiling

ROOT = Path(__file__).parents[2]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    manager = ProfilerManager()
    for name in ("conv", "fc", "fc"):
        with manager.profile_layer(name):
            sum(range(1000))
    manager.end_profiling()
    manager.export_report(tmp_path / "report.json")
    return tmp_path / "report.json"


def test_a_decorated_function_is_a_layer() -> None:
    manager = ProfilerManager(enable_all=False)
    manager.enable_profiler("layer")

    @utils.profile_function(manager, "double", {"kind": "test"})
    def twice(x: int) -> int:
        """Twice."""
        return 2 * x

    assert (twice(4), twice.__name__, twice.__doc__) == (8, "twice", "Twice.")
    assert manager.layer_profiler is not None
    assert manager.layer_profiler.get_execution_timeline()[0]["kind"] == "test"


def test_a_timed_block_tells_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with utils.timed_execution("sum") as told:
        sum(range(1000))
    assert told["seconds"] > 0
    assert capsys.readouterr().out.startswith("sum: ")


def test_two_sessions_are_compared_by_time_and_memory() -> None:
    def session(seconds: float, mb: float) -> dict[str, object]:
        return {
            "profiling_session": {},
            "layer_profiling": {"summary": {"total_time": seconds}},
            "memory_profiling": {"summary": {"peak_memory_mb": mb}},
        }

    told = utils.compare_profiling_sessions(session(2.0, 100.0), session(1.0, 80.0))
    assert set(told) == {"session1", "session2", "improvements"}
    assert told["improvements"]["total_time"] == {"session1_ms": 2000, "session2_ms": 1000, "speedup_percent": 50}
    assert told["improvements"]["memory"] == {"session1_mb": 100, "session2_mb": 80, "reduction_percent": 20}
    assert utils.compare_profiling_sessions({}, session(1.0, 1.0))["improvements"] == {}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["show-report"], "Layers: 2, 3 calls"),
        (["show-report", "--format", "json"], '"profiling_session"'),
        (["bottlenecks", "--top-n", "1"], "above the threshold"),
        (["memory-analysis"], "peak_memory_mb"),
        (["gpu-stats"], "No GPU was measured."),
        (["summary"], "Profiling report"),
    ],
)
def test_each_command_reads_an_exported_report(report: Path, words: list[str], expected: str) -> None:
    done = CliRunner().invoke(profiling, [words[0], str(report), *words[1:]])
    assert done.exit_code == 0, done.output
    assert expected in done.output


def test_two_reports_are_compared_and_a_wrong_file_is_named(report: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(profiling, ["compare", str(report), str(report)])
    assert "0.0 %" in done.output
    (tmp_path / "other.json").write_text("{}")
    refused = CliRunner().invoke(profiling, ["show-report", str(tmp_path / "other.json")])
    assert refused.exit_code == 1
    assert "profiling_session is missing" in refused.output
    written = CliRunner().invoke(profiling, ["summary", str(report), "-o", str(tmp_path / "s.txt")])
    assert written.exit_code == 0
    assert (tmp_path / "s.txt").read_text().startswith("Profiling report")


COMMANDS = ("show-report", "bottlenecks", "memory-analysis", "gpu-stats", "summary", "compare")


def test_every_command_fits_on_a_terminal(tmp_path: Path) -> None:
    manager, path = ProfilerManager(), str(tmp_path / "report.json")
    for name in ("encoder.layers.11.attention.output.dense" * 3, "fc", "fc"):
        with manager.profile_layer(name):
            sum(range(1000))
    assert manager.distributed_profiler is not None
    assert manager.memory_leak_detector is not None
    for number in range(2):
        manager.distributed_profiler.add_node_profile(f"node_{number}", {"total_time": 1.0 + number})
    for number in range(30):
        manager.memory_leak_detector.add_measurement(f"a layer with a long name {number}", 100.0 * number)
    manager.export_report(path)
    told = {}
    for command in COMMANDS:
        done = CliRunner().invoke(profiling, [command, path, *([path] if command == "compare" else [])])
        assert done.exit_code == 0, done.output
        assert max(map(len, done.output.splitlines())) <= 80
        told[command] = done.output
    assert "leak of" in told["memory-analysis"]
    assert "Nodes: high load_imbalance" in told["show-report"]
    refused = CliRunner().invoke(profiling, ["summary", path, "-o", str(tmp_path / "nowhere" / "s.txt")])
    assert (refused.exit_code, "cannot write" in refused.output) == (1, True)


def test_a_report_that_lacks_parts_is_told_without_them() -> None:
    assert utils.format_profiling_report({}) == "Profiling report\n"
    manager = ProfilerManager(enable_all=False)
    assert utils.format_profiling_report(manager.get_comprehensive_report()) == "Profiling report\n"


def test_every_view_is_made_from_what_the_manager_tells(report: Path) -> None:
    manager = ProfilerManager()
    assert manager.distributed_profiler is not None
    for number, backend in enumerate(("pytorch", "onnx")):
        with manager.profile_layer("fc"):
            pass
        manager.compare_backends(backend)
        manager.distributed_profiler.add_node_profile(backend, {"total_time": 1.0 + number})
    manager.end_profiling()
    data = manager.get_dashboard_data()
    views = {
        "layer_profiling": dashboard_integration.create_layer_profiling_view(data["layer_stats"]),
        "memory_profiling": dashboard_integration.create_memory_profiling_view(data["memory_snapshots"]),
        "comparative": dashboard_integration.create_comparative_profiling_view(data["backend_comparison"]),
        "distributed": dashboard_integration.create_distributed_profiling_view(data["distributed_metrics"]),
        "timeline": dashboard_integration.create_execution_timeline(data["execution_history"]),
    }
    detector, analyzer = MemoryLeakDetector(), BottleneckAnalyzer()
    for level in range(20):
        detector.add_measurement("fc", 10.0 * level)
    for name, mb in (("fc", 900.0), ("conv", 1.0)):
        analyzer.record_layer_metrics(name, {"execution_time": 0.1, "memory_usage": mb})
    views |= {
        "leaks": dashboard_integration.create_memory_leak_view(detector.get_summary()),
        "bottlenecks": dashboard_integration.create_bottleneck_view(analyzer.get_bottlenecks()),
        "recommendations": dashboard_integration.create_recommendations_view(analyzer.get_recommendations()),
    }
    assert all(view["data"] for view in views.values()), views
    assert views["bottlenecks"]["data"][0]["y"] == ["fc"]
    assert views["leaks"]["data"][0]["y"] == [pytest.approx(190.0)]
    assert views["layer_profiling"]["data"][0]["error_y"]["array"]
    empty = [
        dashboard_integration.create_bottleneck_view([]),
        dashboard_integration.create_gpu_utilization_view([]),
        dashboard_integration.create_memory_leak_view({"has_leaks": False}),
        dashboard_integration.create_recommendations_view([]),
    ]
    assert all("No data available" in json.dumps(view["layout"]) for view in empty)
    assert json.dumps([*views.values(), *empty], allow_nan=False)


@pytest.mark.parametrize(
    "name", ["profiling_example", "comparative_profiling_example", "distributed_profiling_example"]
)
def test_the_examples_run(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = {"profiling_example": "Conv2D", "comparative_profiling_example": "Fastest: numpy"}
    assert expected.get(name, "load_imbalance") in done.stdout


def test_what_the_manager_tells_reaches_the_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from neural.dashboard import dashboard
    from neuraldbg import open_trace

    manager = ProfilerManager()
    with manager.profile_layer("fc"):
        pass
    manager.end_profiling()
    try:
        dashboard.update_profiling_data(manager.get_dashboard_data())
        directory = dashboard.pushed_run.directory
    finally:
        dashboard.close_run()
    assert directory is not None
    with open_trace(directory) as trace:
        fact = trace.facts("profiling_data")[-1]
    assert fact["layer_stats"]["fc"]["call_count"] == 1
