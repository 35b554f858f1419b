"""Where a run is recorded, and what is said of scripts that train oddly or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forkserver import ForkServer, Result
from programs.truth import FOLDER

BAD = FOLDER / "bad"


@pytest.fixture
def debug(torch_server: ForkServer, tmp_path: Path) -> Any:
    """`neural debug --headless ...` in an empty folder."""

    def run(*words: str, **how: Any) -> Result:
        return torch_server.neural("debug", "--headless", *map(str, words), cwd=tmp_path, **how)

    return run


def run_line(result: Result) -> str:
    [line] = [line for line in result.stderr.splitlines() if line.startswith("neuraldbg:")]
    return line


def test_a_run_directory_is_made_beside_the_script_runs(debug: Any, tmp_path: Path) -> None:
    assert debug(BAD / "exits_3.py").code == 3
    [run] = (tmp_path / "neuraldbg_runs").iterdir()
    assert run.name.endswith("-exits_3")
    about = json.loads((run / "run.json").read_text())
    assert about["command"][0].endswith("exits_3.py")


@pytest.mark.parametrize("obstacle", ["a file in the way", "/proc"])
def test_a_place_that_cannot_be_written_does_not_stop_the_training(debug: Any, tmp_path: Path, obstacle: str) -> None:
    words = ["--out", "/proc/run"] if obstacle == "/proc" else []
    (tmp_path / "neuraldbg_runs").write_text("I am a file")
    result = debug(*words, BAD / "exits_3.py")
    assert (result.code, result.stdout) == (3, "leaving\n")
    assert "recording to" in run_line(result)
    place = Path(run_line(result).rpartition("recording to ")[2])
    assert (place / "run.json").is_file()
    assert "Traceback" not in result.stderr


def test_an_out_directory_that_holds_something_is_refused(debug: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all my work")
    result = debug("--out", "mine", BAD / "exits_3.py")
    assert result.code == 2
    assert result.out == b"", "the script did not run"
    [line] = result.stderr.splitlines()
    assert "mine is not empty" in line
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "all my work"


def test_an_empty_out_directory_is_used(debug: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert debug("--out", "mine", BAD / "exits_3.py").code == 3
    assert (tmp_path / "mine" / "run.json").is_file()


ODD = {
    "never_trains.py": (0, 0, ["model"]),
    "no_optimizer.py": (0, 10, ["model"]),
    "raises.py": (1, 0, []),
    "train_then_raise.py": (1, 7, ["model"]),
    "exits_3.py": (3, 5, ["model"]),
    "keyboard_interrupt.py": (-2, 5, ["model"]),
    "thread_trains.py": (0, 20, ["model"]),
    "prints_argv.py": (0, 0, []),
}


@pytest.mark.parametrize("program", ODD)
def test_odd_scripts_get_a_normal_report(debug: Any, torch_server: ForkServer, tmp_path: Path, program: str) -> None:
    code, steps, models = ODD[program]
    plain = torch_server.python(BAD / program, cwd=tmp_path)
    result = debug("--export", "session.json", BAD / program)
    session = json.loads((tmp_path / "session.json").read_text())
    assert result.code == plain.code == code
    assert result.stdout == plain.stdout
    assert session["run"]["steps"] == steps
    assert [model["name"] for model in session["run"]["models"]] == models
    assert result.stderr.count("Traceback") == plain.stderr.count("Traceback")
    assert "NeuralDbg" in result.stderr


def test_a_script_that_leaves_by_os_exit_is_still_reported(debug: Any, tmp_path: Path) -> None:
    result = debug("--export", "session.json", BAD / "os_exit.py")
    assert (result.code, result.stdout) == (5, "gone\n")
    assert "NeuralDbg" in result.stderr
    assert json.loads((tmp_path / "session.json").read_text())["run"]["exit_code"] is None, "nobody saw the end"


def test_a_script_that_trains_twice_is_one_run(debug: Any, tmp_path: Path) -> None:
    result = debug("--export", "session.json", FOLDER / "two_trainings.py")
    session = json.loads((tmp_path / "session.json").read_text())
    assert result.code == 0
    assert len(session["run"]["optimizers"]) == 2
    assert session["run"]["steps"] == sum(one["updates"] for one in session["run"]["optimizers"])


def test_json_on_stdout_comes_after_what_the_script_prints(debug: Any) -> None:
    result = debug("--json", BAD / "exits_3.py")
    lines = result.stdout.splitlines()
    assert lines[0] == "leaving"
    assert json.loads(lines[-1])["run"]["exit_code"] == 3


def test_json_has_the_last_line_for_itself_where_the_script_left_its_own_open(debug: Any, tmp_path: Path) -> None:
    (tmp_path / "open_line.py").write_text("print('50%', end='')\n")
    lines = debug("--json", tmp_path / "open_line.py").stdout.splitlines()
    assert lines[0] == "50%"
    assert json.loads(lines[-1])["run"]["exit_code"] == 0


def test_the_script_cannot_tell_that_it_is_watched(debug: Any, torch_server: ForkServer, tmp_path: Path) -> None:
    """Open files, signal handlers, the process itself."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, warnings\n"
        "print([signal.getsignal(n) for n in (2, 15, 17)], len(warnings.filters) > 0)\n"
        "print(sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__)\n"
        "print(sys.getrecursionlimit(), sys.flags.optimize, __debug__, sys.stdout.isatty())\n"
        "import logging; print(logging.getLogger().handlers, logging.getLogger().level)\n"
        "print(os.getpgid(0) == os.getpid(), os.getppid() > 1)\n"
    )
    plain, watched = torch_server.python(script, cwd=tmp_path), debug(script)
    assert watched.stdout == plain.stdout


def test_a_budget_of_nothing_still_keeps_the_ledger(debug: Any, tmp_path: Path) -> None:
    result = debug("--budget", "off", "--export", "session.json", FOLDER / "mnist_cnn.py")
    session = json.loads((tmp_path / "session.json").read_text())
    assert result.code == 0
    assert session["run"]["steps"] > 0
    assert session["overhead"]["sampled_steps"] == 0
