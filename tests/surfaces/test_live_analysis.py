"""While a run trains, the viewer writes what it finds, seldom enough to cost the training nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import environment
from made_runs import MadeRun, made_run, train
from waiting import eventually

from neuraldbg.analysis.anomalies.watch import FOUND_FILE, MODEL_FILE
from neuraldbg.analysis.catalogue import catalogue
from neuraldbg.analysis.diagnose import NOT_YET
from neuraldbg.analysis.summary import summarise
from neuraldbg.surfaces import live_analysis
from neuraldbg.surfaces.live_analysis import LiveAnalysis
from neuraldbg.surfaces.terminal.live import LiveText
from neuraldbg.trace import open_trace
from neuraldbg.trace.findings import analysis_lock

FINDINGS = "findings.jsonl"


def lines(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / FINDINGS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_findings_are_there_while_the_run_goes_on(tmp_path: Path) -> None:
    """A real viewer beside a trainer that has not ended."""
    with made_run(tmp_path / "run") as run:
        train(run, nan_from=33)
        run.writer.flush()
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "neuraldbg.surfaces.viewer", str(run.directory), "--parent-fd", str(reading)]
        viewer = subprocess.Popen(
            [*command, "--first-look", "0.1", "--least-pause", "0.1"],
            pass_fds=[reading], env=environment(), stderr=subprocess.PIPE,
        )  # fmt: skip
        os.close(reading)
        try:
            eventually(lambda: lines(run.directory))
            assert viewer.poll() is None
            assert "nan_loss" in {each["kind"] for each in lines(run.directory)}
            with open_trace(run.directory) as trace:
                assert "nan_loss" in {each["kind"] for each in trace.findings()}
            run.end(steps=50)
        finally:
            os.close(writing)
            _, err = viewer.communicate(timeout=60)
    assert b"Verdict    critical" in err
    assert {MODEL_FILE, FOUND_FILE} <= set(os.listdir(run.directory))


def test_a_short_run_is_not_looked_at_before_its_end(tmp_path: Path) -> None:
    analysis = LiveAnalysis(tmp_path / "nowhere")
    assert 0.9 * live_analysis.FIRST_LOOK_S < analysis.wait_s() <= live_analysis.FIRST_LOOK_S


def test_a_look_is_followed_by_fifteen_times_its_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_analysis, "GLANCE_S", 1e9)
    analysis = LiveAnalysis(tmp_path, first_look_s=0.0)
    monkeypatch.setattr(analysis, "_grew", lambda: time.sleep(0.4))
    assert analysis.wait_s() == 0
    analysis.tend()
    assert analysis.wait_s() > 0.95 * live_analysis.REST * 0.4
    monkeypatch.setattr(analysis, "_grew", lambda: False)
    analysis.look()
    assert live_analysis.LEAST_PAUSE_S - 1 < analysis.wait_s() <= live_analysis.LEAST_PAUSE_S + 2


def test_a_loss_that_breaks_is_looked_at_before_its_turn_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made_run(tmp_path / "run") as run:
        analysis = LiveAnalysis(run.directory, first_look_s=3600)
        seen: list[int] = []
        monkeypatch.setattr(analysis, "_analyse", lambda: seen.append(1))
        monkeypatch.setattr(analysis, "_rest", 1e9)
        counts = []
        for step, loss in enumerate([1.0, 0.5, float("nan"), float("nan"), 0.2]):
            run.scalar("loss", step, loss)
            run.scalar("val_loss", step, float("inf"))
            run.writer.flush()
            analysis.tend()
            counts.append(len(seen))
    assert counts == [0, 0, 1, 1, 1]


def test_what_a_glance_has_read_is_not_lost_for_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, analysis = story(tmp_path)
    seen: list[int] = []
    monkeypatch.setattr(analysis, "_analyse", lambda: seen.append(1))
    analysis.tend()
    assert seen == []
    analysis.look()
    analysis.look()
    assert seen == [1]


def test_nothing_readable_is_looked_at_again_later(tmp_path: Path) -> None:
    analysis = LiveAnalysis(tmp_path / "run", first_look_s=0.0)
    analysis.look()
    with made_run(tmp_path / "run") as run:
        train(run, nan_from=33)
    analysis.look()
    assert "nan_loss" in {each["kind"] for each in lines(run.directory)}
    assert analysis.headline is not None
    assert analysis.headline.startswith("critical: ")


def story(tmp_path: Path) -> tuple[MadeRun, LiveAnalysis]:
    with made_run(tmp_path / "run") as run:
        train(run)
    return run, LiveAnalysis(run.directory)


def found(severity: str, **changes: Any) -> dict[str, Any]:
    given = {"id": "a::0", "kind": "a", "severity": severity, "step": 3, "evidence": {"count": 1}}
    return {**given, **changes}


def looks(analysis: LiveAnalysis, monkeypatch: pytest.MonkeyPatch, *results: list[dict[str, Any]]) -> list[int]:
    """Lines of findings.jsonl after each of several looks, which find `results`."""
    from neuraldbg.analysis import summary as room

    real = room.summarise
    counts = []
    for result in results:

        def summarised(*args: Any, result: list[dict[str, Any]] = result, **how: Any) -> Any:
            from dataclasses import replace

            return replace(real(*args, **how), findings=tuple(result))

        monkeypatch.setattr(room, "summarise", summarised)
        monkeypatch.setattr(analysis, "_grew", lambda: True)
        analysis._trace = analysis._trace or open_trace(analysis.run_dir)
        analysis.look()
        counts.append(len(lines(analysis.run_dir)))
    return counts


def test_a_warning_is_believed_when_two_looks_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, analysis = story(tmp_path)
    once = found("warning")
    assert looks(analysis, monkeypatch, [once], [], [once], [once]) == [0, 0, 0, 1]
    assert analysis.headline == "warning: a"
    assert lines(run.directory) == [once]


def test_what_only_the_end_proves_waits_for_it(tmp_path: Path) -> None:
    """A scheduler that is stepped once an epoch looks as if it never were, until the first one is over."""
    with made_run(tmp_path / "run") as run:
        train(run)
        optimizer = run.optimizer("Adam", lr=0.001)
        run.writer.fact(
            "scheduler", optimizer=optimizer, settings={}, milestones=None, source="t.py:3", **{"class": "StepLR"}
        )
    with open_trace(run.directory) as trace:
        assert [one["kind"] for one in summarise(trace).findings] == ["scheduler_misuse"]
        assert summarise(trace, ongoing=True).findings == ()
    analysis = LiveAnalysis(run.directory)
    analysis.look()
    analysis._trace = None
    analysis.look()
    assert lines(run.directory) == []
    assert set(catalogue()) >= NOT_YET


def test_the_live_line_names_what_is_wrong_and_what_was_asked_for(tmp_path: Path) -> None:
    with made_run(tmp_path / "run", settings={"focus": ["gradients"]}) as run:
        train(run)
        run.scalar("grad_norm", 49, 0.25)
    with open_trace(run.directory) as trace:
        text = LiveText(trace).text(now_s=1.0, running_s=1.0, verdict="critical: nan_loss")
    assert "| critical: nan_loss | grad. norm 0.250 |" in text


def test_a_critical_finding_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, analysis = story(tmp_path)
    assert looks(analysis, monkeypatch, [found("critical")]) == [1]


def test_numbers_that_grow_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, analysis = story(tmp_path)
    results = [[found("critical", evidence={"count": number})] for number in range(6)]
    assert looks(analysis, monkeypatch, *results, [found("critical", layer="fc")]) == [1, 1, 1, 1, 1, 1, 2]


def test_what_is_no_longer_found_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, analysis = story(tmp_path)
    assert looks(analysis, monkeypatch, [found("critical")], []) == [1, 2]
    assert lines(run.directory)[-1] == {"id": "a::0", "withdrawn": True}
    assert analysis.headline is None


def test_somebody_else_who_analyses_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, analysis = story(tmp_path)
    with analysis_lock(analysis.run_dir) as mine:
        assert mine
        assert looks(analysis, monkeypatch, [found("critical")]) == [0]
    assert looks(analysis, monkeypatch, [found("critical")]) == [1]


def test_a_run_that_did_not_grow_is_not_analysed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, analysis = story(tmp_path)
    times: list[int] = []
    monkeypatch.setattr(analysis, "_analyse", lambda: times.append(1))
    analysis.look()
    analysis.look()
    assert times == [1]
