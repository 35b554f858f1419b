"""Where the time went: calls nested as they ran, times of layers, what the machine did."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import MadeRun, made_run

from neuraldbg.analysis.profile import chrome_trace, flame, layer_times, resources, slowest
from neuraldbg.records import Call, Phase
from neuraldbg.trace import open_trace
from neuraldbg.trace.tables import PHASE_CODE

MS = 1_000_000


def span(run: MadeRun, site: int, phase: Phase, step: int, times_ms: tuple[float, float]) -> None:
    start, duration = (int(each * MS) for each in times_ms)
    run._row("spans", step, site, phase=PHASE_CODE[phase], start_ns=10**12 + start, duration_ns=duration)


def two_steps(run: MadeRun) -> None:
    """A loader, a block of two layers and a head, a loss, an optimizer: calls are recorded when they end."""
    model = run.model("net", "Net")
    block, first, second, head = (run.module(path, "Linear", model) for path in ("block", "block.0", "block.1", "head"))
    optimizer = run.optimizer()
    for step in range(2):
        at = 100 * step
        span(run, first, Phase.FORWARD, step, (at + 12, 4))
        span(run, second, Phase.FORWARD, step, (at + 17, 8))
        span(run, block, Phase.FORWARD, step, (at + 11, 15))
        span(run, head, Phase.FORWARD, step, (at + 27, 2 + step))
        span(run, model, Phase.FORWARD, step, (at + 10, 20))
        span(run, head, Phase.BACKWARD, step, (at + 40, 6))
        span(run, optimizer, Phase.UPDATE, step, (at + 60, 5))
        run.call(Call.STEP, step, optimizer)


def shape(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(row["depth"], row["name"]) for row in rows]


def test_a_flame_graph_has_every_call_once_and_inside_its_caller(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        two_steps(run)
    rows = flame(open_trace(tmp_path / "run"), step=0)
    assert shape(rows) == [
        (0, "net"),
        (1, "block"),
        (2, "block.0"),
        (2, "block.1"),
        (1, "head"),
        (0, "head"),
        (0, "optimizer"),
    ]
    by_name = {(row["name"], row["phase"]): row for row in rows}
    block = by_name["block", "forward"]
    assert (block["start"], block["duration"], block["end"]) == pytest.approx((0.001, 0.015, 0.016))
    assert by_name["net", "forward"]["start"] == 0
    assert by_name["head", "backward"]["start"] == pytest.approx(0.030)
    assert all(row["end"] == pytest.approx(row["start"] + row["duration"]) for row in rows)


def test_the_last_step_is_shown_where_none_is_named(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        two_steps(run)
    trace = open_trace(tmp_path / "run")
    assert flame(trace) == flame(trace, step=1)
    assert next(row["duration"] for row in flame(trace) if row["name"] == "head") == pytest.approx(0.003)
    assert flame(trace, step=77) == []


def test_time_of_our_own_between_calls_does_not_push_them_out_of_their_caller(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        model = run.model("net", "Net")
        for number in range(4):  # 2 ms each, and after each the debugger measures for 5 ms
            span(run, run.module(f"{number}", "Linear", model), Phase.FORWARD, 0, (7 * number + 1, 2))
        span(run, model, Phase.FORWARD, 0, (0, 10))  # 30 ms less the 20 of the debugger
    net, *layers = flame(open_trace(tmp_path / "run"))
    assert [row["duration"] for row in layers] == pytest.approx([0.002] * 4)
    assert layers[-1]["end"] <= net["end"] + 1e-9
    assert all(a["end"] <= b["start"] + 1e-9 for a, b in pairwise(layers))


def test_layers_are_timed_over_all_their_calls(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        two_steps(run)
    trace = open_trace(tmp_path / "run")
    times = layer_times(trace)
    assert set(times) == {"block", "block.0", "block.1", "head"}
    assert times["head"] == pytest.approx(
        {"total_time": 0.005, "call_count": 2, "min_time": 0.002, "max_time": 0.003, "avg_time": 0.0025}
    )
    assert isinstance(times["head"]["call_count"], int)
    assert layer_times(trace, "backward")["head"]["total_time"] == pytest.approx(0.012)
    assert [row["layer"] for row in slowest(trace)] == ["block.1", "block.0", "head"]
    assert [row["layer"] for row in slowest(trace, 1)] == ["block.1"]


def test_a_run_without_spans_has_no_times(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.scalar("loss", 0, 1.0)
    trace = open_trace(tmp_path / "run")
    assert flame(trace) == slowest(trace) == []
    assert layer_times(trace) == {}
    assert chrome_trace(trace) == {"traceEvents": [], "displayTimeUnit": "ms"}


def test_a_chrome_trace_is_what_the_format_asks_for(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        two_steps(run)
    told = chrome_trace(open_trace(tmp_path / "run"))
    again = json.loads(json.dumps(told, allow_nan=False))
    calls = [event for event in again["traceEvents"] if event["ph"] == "X"]
    assert len(calls) == 14
    assert all({"name", "cat", "ts", "dur", "pid", "tid"} <= set(event) for event in calls)
    assert [event["args"]["name"] for event in again["traceEvents"] if event["ph"] == "M"] == ["rank 0"]
    head = [event for event in calls if event["name"] == "head" and event["cat"] == "backward"]
    assert [event["ts"] for event in head] == pytest.approx([30_000, 130_000])  # microseconds
    only = chrome_trace(open_trace(tmp_path / "run"), step=1)["traceEvents"]
    assert {event["args"]["step"] for event in only if event["ph"] == "X"} == {1}


def test_calls_of_a_chrome_trace_that_overlap_stand_in_lines_of_their_own(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        model = run.model("net", "Net")
        for number, times in enumerate([(0, 10), (5, 10), (8, 1), (20, 5)]):  # as on a device
            span(run, run.module(f"{number}", "Linear", model), Phase.FORWARD, 0, times)
    calls = [event for event in chrome_trace(open_trace(tmp_path / "run"))["traceEvents"] if event["ph"] == "X"]
    for line in {event["tid"] for event in calls}:
        of_line = sorted((event["ts"], event["ts"] + event["dur"]) for event in calls if event["tid"] == line)
        for (_, end), (start, later) in pairwise(of_line):
            assert start >= end or later <= end


def test_resources_are_as_recorded(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.scalar("loss", 0, 1.0)
        for step, busy in enumerate([10.0, 30.0, 20.0]):
            run.scalar("rss_bytes", step, 1e6)
            run.scalar("resource.cpu_percent", step, busy)
            run.scalar("resource.rss_bytes", step, 2e6 + step)
            run.scalar("resource.gpu1.power_watts", step, 300.0)
    trace = open_trace(tmp_path / "run")
    told = resources(trace)
    assert told["cpu"]["cpu_percent"]["values"] == [10.0, 30.0, 20.0]
    assert told["memory"]["rss_bytes"]["values"] == [2e6, 2e6 + 1, 2e6 + 2]
    assert told["gpu"] == {"gpu1": {"power_watts": {"steps": [0, 1, 2], "time_s": [0.0] * 3, "values": [300.0] * 3}}}
    assert resources(trace, between=(1, 1))["cpu"]["cpu_percent"]["values"] == [30.0]
    assert json.dumps(told, allow_nan=False)


def test_a_run_that_recorded_no_resources_tells_none(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.scalar("loss", 0, 1.0)
    assert resources(open_trace(tmp_path / "run")) == {"cpu": {}, "memory": {}, "gpu": {}}


def test_the_calls_of_a_real_network_are_nested_as_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from neuraldbg import NeuralDbg

    nn = torch.nn
    model = nn.Sequential(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Sequential(nn.Linear(64, 64)), nn.Linear(64, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with NeuralDbg(model, out=tmp_path / "run", budget="full") as dbg:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(8, 64)).square().mean().backward()
            optimizer.step()
        rows = flame(dbg.trace, step=1)
        times = layer_times(dbg.trace)
    forward = [(row["depth"], row["name"]) for row in rows if row["phase"] == "forward"]
    assert forward == [(0, "model"), (1, "0"), (2, "0.0"), (2, "0.1"), (1, "1"), (2, "1.0"), (1, "2")]
    assert times["0.0"]["call_count"] == 3
    stack: list[dict[str, Any]] = []
    for row in rows:
        del stack[row["depth"] :]
        assert len(stack) == row["depth"]
        if stack:
            assert stack[-1]["start"] <= row["start"] + 1e-9
            assert row["end"] <= stack[-1]["end"] + 1e-6
        stack.append(row)
    assert np.isfinite([row["duration"] for row in rows]).all()
