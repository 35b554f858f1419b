"""The profile over REST: the same object as `neural profile --json`, and its page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import MadeRun, made_run, train
from servers import asking
from starlette.testclient import TestClient

from neuraldbg.analysis.profile_report import profile_of
from neuraldbg.surfaces.web.runs import ServedRun
from neuraldbg.trace import TraceWriter, open_trace

PUSHED = {
    "backend_comparison": {
        "backends": ["pytorch", "onnx"],
        "layer_comparisons": {
            "fc": {
                "fastest_backend": "onnx",
                "backend_data": {"pytorch": {"mean_time": 0.2}, "onnx": {"mean_time": 0.1}},
            }
        },
        "summary": {"recommendation": "use onnx"},
    },
    "distributed_metrics": {
        "load_balance": {"node_times": {"a": 1.0, "b": 2.0}, "imbalance_factor": 0.67},
        "communication": {"total_communication_time_ms": 12.0},
    },
    "gpu_metrics": [
        {"timestamp": 1.0 + n, "gpu_utilization_percent": 40.0 + n, "power_watts": 300.0} for n in range(3)
    ],
}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with made_run(tmp_path / "run") as run:
        train(run, steps=30)
        for phase, seconds in (("forward", 0.004), ("backward", 0.005), ("outside", 0.001)):
            for step in range(1, 30):
                run.scalar(f"time.{phase}", step, seconds)
        run.writer.fact("profiling_data", **PUSHED)
        run.end(steps=30)
    with asking(tmp_path / "run") as client:
        yield client


def test_the_route_tells_what_the_command_tells(client: TestClient, tmp_path: Path) -> None:
    told = client.get("/api/profile").json()
    with open_trace(tmp_path / "run") as trace:
        expected = profile_of(trace)
    assert told["phases_ms"] == expected["phases_ms"]
    assert told["phases_ms"]["forward"] == pytest.approx(4.0)
    assert told["phases_ms"]["loss"] is None
    assert [one["path"] for one in told["layers"]] == [one["path"] for one in expected["layers"]]
    assert told["by_hand"]["backend_comparison"]["backends"] == ["pytorch", "onnx"]


VIEWS = ("layers", "memory", "bottlenecks", "gpu", "backends", "ranks")
UNITS = ("ms", "s", "bytes", "share", "count", "text", "%", "°C", "W")


def charts(client: TestClient) -> dict[str, dict[str, Any]]:
    views = client.get("/api/profile", params={"format": "views"}).json()["views"]
    assert tuple(view["name"] for view in views) == VIEWS
    return {view["name"]: {"said": view["text"], **{one["title"]: one for one in view["charts"]}} for view in views}


def test_the_six_views_are_told_as_charts(client: TestClient) -> None:
    told = charts(client)
    phases = told["layers"]["Phases of a step"]
    assert ["forward", pytest.approx(4.0)] == phases["rows"][1][:2]
    assert phases["rows"][2] == ["loss", None, None]  # not measured is not zero
    forward = told["layers"]["Forward of one call"]
    assert (forward["kind"], forward["labels"][0]) == ("bars", "conv1")
    assert len(forward["values"]) == len(forward["spread"]) == len(forward["labels"])
    assert told["backends"]["said"] == "use onnx"
    assert told["backends"]["Layers"]["rows"] == [["fc", "onnx", 200.0, 100.0]]
    assert told["ranks"]["said"].startswith("imbalance 0.67; communication 12 ms")
    busy = told["gpu"]["Told by hand: utilisation"]
    assert (busy["kind"], busy["unit"], busy["lines"][0]["values"]) == ("lines", "%", [40.0, 41.0, 42.0])
    assert busy["steps"] == [29, 29, 29]


def test_every_chart_is_one_that_a_surface_can_draw(client: TestClient) -> None:
    for view in charts(client).values():
        for chart in (one for name, one in view.items() if name != "said"):
            if chart["kind"] == "table":
                assert all(unit in UNITS for _, unit in chart["columns"])
                assert all(len(row) == len(chart["columns"]) for row in chart["rows"])
            elif chart["kind"] == "bars":
                assert len(chart["labels"]) == len(chart["values"])
            else:
                assert chart["kind"] == "lines"
                assert {len(line["values"]) for line in chart["lines"]} == {len(chart["x"])} == {len(chart["steps"])}


def test_a_view_without_data_says_what_to_do(tmp_path: Path) -> None:
    with made_run(tmp_path / "bare") as run:
        run.scalar("loss", 0, 1.0)
        run.end(steps=1)
    with asking(tmp_path / "bare") as client:
        told = charts(client)
    assert "No layer was timed yet" in told["layers"]["said"]
    assert "5 are needed" in told["bottlenecks"]["said"]
    assert "neural doctor" in told["gpu"]["said"]
    assert "--compare-backends" in told["backends"]["said"]
    assert "update_profiling_data" in told["ranks"]["said"]
    assert all(set(view) == {"said"} for view in told.values())


def test_a_debugged_run_says_what_a_profile_would_add(tmp_path: Path) -> None:
    with made_run(tmp_path / "debugged") as run:
        train(run, steps=30)
        run.end(steps=30)
    with asking(tmp_path / "debugged") as client:
        told = charts(client)
    assert "`neural profile train.py` times them" in told["layers"]["said"]
    assert "`neural profile --memory train.py`" in told["memory"]["said"]
    assert told["layers"]["Forward of one call"]["labels"]


def test_ranks_are_held_against_each_other(tmp_path: Path) -> None:
    with made_run(tmp_path / "ranks") as run:
        for step in range(12):
            run.scalar("step_time_s", step, 0.02)
        with TraceWriter(run.directory, rank=1, threaded=False) as other:
            second = MadeRun(run.directory, other)
            for step in range(12):
                second.scalar("step_time_s", step, 0.03)
    with asking(tmp_path / "ranks") as client:
        told = charts(client)["ranks"]
    assert told["said"] == "the slowest rank takes 1.50 times as long as the fastest"
    times = told["Time of a step"]["rows"]
    assert times == [["rank 0", pytest.approx(20.0), None], ["rank 1", pytest.approx(30.0), None]]


def test_nobody_waits_for_a_profile_that_takes_long(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as made:
        train(made, steps=5)
        made.end(steps=5)
    run, steps = ServedRun(tmp_path / "run"), []

    def look() -> None:
        with run.reading() as trace:
            steps.append(trace.last_step)

    try:
        with run.apart() as profiled:
            other = threading.Thread(target=look)
            other.start()
            other.join(30)
            assert steps == [profiled.last_step] == [4]
    finally:
        run.close()


def test_the_page_has_the_six_views(client: TestClient) -> None:
    answer = client.get("/api/profile", params={"format": "html"})
    assert answer.headers["content-type"].startswith("text/html")
    page = answer.text
    for expected in ("conv1", "use onnx", "imbalance 0.67", "40.0 % to 42.0 %", "Nothing stands out"):
        assert expected in page, expected
    assert page.count("<polyline") >= 2
