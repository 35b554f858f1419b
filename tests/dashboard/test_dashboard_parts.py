"""The parts of the dashboard that a loop calls by hand: breakpoints, timing, helpers, remote control."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from neural.dashboard import dashboard
from neural.dashboard.breakpoints import BreakpointManager
from neural.dashboard.debugger_backend import DebuggerBackend
from neural.dashboard.hooks import UnknownEvent
from neural.dashboard.performance import PerformanceProfiler, UnpairedLayer
from neural.dashboard.profiler_utils import (
    LayerExecutionWrapper,
    anomaly_monitor,
    auto_initialize,
    breakpoint_helper,
    initialize_helpers,
    layer_profiler,
)
from neuraldbg.errors import ConditionError, UnknownBreakpoint, UsageError

# -- breakpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "data", "stops"),
    [
        ("layer_data['execution_time'] > 0.5", {"execution_time": 0.6}, True),
        ("layer_data['execution_time'] > 0.5", {"execution_time": 0.4}, False),
        ("layer_data['memory'] > 1000", {"memory": 2000}, True),
        ("layer_data['grad_norm'] < 0.001", {"grad_norm": np.float32(1e-5)}, True),
        ("layer_data['mean_activation'] == 0", {"mean_activation": 0}, True),
        ("layer_data['my_own'] > 1 and not np.isnan(layer_data['my_own'])", {"my_own": 2.5}, True),
        ("layer_data['grad_norm'] < 0.001", {}, False),  # not told
        (None, {}, True),
    ],
)
def test_a_condition_decides(condition: str | None, data: dict[str, Any], stops: bool) -> None:
    manager = BreakpointManager()
    manager.add_breakpoint("Conv2D_1", condition=condition)
    assert manager.should_break("Conv2D_1", data) is stops
    assert manager.breakpoints["Conv2D_1"]["hit_count"] == int(stops)  # only of true conditions
    assert manager.should_break("Dense_1", data) is False


@pytest.mark.parametrize(
    "text", ["__import__('os').system('true')", "layer_data.keys()", "().__class__", "9**9**9", "lambda: 1", "x = 1"]
)
def test_a_condition_cannot_run_code(text: str) -> None:
    manager = BreakpointManager()
    with pytest.raises(ConditionError):
        manager.add_breakpoint("a", condition=text)
    assert manager.breakpoints == {}
    manager.add_breakpoint("a")
    manager.breakpoints["a"]["condition"] = text  # also not through the dict
    assert manager.should_break("a", {}) is False
    assert manager.breakpoints["a"]["enabled"] is False


def test_a_condition_that_fails_turns_its_breakpoint_off_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    manager = BreakpointManager()
    manager.add_breakpoint("a", condition="1 / layer_data['x'] > 2")
    assert manager.should_break("a", {"x": 0}) is False
    assert "ZeroDivisionError" in caplog.text
    assert manager.get_breakpoint_info()["a"]["enabled"] is False


def test_breakpoints_are_listed_switched_and_removed() -> None:
    manager = BreakpointManager()
    manager.add_breakpoint("a", "x > 1", group="slow")
    manager.add_breakpoint("b", enabled=False, group="slow")
    assert manager.get_breakpoint_info()["a"] == {
        "enabled": True,
        "hit_count": 0,
        "condition": "x > 1",
        "group": "slow",
        "trigger_count": 0,
    }
    assert manager.toggle_breakpoint("b") is True
    assert manager.toggle_breakpoint("b") is False
    assert not manager.should_break("b", {})
    assert manager.set_group("slow", enabled=True) == ["a", "b"]
    assert manager.should_break("b", {})
    assert manager.remove_breakpoint("a")
    assert not manager.remove_breakpoint("a")
    with pytest.raises(UnknownBreakpoint, match="did you mean 'b'"):
        manager.toggle_breakpoint("B")
    with pytest.raises(UsageError):
        manager.add_breakpoint("")


def test_a_name_in_another_case_or_a_glob_is_found() -> None:
    manager = BreakpointManager()
    manager.add_breakpoint("conv2d_1")
    manager.add_breakpoint("layers.3.*")
    assert manager.should_break("Conv2D_1", {})
    assert manager.should_break("layers.3.attn", {})
    assert not manager.should_break("layers.4.attn", {})


def test_in_log_only_mode_hits_are_counted_and_nothing_stops(caplog: pytest.LogCaptureFixture) -> None:
    manager = BreakpointManager(pause_on_condition=False)
    manager.add_breakpoint("a")
    assert manager.should_break("a", {}) is False
    assert manager.get_breakpoint_info()["a"]["hit_count"] == 1
    assert manager.get_breakpoint_info()["a"]["trigger_count"] == 0
    assert "logged" in caplog.text
    off = BreakpointManager(enabled=False)
    off.add_breakpoint("a")
    assert off.should_break("a", {}) is False


@contextmanager
def held(manager: BreakpointManager, layer: str, data: dict[str, Any]) -> Iterator[threading.Thread]:
    """A thread that checks a layer and is held there."""
    there = threading.Event()
    manager.on_hold.append(lambda *_: there.set())
    breakpoint_helper.wait = True
    thread = threading.Thread(target=breakpoint_helper.check, args=(layer, data))
    thread.start()
    assert there.wait(20)
    try:
        yield thread
    finally:
        manager.continue_execution()
        thread.join(20)


def test_a_hit_holds_the_loop_until_somebody_continues() -> None:
    manager = dashboard.breakpoint_manager
    manager.add_breakpoint("a", "x > 1")
    with held(manager, "a", {"x": 2}) as thread:
        assert manager.paused
        assert (manager.current_layer, manager.current_data) == ("a", {"x": 2})
        assert thread.is_alive()
        manager.paused = False
        thread.join(20)
        assert not thread.is_alive()
    assert manager.get_breakpoint_info()["a"]["trigger_count"] == 1
    assert (manager.paused, manager.current_layer) == (False, None)


def test_where_nobody_can_answer_the_loop_goes_on_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.breakpoint_manager.add_breakpoint("a")
    with breakpoint_helper.check_context("a", {}) as stopped:
        assert stopped is False
    assert breakpoint_helper.check("a", {}) is False
    assert capsys.readouterr().err.count("nobody can answer") == 1
    assert dashboard.breakpoint_manager.get_breakpoint_info()["a"]["hit_count"] == 2


# -- timing ------------------------------------------------------------------------------------------------------------


def test_calls_are_timed_nested_and_each_once() -> None:
    clock = iter([0, 10, 30, 40, 45, 50])  # in tenths of a microsecond
    profiler = PerformanceProfiler(clock_ns=lambda: next(clock) * 100)
    profiler.start_layer("block")
    profiler.start_layer("a")
    profiler.end_layer("a")
    profiler.start_layer("a")
    assert [name for name, _ in profiler.call_stack] == ["block", "a"]
    profiler.end_layer("a")
    assert profiler.end_layer("block") == pytest.approx(5e-6)
    rows = profiler.get_flame_graph_data()
    assert [(row["name"], row["depth"]) for row in rows] == [("block", 0), ("a", 1), ("a", 1)]
    assert rows[1] == pytest.approx({"name": "a", "start": 1e-6, "end": 3e-6, "duration": 2e-6, "depth": 1})
    assert profiler.get_summary()["a"] == pytest.approx(
        {"total_time": 2.5e-6, "call_count": 2, "min_time": 0.5e-6, "max_time": 2e-6, "avg_time": 1.25e-6}
    )
    profiler.clear()
    assert (profiler.get_summary(), profiler.get_flame_graph_data(), profiler.layer_profiles) == ({}, [], {})


def test_ends_without_their_start_are_refused() -> None:
    profiler = PerformanceProfiler()
    with pytest.raises(UnpairedLayer, match="start_layer first"):
        profiler.end_layer("a")
    profiler.start_layer("a")
    profiler.start_layer("b")
    with pytest.raises(ValueError, match="'b' is under way"):
        profiler.end_layer("a")


# -- helpers -----------------------------------------------------------------------------------------------------------


def test_functions_and_blocks_are_timed_while_enabled() -> None:
    @layer_profiler.profile("f")
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    layer_profiler.disable()
    double(4)
    layer_profiler.enable()
    with layer_profiler.profile_context("block"):
        double(1)
    assert {name: each["call_count"] for name, each in dashboard.profiler.get_summary().items()} == {"f": 2, "block": 1}


def test_anomalies_are_told_to_who_asked() -> None:
    told: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    anomaly_monitor.set_alert_callback(lambda *arguments: told.append(arguments))
    for number in range(40):
        assert not anomaly_monitor.check("a", {"grad_norm": 1 + 0.01 * (number % 7)})["is_anomaly"]
    with anomaly_monitor.monitor_context("a") as metrics:
        metrics["grad_norm"] = float("nan")
    assert [(layer, result["is_anomaly"]) for layer, _, result in told] == [("a", True)]


def test_a_wrapped_layer_is_timed_pushed_and_watched() -> None:
    wrapper = LayerExecutionWrapper()

    @wrapper.wrap("Dense_1", collect_metrics=lambda output: {"mean_activation": output.mean()})
    def forward(x: Any) -> Any:
        return x * 2

    for _ in range(3):
        forward(np.ones(4))
        with wrapper.wrap_context("Dense_2") as execution:
            execution.set_metrics({"grad_norm": 0.5})
    entries = dashboard.get_trace_data()
    assert [entry["layer"] for entry in entries] == ["Dense_1", "Dense_2"] * 3
    assert entries[0]["mean_activation"] == 2.0
    assert dashboard.profiler.get_summary()["Dense_1"]["call_count"] == 3
    assert dashboard.pushed_run.step == 2  # a step ends when a layer comes again


def test_the_trace_list_keeps_the_newest_of_each_layer(tmp_path: Any) -> None:
    (tmp_path / "neural_config.yaml").write_text("history:\n  inspector: 3\n")
    wrapper = LayerExecutionWrapper()
    for number in range(6):
        for layer in ("a", "b"):
            with wrapper.wrap_context(layer) as execution:
                execution.set_metrics({"n": number})
    assert [(e["layer"], e["n"]) for e in dashboard.get_trace_data()] == [(x, n) for n in (3, 4, 5) for x in "ab"]


def test_helpers_work_with_what_they_are_given() -> None:
    mine = PerformanceProfiler()
    initialize_helpers(profiler=mine)
    with layer_profiler.profile_context("a"):
        pass
    assert mine.get_summary()["a"]["call_count"] == 1
    assert auto_initialize()
    assert layer_profiler.target is dashboard.profiler


# -- remote control ----------------------------------------------------------------------------------------------------


def test_a_loop_under_remote_control_waits_steps_and_goes_on() -> None:
    backend = DebuggerBackend()
    heard: list[str] = []
    for event in ("on_start", "on_pause", "on_step", "on_stop"):
        backend.register_callback(event, lambda event=event: heard.append(event))
    backend.handle_start()
    assert backend.wait_if_paused()
    backend.handle_pause()
    assert backend.status()["isPaused"]
    passed = threading.Semaphore(0)

    def loop() -> None:
        for _ in range(3):
            backend.wait_if_paused()
            passed.release()

    thread = threading.Thread(target=loop)
    thread.start()
    assert not backend.wait_if_paused(timeout_s=0.01)
    backend.handle_step()
    assert passed.acquire(timeout=20)
    assert backend.status()["isPaused"]
    backend.handle_continue()
    thread.join(20)
    backend.handle_stop()
    assert heard == ["on_start", "on_pause", "on_step", "on_stop"]
    assert backend.status() == {
        "isRunning": False, "isPaused": False, "currentLayer": None, "currentStep": 0, "breakpoints": [],
    }  # fmt: skip


def test_lines_with_breakpoints_pause() -> None:
    backend = DebuggerBackend()
    hit: list[int] = []
    backend.register_callback("on_breakpoint", hit.append)
    backend.handle_add_breakpoint(12)
    assert not backend.reached(11)
    assert backend.reached(12)
    assert backend.is_paused
    assert hit == [12]
    assert backend.handle_remove_breakpoint(12)["breakpoints"] == []
    with pytest.raises(UsageError):
        backend.handle_add_breakpoint(-1)
    with pytest.raises(UnknownEvent, match="on_pause"):
        backend.register_callback("on_paus", print)
    backend.update_progress("forward", forward=0.5)
    assert backend.progress == {"forwardPass": 0.5, "backwardPass": None, "currentPhase": "forward"}
