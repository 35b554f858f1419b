"""A session: started and stopped with and without await, one run that every command opens, a summary of findings."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from neuraldbg.debug import (
    DebugConfig,
    DebugSession,
    GradientDebugConfig,
    LayerHealth,
    ModelPerformanceMetrics,
    debug_session,
)
from neuraldbg.errors import ConfigError, UsageError
from neuraldbg.surfaces.cli import cli
from neuraldbg.trace import open_trace

Make = Callable[..., DebugSession]


def test_the_defaults_are_the_originals() -> None:
    config = DebugConfig()
    assert (config.enable_tensor_inspection, config.enable_gradient_debugging) == (True, True)
    assert (config.enable_model_diagnostics, config.enable_visualization) == (True, False)
    assert (config.enable_memory_profiling, config.enable_computation_graph_analysis) == (True, True)
    assert (config.max_tracked_tensors, config.max_gradient_history) == (1000, 100)
    assert (config.output_dir, config.sampling_rate) == (None, 1.0)
    limits = GradientDebugConfig()
    assert (limits.vanishing_threshold, limits.exploding_threshold, limits.dead_neuron_threshold) == (1e-7, 10.0, 0.1)
    assert (limits.oscillation_variance_threshold, limits.no_gradient_steps) == (100.0, 10)


def test_the_basic_usage_of_the_original_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def example() -> dict[str, object]:
        session = debug_session()
        await session.start()
        number = session.tensor_inspector_mut().inspect_tensor(
            np.linspace(0, 1, 1000), "my_tensor", "layer_1", "forward"
        )
        assert session.tensor_inspector().get_tensor_info(number) is not None
        session.gradient_debugger_mut().record_gradient_flow("layer_1", [0.01, 0.02, 0.015, 0.008])
        report = await session.stop()
        return report.summary()

    summary = asyncio.run(example())
    assert set(summary) == {"session_id", "total_issues", "critical_issues", "issues", "recommendations"}
    assert (summary["total_issues"], summary["issues"]) == (0, [])
    assert len(list((tmp_path / "neuraldbg_runs").iterdir())) == 1


def test_the_same_without_await_and_as_a_context(make_session: Make) -> None:
    with make_session() as session:
        session.gradient_debugger.record_gradient_flow("layer_1", [0.01, 0.02])
    report = session.stop()
    assert report.gradients is not None
    assert report.gradients.overall_health is LayerHealth.Healthy
    assert session.stop() is report

    async def awaited() -> None:
        async with make_session() as other:
            other.gradient_debugger.record_gradient_norm("a", 1.0)

    asyncio.run(awaited())


def test_the_config_of_the_original_example_and_its_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = DebugConfig(
        enable_tensor_inspection=True,
        enable_gradient_debugging=True,
        enable_model_diagnostics=True,
        enable_visualization=True,
        max_tracked_tensors=1000,
        max_gradient_history=200,
        output_dir="./debug_output",
        sampling_rate=0.1,
    )
    first, second = DebugSession(config), DebugSession(config)
    first.start()
    assert first.stop().run_dir == tmp_path / "debug_output"
    assert second.stop().run_dir == tmp_path / "debug_output-2"


def test_report_and_view_open_the_output_directory(make_session: Make) -> None:
    session = make_session()
    for step in range(30):
        metrics = ModelPerformanceMetrics(training_step=step, loss=1.0 / (step + 1), learning_rate=1e-3)
        session.model_diagnostics.record_performance(metrics)
        session.tensor_inspector.inspect_tensor(np.random.default_rng(step).random(10), "output", "fc1")
        session.gradient_debugger.record_gradient_flow("fc1", np.full(4, 0.1))
    directory = session.stop().run_dir
    assert directory is not None
    shown = CliRunner().invoke(cli, ["report", str(directory)])
    assert shown.exit_code == 0, shown.output
    assert "fc1" in shown.output
    told = json.loads(CliRunner().invoke(cli, ["report", str(directory), "--format", "json"]).output)
    assert [step for step, _ in told["series"]["loss"]][-1] == 29
    saved = json.loads((directory / "debug_report.json").read_text())
    assert saved["summary"]["session_id"] == session.id


def test_issues_are_summed_up_with_the_critical_ones_first(session: DebugSession) -> None:
    for _ in range(3):
        session.tensor_inspector.inspect_tensor(np.array([1e11]), "x", "fc1")
        session.tensor_inspector.inspect_tensor(np.array([np.nan]), "y", "fc2")
    session.gradient_debugger.record_gradient_flow("fc3", [50.0])
    summary = session.stop().summary()
    assert (summary["total_issues"], summary["critical_issues"]) == (3, 1)
    assert summary["issues"][0] == "y at step 0: 1 of 1 are NaN (3 times)"
    assert any("clip_grad_norm_" in text for text in summary["recommendations"])


def test_a_training_that_diverges_is_an_issue_and_a_leak_has_its_size(session: DebugSession) -> None:
    kept = []
    for step in range(40):
        kept.append(np.ones(32))
        session.tensor_inspector.inspect_tensor(kept[-1], "kept")
        metrics = ModelPerformanceMetrics(training_step=step, loss=float(np.exp(step / 10)))
        session.model_diagnostics.record_performance(metrics)
    summary = session.stop().summary()
    assert summary["critical_issues"] == 1
    assert summary["issues"][0].startswith("the loss is diverging: 1.16, then 4")
    assert "40 tensors 'kept' still live (10.2 kB): something keeps them" in summary["issues"]


def test_steps_are_counted_by_what_comes_again_or_as_told(make_session: Make) -> None:
    session = make_session()
    for _ in range(3):
        session.tensor_inspector.inspect_tensor(np.ones(1), "a")
        session.gradient_debugger.record_gradient_flow("fc1", [1.0])
    assert session.step == 2
    session.set_step(40)
    session.tensor_inspector.inspect_tensor(np.ones(1), "a")
    session.tensor_inspector.inspect_tensor(np.ones(1), "a")
    assert [one.step for one in session.tensor_inspector.get_tensors()] == [0, 1, 2, 40, 40]
    other = make_session()
    other.model_diagnostics.record_performance(ModelPerformanceMetrics(training_step=100, loss=1.0))
    assert other.step == 100


def test_the_report_and_the_run_count_the_same_steps(make_session: Make) -> None:
    for told in (False, True):
        session = make_session()
        for step in range(4):
            if told:
                session.set_step(step)
            session.tensor_inspector.inspect_tensor(np.ones(1), "a")
        report = session.stop()
        assert report.run_dir is not None
        with open_trace(report.run_dir) as trace:
            assert (report.steps, trace.facts("end")[0]["steps"]) == (4, 4)
    assert make_session().stop().steps == 0


def test_an_exception_of_the_loop_is_in_the_run(make_session: Make) -> None:
    session = make_session()
    with pytest.raises(ZeroDivisionError), session:
        session.gradient_debugger.record_gradient_norm("fc1", 1 / 0)
    directory = session.stop().run_dir
    assert directory is not None
    with open_trace(directory) as trace:
        assert (trace.run.exit_code, trace.run.error) == (1, "ZeroDivisionError: division by zero")


FALLING = """
import sys
import torch
from neuraldbg import NeuralDbg
from neuraldbg.debug import debug_session

session, dbg = debug_session(output_dir="told"), NeuralDbg(torch.nn.Linear(2, 2), out="watched")
session.gradient_debugger.record_gradient_norm("fc1", 1.0)
dbg.start()
1 / int(sys.argv[1])
"""


@pytest.mark.parametrize(("divisor", "told"), [("0", (1, "ZeroDivisionError: division by zero")), ("1", (0, None))])
def test_what_ends_a_program_that_closes_nothing_is_in_its_runs(
    divisor: str, told: tuple[int, str | None], tmp_path: Path
) -> None:
    done = subprocess.run([sys.executable, "-c", FALLING, divisor], cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == told[0], done.stderr
    for name in ("told", "watched"):
        with open_trace(tmp_path / name) as trace:
            assert (trace.run.exit_code, trace.run.error) == told, name


def test_a_wrong_setting_answers_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'sampling_rate'"):
        debug_session(samplingrate=0.5)
    wrong: tuple[tuple[str, Any], ...] = (("sampling_rate", 0), ("sampling_rate", 1.5), ("sampling_rate", "10%"))
    wrong += (("max_tracked_tensors", 0), ("max_alerts", "many"), ("max_kept_bytes", -1), ("max_kept_bytes", "64 MB"))
    for name, value in wrong:
        with pytest.raises(ConfigError, match=name):
            debug_session(**{name: value})
    for name, value in (("no_gradient_steps", 0), ("dead_neuron_threshold", 10), ("dead_neuron_threshold", "10%")):
        with pytest.raises(ConfigError, match=name):
            GradientDebugConfig(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"takes a DebugConfig\(\.\.\.\).* not a dict"):
        DebugSession({"sampling_rate": 0.1})  # type: ignore[arg-type]


def test_a_stopped_session_writes_and_raises_nothing_but_says_it_has_stopped(session: DebugSession) -> None:
    directory = session.stop().run_dir
    assert directory is not None
    session.tensor_inspector.inspect_tensor(np.ones(2), "late")
    session.profiler.start_timer("late")
    session.profiler.end_timer("late")
    with pytest.raises(UsageError, match="has stopped"):
        session.start()
    with open_trace(directory) as trace:
        assert [site.path for site in trace.sites] == []


def test_a_folder_that_cannot_be_written_costs_the_record_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    session = DebugSession(output_dir=tmp_path / "file" / "run")
    assert session.tensor_inspector.inspect_tensor(np.ones(2), "a") is not None
    assert session.stop().run_dir is None
    assert caplog.text.count("is not recorded") == 1


def test_sessions_of_two_threads_and_one_of_two_threads_do_not_mix(make_session: Make) -> None:
    import threading

    session = make_session(max_tracked_tensors=10_000)

    def work(name: str) -> None:
        for _ in range(200):
            session.tensor_inspector.inspect_tensor(np.ones(3), name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = session.tensor_inspector.get_tensors()
    assert len({one.id for one in found}) == 800
