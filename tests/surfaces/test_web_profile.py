"""The profile over REST: the same object as `neural profile --json`, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_runs import made_run, train
from servers import asking
from starlette.testclient import TestClient

from neuraldbg.analysis.profile_report import profile_of
from neuraldbg.trace import open_trace

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


def test_the_page_has_the_six_views(client: TestClient) -> None:
    answer = client.get("/api/profile", params={"format": "html"})
    assert answer.headers["content-type"].startswith("text/html")
    page = answer.text
    for expected in ("conv1", "use onnx", "imbalance 0.67", "utilisation (%): 40.0 to 42.0", "Nothing stands out"):
        assert expected in page, expected
    assert page.count("<polyline") >= 2
