"""The guide of the dashboard, typed: a loop pushes, and what it pushed is a run like any other."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neural.dashboard import dashboard
from neural.dashboard.dashboard import get_trace_data, update_dashboard_data, update_profiling_data
from neuraldbg.analysis.profile import flame, layer_times
from neuraldbg.analysis.profile_report import profile_of
from neuraldbg.analysis.profile_views import views_of
from neuraldbg.errors import UsageError
from neuraldbg.surfaces.reports.profile_page import html_of
from neuraldbg.trace import Trace, open_trace
from neuraldbg.trace.rollup import series

ENTRY = {
    "layer": "Conv2D_1",
    "execution_time": 0.045,
    "memory": 256.5,
    "flops": 1_000_000,
    "mean_activation": 0.35,
    "grad_norm": 0.02,
}


def the_run() -> Trace:
    """What was pushed so far, closed and read back."""
    directory = dashboard.pushed_run.directory
    assert directory is not None
    dashboard.close_run()
    return open_trace(directory)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a token is asked for")
def test_a_server_of_the_users_own_can_serve_the_app(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "uvicorn", "neural.dashboard.dashboard:app", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(dashboard.__file__).parents[2])}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = next(found[0] for line in server.stderr if (found := re.search(r"http://[\d.:]+", line)))
            with urllib.request.urlopen(f"{url}/api/run") as answer:
                assert answer.status == 200
            forged = urllib.request.Request(f"{url}/api/run", headers={"X-Forwarded-For": "127.0.0.1"})
            with pytest.raises(OSError, match="401"):
                urllib.request.urlopen(forged)
        finally:
            server.terminate()


def test_entries_in_the_place_of_the_model_say_where_they_belong() -> None:
    with pytest.raises(UsageError, match="new_trace_data"):
        update_dashboard_data([dict(ENTRY)])  # type: ignore[arg-type]


def test_the_integration_example_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    from neural.dashboard.dashboard import anomaly_detector, breakpoint_manager, profiler

    layers = [dict(ENTRY), {**ENTRY, "layer": "Dense_1", "execution_time": 0.01}]
    update_dashboard_data(new_trace_data=layers)
    breakpoint_manager.add_breakpoint("Conv2D_2", condition="layer_data['execution_time'] > 0.1")
    result = anomaly_detector.detect_anomalies("Conv2D_1", layers[0])
    if result["is_anomaly"]:
        print(f"Something unusual in Conv2D_1: {result['scores']}")
    profiler.start_layer("Conv2D_1")
    profiler.end_layer("Conv2D_1")
    assert set(result) == {"is_anomaly", "scores"}
    assert breakpoint_manager.should_break("Conv2D_2", {"execution_time": 0.2})
    assert profiler.get_summary()["Conv2D_1"]["call_count"] == 1
    assert get_trace_data() == layers
    assert capsys.readouterr().out == ""


def test_a_push_replaces_the_list_that_everybody_holds() -> None:
    from neural.dashboard.dashboard import TRACE_DATA, trace_data

    update_dashboard_data(new_trace_data=[ENTRY])
    update_dashboard_data(new_trace_data=[{"layer": "b", "grad_norm": np.float32(0.5)}])
    assert TRACE_DATA is trace_data is get_trace_data()
    assert trace_data == [{"layer": "b", "grad_norm": 0.5}]
    assert type(trace_data[0]["grad_norm"]) is float


def test_a_pushed_run_is_a_run_like_any_other() -> None:
    for step in range(5):
        update_dashboard_data(
            new_trace_data=[{**ENTRY, "grad_norm": 0.1 * step, "dead_ratio": 0.25}], new_backend="jax"
        )
    with the_run() as trace:
        assert trace.run.ended
        assert trace.run.backend == "jax"
        assert trace.path.parent.name == "neuraldbg_runs"
        history = trace.history("Conv2D_1", "gradient")
        assert history.steps.tolist() == [0, 1, 2, 3, 4]
        assert history.l2 == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
        assert trace.history("Conv2D_1", "activation").mean.tolist() == [0.35] * 5
        assert np.isnan(trace.history("Conv2D_1", "activation").std).all()  # nobody told
        times = layer_times(trace)["Conv2D_1"]
        assert (times["call_count"], times["total_time"]) == (5, pytest.approx(0.225))
        assert flame(trace) == []  # nobody told when
        assert trace.site("Conv2D_1").flops == 1_000_000
        assert trace.site("Conv2D_1").op == "Conv2D"
        assert series(trace, "memory", "Conv2D_1").mean == pytest.approx([256.5] * 5)
        assert series(trace, "Conv2D_1.dead_ratio").mean == pytest.approx([0.25] * 5)


def test_what_is_timed_by_hand_is_in_the_run_and_its_flame_graph() -> None:
    from neural.dashboard.dashboard import profiler

    update_dashboard_data(new_trace_data=[ENTRY])
    profiler.start_layer("block")
    for name in ("a", "b"):
        profiler.start_layer(name)
        profiler.end_layer(name)
    profiler.end_layer("block")
    with the_run() as trace:
        rows = flame(trace)
    assert [(row["depth"], row["name"]) for row in rows] == [(0, "block"), (1, "a"), (1, "b")]


def test_each_push_is_a_sample_of_the_detector() -> None:
    from neural.dashboard.dashboard import anomaly_detector

    rng = np.random.default_rng(0)
    for _ in range(60):
        update_dashboard_data(new_trace_data=[{"layer": "a", "grad_norm": float(rng.normal(1, 0.1)), "own": 3.0}])
    assert not anomaly_detector.detect_anomalies("a", {"grad_norm": 1.0})["is_anomaly"]
    found = anomaly_detector.detect_anomalies("a", {"grad_norm": 1e6})
    assert found["is_anomaly"]
    assert json.dumps(found)
    assert set(anomaly_detector.get_layer_statistics("a")) == {"gradients", "own"}
    assert anomaly_detector.detect_anomalies("unknown", ENTRY) == {"is_anomaly": False, "scores": {}}


def test_nan_is_recorded_as_what_it_is() -> None:
    update_dashboard_data(new_trace_data=[{"layer": "a", "grad_norm": math.nan, "execution_time": math.inf}])
    with the_run() as trace:
        row = next(trace.history("a", "gradient").records())
        assert math.isnan(row["l2"])
        assert row["nan_count"] == 1
        assert layer_times(trace) == {}


@pytest.mark.parametrize(
    "wrong", [{"layer": "a"}, [{"grad_norm": 1}], [{"layer": 3}], ["a"], "text", [{"layer": ""}]], ids=repr
)
def test_what_is_no_entry_is_refused_and_leaves_nothing(wrong: Any) -> None:
    with pytest.raises(UsageError, match="layer"):
        update_dashboard_data(new_trace_data=wrong)
    assert get_trace_data() == []
    assert dashboard.pushed_run.directory is None


def test_profiling_data_is_merged_by_its_known_names() -> None:
    update_profiling_data({"layer_stats": {"a": {"mean_time": 1.0}}, "timestamp": 3.0})
    update_profiling_data({"bottlenecks": [{"layer": "a"}]})
    assert dashboard.PROFILING_DATA == {"layer_stats": {"a": {"mean_time": 1.0}}, "bottlenecks": [{"layer": "a"}]}
    with the_run() as trace:
        facts = trace.facts("profiling_data")
    assert facts[0]["layer_stats"] == {"a": {"mean_time": 1.0}}
    with pytest.raises(UsageError, match="dict"):
        update_profiling_data([1])  # type: ignore[arg-type]


def test_a_profile_of_many_calls_is_kept_as_far_as_the_page_shows_it() -> None:
    taken = [{"layer": "fc", "timestamp": float(n), "cpu_memory_mb": 100.0 + n} for n in range(5000)]
    layers = {f"layer_{n}": {"mean_time": n / 1e3, "execution_times": [0.1] * 1000} for n in range(300)}
    update_profiling_data({"execution_history": taken, "memory_snapshots": taken, "layer_stats": layers})
    assert len(dashboard.PROFILING_DATA["execution_history"]) == 5000
    with the_run() as trace:
        views = {view["name"]: view for view in views_of(profile_of(trace), {})}
    (table,) = views["layers"]["charts"]
    assert table["rows"][0][:3] == ["layer_299", None, pytest.approx(299.0)]
    assert len(table["rows"]) == 200
    (curve,) = views["memory"]["charts"]
    assert curve["lines"][0]["values"][0] == pytest.approx(100 * 2**20)
    assert curve["lines"][0]["values"][-1] == pytest.approx(5099 * 2**20)


def test_what_is_told_in_another_shape_costs_its_own_row_and_no_other() -> None:
    update_profiling_data({
        "recommendations": ["use a larger batch", 7, {"layer": "fc", "recommendation": "compile it"}],
        "bottlenecks": [{"layer": "fc", "bottleneck_type": ["compute"], "overhead_percentage": float("nan")}, "slow"],
        "layer_stats": {"fc": {"mean_time": np.float32(0.5), "std_time": None}, "conv": "fast"},
        "memory_snapshots": 3,
        "gpu_metrics": [{"gpu_utilization_percent": "high"}],
        "memory_leak_summary": {"leaks": [{"increase_mb": 3}]},
        "distributed_metrics": {"load_balance": {"node_times": {"a": 1.0}}, "communication": []},
        "backend_comparison": {"layer_comparisons": {"fc": {}}, "backends": "onnx"},
    })  # fmt: skip
    with the_run() as trace:
        views = {view["name"]: view for view in views_of(profile_of(trace), {})}
        page = html_of(profile_of(trace))
    (table,) = views["bottlenecks"]["charts"]
    assert [row[1:4] for row in table["rows"]] == [
        ["compute", "fc", None],
        [None, None, "use a larger batch"],
        [None, "fc", "compile it"],
    ]
    assert views["layers"]["charts"][0]["rows"] == [["fc", None, 500.0, None, None, None]]
    assert views["ranks"]["charts"][0]["rows"] == [["a", 1.0, 1.0]]
    assert "use a larger batch" in page


def test_a_model_may_be_told() -> None:
    update_dashboard_data(new_model_data={"name": "net", "layers": [{"type": "Dense", "params": {"units": 3}}]})
    with the_run() as trace:
        assert trace.facts("model_data")[0]["data"]["layers"][0]["type"] == "Dense"


def test_a_folder_that_cannot_be_written_costs_the_record_and_not_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "neuraldbg_runs").write_text("in the way")
    for _ in range(2):
        update_dashboard_data(new_trace_data=[ENTRY])
    assert get_trace_data() == [ENTRY]
    assert caplog.text.count("not recorded") == 1


def test_after_a_run_is_closed_the_next_push_opens_another() -> None:
    update_dashboard_data(new_trace_data=[ENTRY])
    first = the_run()
    update_dashboard_data(new_trace_data=[ENTRY])
    second = the_run()
    assert first.path != second.path
    assert second.steps.tolist() == [0]
    first.close()
    second.close()


def test_names_are_the_same_from_the_package() -> None:
    import neural.dashboard as package

    assert package.breakpoint_manager is dashboard.breakpoint_manager
    assert package.anomaly_detector is dashboard.anomaly_detector
    assert package.profiler is dashboard.profiler
    assert not hasattr(package, "nonsense")
    assert not hasattr(dashboard, "nonsense")


def test_the_settings_of_config_yaml_are_followed(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "anomaly_sensitivity: 0.98\nbreakpoints:\n  enabled: true\n  pause_on_condition: false\n"
    )
    assert dashboard.anomaly_detector.sensitivity == 0.98
    assert dashboard.breakpoint_manager.pause_on_condition is False
