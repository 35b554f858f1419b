"""Real trainings in processes of their own, driven by the seeds' requests, and what becomes of their results."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from real_trainings import DEAD, NAN, TRAIN, plain, real
from waiting import eventually

pytestmark = pytest.mark.slow
DEBUG = ("debug", "--port", "0", "--out", "run")
CONDITION = 'layer_data["execution_time"] > 0.0'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_training_that_is_stopped_and_asked_trains_as_it_would_alone(folder: Path) -> None:
    size = ("30", "0.01")
    with real(folder, *DEBUG, "--step", "train.py", *size) as run:
        assert run.paused()["layer"] == "conv1"
        added = run.ask("POST", "/api/breakpoint", {"layer_name": "Conv2D_1", "condition": CONDITION})
        assert added["message"] == "Breakpoint added for Conv2D_1"
        assert run.ask("POST", "/api/continue")["message"] == "Execution continued"
        eventually(lambda: run.ask("GET", "/api/breakpoint")["Conv2D_1"]["hit_count"] == 1)
        assert run.paused()["layer"] == "conv1"
        assert run.ask("GET", "/api/layer_inspect/Conv2D_1")["breakpoint"]["hit_count"] == 1
        tensor = run.ask("GET", "/api/tensor?layer=Conv2D_1&kind=weight&slice=0")
        assert (tensor["shape"], len(tensor["values"])) == ([4, 1, 3, 3], 9)
        run.ask("POST", "/api/step")
        assert run.paused()["layer"] != "conv1"
        run.ask("POST", "/api/step", {"unit": "step"})
        assert run.paused()["phase"] == "step"
        gone = run.ask("DELETE", "/api/breakpoint", {"layer_name": "Conv2D_1"})
        assert gone["message"] == "Breakpoint removed for Conv2D_1"
        run.ask("POST", "/api/continue")
        run.ask("POST", "/api/pause")
        step = run.paused()["step"]
        run.ask("POST", "/api/continue")
        eventually(lambda: run.ask("GET", "/api/state").get("step") != step)
        assert run.end() == 3
    alone = plain(folder, *size)
    assert (alone.returncode, alone.stdout) == (3, run.out)
    assert run.out.startswith("done ")


def test_a_viewer_that_is_killed_in_a_pause_comes_back_with_the_breakpoints(folder: Path) -> None:
    with real(folder, *DEBUG, "--breakpoint", "fc if step == 3", "train.py", "2", "0") as run:
        assert run.paused()["step"] == 3
        os.kill(run.server_pid, signal.SIGKILL)
        with real(folder, "view", "run", "--port", "0") as view:
            assert view.paused()["layer"] == "fc"
            assert view.ask("GET", "/api/breakpoint")["fc"]["hit_count"] == 1
            assert view.ask("GET", "/api/tensor?layer=fc&kind=weight")["shape"] == [3, 144]
            view.ask("POST", "/api/continue")
            assert run.end() == 3
            assert view.ask("GET", "/api/state")["state"] == "crashed"  # a script that ends with 3
            view.process.send_signal(signal.SIGINT)
            assert view.end() == 0
    assert run.out == plain(folder, "2", "0").stdout
    assert "the viewer was killed (SIGKILL)" in run.err
    verdict = run.err.partition("the verdict comes from another one")[2]
    assert "Verdict    undecided: the script exited with code 3" in verdict


def test_a_viewer_that_is_stopped_does_not_stop_the_training(folder: Path) -> None:
    (folder / "neural_config.yaml").write_text("breakpoints:\n  pause_on_condition: false\n")
    with real(folder, *DEBUG, "--breakpoint", "*", "train.py", "100", "0.001") as run:
        run.ask("GET", "/api/state")  # the server has its line to the trainer now
        viewer = run.server_pid
        assert "done" not in run.out
        os.kill(viewer, signal.SIGSTOP)
        try:
            run.wait_for(r"done \w+ ", timeout_s=60.0)
            assert run.err.count("(logged;") > 1500
        finally:
            os.kill(viewer, signal.SIGCONT)
        assert run.end() == 3


def test_a_trainer_that_is_stopped_is_unresponsive(folder: Path) -> None:
    with real(folder, *DEBUG, "--step", "train.py", "1", "0") as run:
        run.paused()
        run.process.send_signal(signal.SIGSTOP)
        assert run.ask("GET", "/api/state")["state"] == "unresponsive"
        assert run.ask("GET", "/health")["status"] == "healthy"
        run.process.send_signal(signal.SIGCONT)
        assert run.paused()["layer"] == "conv1"
        assert run.ask("POST", "/api/abort")["message"] == "Training ends here"
        assert run.end() == -signal.SIGINT
    assert "done" not in run.out


def test_abort_ends_a_real_training_that_runs(folder: Path) -> None:
    with real(folder, *DEBUG, "train.py", "2000", "0.005") as run:
        eventually(
            lambda: run.ask("GET", "/api/state")["state"] == "running" and run.ask("GET", "/api/run")["last_step"]
        )
        assert run.ask("POST", "/api/abort")["message"] == "Training ends at the next layer"
        assert run.end() == -signal.SIGINT
    assert "done" not in run.out


def test_alert_on_nan_without_a_terminal_ends_with_6(folder: Path) -> None:
    (folder / "nan.py").write_text(NAN)
    with real(folder, *DEBUG, "--alert-on-nan", "nan.py") as run:
        assert run.end() == 6
    assert "reached the end" not in run.out
    assert "update 20" in run.err


def test_what_only_the_viewer_finds_pauses_and_goes_on(folder: Path) -> None:
    (folder / "dead.py").write_text(DEAD)
    with real(folder, *DEBUG, "--break-on", "dead_units", "dead.py") as run:
        run.wait_for("paused .*dead_units: 6 of 8 units", timeout_s=90.0)
        assert "dead_units" in run.paused()["reasons"][0]
        run.ask("POST", "/api/continue")
        eventually(lambda: run.ask("GET", "/api/state")["state"] == "running")
        (folder / "stop").touch()
        assert run.end() == 0
    assert run.out == "done\n"


def test_a_paused_run_that_is_recorded_shows_tensors_of_steps_before(folder: Path) -> None:
    size = ("30", "0.01")
    with real(folder, *DEBUG, "--record", "full", "--breakpoint", "fc if step == 20", "train.py", *size) as run:
        assert run.paused()["step"] == 20
        past = run.ask("GET", "/api/tensor?layer=fc&kind=output&step=7")
        assert (past["proof"], past["source"], past["step"]) == ("proved identical", "replayed", 7)
        assert len(past["values"]) == past["stats"]["count"]
        assert run.ask("GET", "/api/tensor?layer=fc&kind=gradient&step=19")["proof"] == "proved identical"
        assert run.ask("GET", "/api/tensor?layer=fc&kind=weight")["step"] == 20
        run.ask("DELETE", "/api/breakpoint", {"layer_name": "fc"})
        run.ask("POST", "/api/continue")
        assert run.end() == 3
    assert plain(folder, *size).stdout == run.out, "it trained as it would alone"
