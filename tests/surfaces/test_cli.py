"""The command line answers quickly, precisely, and never with a traceback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import AS_SCRIPT, environment, neural, refused
from made_runs import made_run, train

from neuraldbg.__main__ import as_command
from neuraldbg.surfaces.cli import COMMANDS

HEAVY = ("torch", "tensorflow", "fastapi", "uvicorn", "rich", "numpy", "psutil", "yaml")


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("--version",), ("debug", "--help"), ("report", "--help"), ()])
def test_help_and_version_import_nothing_heavy(tmp_path: Path, words: tuple[str, ...]) -> None:
    probe = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('HEAVY', [m for m in {HEAVY} if m in sys.modules], file=sys.stderr))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe + AS_SCRIPT, *words],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "HEAVY []\n")
    assert result.stdout


def test_help_lists_every_command_and_every_command_has_a_file(tmp_path: Path) -> None:
    shown = neural("--help", cwd=tmp_path).stdout
    for name, meaning in COMMANDS.items():
        assert f"{name} " in shown
        assert neural(name, "--help", cwd=tmp_path).stdout.startswith(f"Usage: neural {name}"), meaning


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("reprot",), "no command 'reprot'; did you mean 'report'?"),
        (("zzz",), "no command 'zzz'; see neural --help"),
        (("report", "nowhere"), "no run 'nowhere'"),
        (("report", "--fromat", "json"), "No such option '--fromat'. Did you mean '--format'?"),
        (("report", "good", "--format", "htlm"), "no format 'htlm'; did you mean 'html'?"),
        (("report", "good", "--format", "html", "--json"), "--json and --format html ask for two things"),
        (("report", "good", "--format", "html", "--anomalies"), "--anomalies is for text and json"),
        (("report", "gone", "--format", "html"), "no run 'gone'"),
        (("report", "good", "--format", "html", "-o", "missing/x.html"), "cannot write missing/x.html: No such file"),
        (("report", "good", "-o", "missing/x.txt"), "cannot write missing/x.txt: No such file or directory"),
        (("export", "good", "--format", "jsno"), "no format 'jsno'; did you mean 'json'?"),
        (("export", "good", "-o", "missing/x.json"), "cannot write missing/x.json: No such file or directory"),
        (("inspect", "good", "covn1"), "no layer 'covn1' in this run; did you mean 'conv1'"),
        (("inspect", "good", "fc", "--kind", "gradeint"), "no kind 'gradeint' in this run; did you mean 'gradient'?"),
        (("inspect", "good", "fc", "--step", "-1"), "--step -1: steps count from 0"),
        (("compare", "good", "gone.json"), "no run 'gone.json'"),
        (("compare", "good"), "Missing argument 'B'."),
        (("completion", "tcsh"), "no completion for 'tcsh'; available: bash, zsh, fish"),
        (("debug",), "debug needs a target: neural debug train.py"),
        (("debug", "--budgt", "1%", "t.py"), "No such option '--budgt'. (Did you mean one of: '--budget'"),
        (("debug", "--budget", "5", "t.py"), "write 5% if you mean percent"),
        (("debug", "--max-disk", "lots", "t.py"), "a size such as 512MB"),
        (("debug", "--fail-on", "never", "t.py"), "flag --fail-on"),
        (("debug", "python", "-O", "t.py"), "python -O -m neuraldbg train.py"),
        (("debug", "-m"), "-m needs the name of a module"),
    ],
)
def test_a_mistake_is_answered_in_one_line(place: Path, words: tuple[str, ...], answer: str) -> None:
    assert answer in refused(neural(*words, cwd=place))


def test_a_script_in_the_place_of_a_command_is_pointed_to_debug(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert refused(neural("train.py", cwd=tmp_path)) == "'train.py' is no command; to debug it: neural debug train.py"


def test_without_a_run_there_is_a_hint(tmp_path: Path) -> None:
    for command in ("report", "inspect", "export"):
        answer = refused(neural(command, cwd=tmp_path))
        assert answer == "no run in ./neuraldbg_runs; name one, or make one: neural debug train.py"


def test_a_run_is_the_newest_or_named_or_a_path(place: Path) -> None:
    newest = neural("report", cwd=place).stdout
    assert "Run        neuraldbg_runs/broken" in newest
    assert neural("report", "broken", cwd=place).stdout == newest
    assert neural("report", str(place / "neuraldbg_runs" / "broken"), cwd=place).stdout == newest


def test_a_folder_that_is_no_run_is_refused(place: Path) -> None:
    (place / "photos").mkdir()
    assert "photos" in refused(neural("report", "photos", cwd=place))


def test_report_as_json_is_the_session(place: Path) -> None:
    for words in (("--json",), ("--format", "json")):
        session = json.loads(neural("report", "good", *words, cwd=place).stdout)
        assert session["schema"] == "neuraldbg.session/1"
        assert session["run"]["steps"] == 50


def test_inspect_lists_layers_with_their_other_names(place: Path) -> None:
    listed = json.loads(neural("inspect", "good", "--json", cwd=place).stdout)
    assert [layer["path"] for layer in listed["layers"]] == ["conv1", "act", "fc"]
    assert "Dense_1" in listed["layers"][2]["aliases"]
    assert "Linear_1" in neural("inspect", "good", cwd=place).stdout


def test_inspect_shows_a_layer_at_a_step(place: Path) -> None:
    shown = json.loads(
        neural("inspect", "broken", "fc1", "--step", "40", "--kind", "activation", "--json", cwd=place).stdout
    )
    (view,) = shown["kinds"]
    assert (shown["layer"], view["step"], view["stats"]["nan_count"], view["first_bad_step"]) == ("fc", 40, 100, 33)
    assert view["history"]["l2"][-1] == "nan"
    text = neural("inspect", "fc", cwd=place).stdout
    assert "activation at step 49" in text
    assert "100 NaN, 0 Inf" in text
    assert "gradient of weight at step 49" in text


def test_compare_takes_runs_and_sessions(place: Path) -> None:
    assert neural("export", "good", "-o", "good.json", cwd=place).returncode == 0
    for first in ("good", "good.json"):
        found = json.loads(neural("compare", first, "broken", "--json", cwd=place).stdout)
        assert (found["a"]["id"], found["b"]["id"]) == ("good", "broken")
        assert found["loss_differs_from"] == 33
        assert found["divergence_searched"] is (first == "good")
    shown = " ".join(neural("debug", "--compare", "good", "broken", cwd=place).stdout.split())
    assert "First diverging layer: fc (activation) at step 33, NaN count 0 in A and 100 in B." in shown
    as_the_seed_writes_it = neural("debug", "model.neural", "--compare", "good.json", "good.json", cwd=place)
    assert "The losses agree on every step both runs have." in as_the_seed_writes_it.stdout


def test_a_file_that_is_no_session_is_refused(place: Path) -> None:
    (place / "a.json").write_text('{"schema": "other/1"}')
    (place / "b.json").write_text("not json")
    assert refused(neural("compare", "a.json", "good", cwd=place)) == (
        "a.json is not a session of schema neuraldbg.session/1 but other/1"
    )
    assert "b.json is neither a run directory nor a session file" in refused(
        neural("compare", "b.json", "good", cwd=place)
    )


def test_doctor_names_what_is_there_and_what_it_means(tmp_path: Path) -> None:
    checks = {check["name"]: check for check in json.loads(neural("doctor", "--json", cwd=tmp_path).stdout)["checks"]}
    assert checks["python"]["status"] == "ok"
    assert checks["numpy"]["status"] == "ok"
    assert all(check["meaning"] for check in checks.values())
    assert {"torch", "tensorflow", "jax", "onnx", "cuda", "neuraldbg", "neural", "terminal", "cores", "disk"} <= set(
        checks
    )
    assert checks["statistics"]["found"].startswith(("C kernel", "torch ops"))
    assert checks["statistics"]["found"] in neural("doctor", cwd=tmp_path).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_both_program_names(tmp_path: Path, shell: str) -> None:
    script = neural("completion", shell, cwd=tmp_path).stdout
    assert "_NEURAL_COMPLETE" in script
    assert "_NEURALDBG_COMPLETE" in script


def test_completion_completes(tmp_path: Path) -> None:
    asked = {"_NEURAL_COMPLETE": "bash_complete", "COMP_WORDS": "neural in", "COMP_CWORD": "1"}
    assert neural(cwd=tmp_path, **asked).stdout == "plain,inspect\n"
    asked = {"_NEURAL_COMPLETE": "bash_complete", "COMP_WORDS": "neural debug --bud", "COMP_CWORD": "2"}
    assert neural(cwd=tmp_path, **asked).stdout == "plain,--budget\n"


def test_a_closed_pipe_is_quiet(place: Path) -> None:
    with made_run(place / "neuraldbg_runs" / "long") as run:
        train(run, steps=3000)
        run.end(steps=3000)
    process = subprocess.Popen(
        [sys.executable, "-c", AS_SCRIPT, "export", "long", "--format", "csv", "-o", "-"],
        cwd=place, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


def test_an_interrupt_is_quiet(tmp_path: Path) -> None:
    waiting = (
        "import neuraldbg.surfaces.cli as c, time; c.exit_code_of(lambda: (print('up', flush=True), time.sleep(60)))"
    )
    code = waiting.replace("c.exit", "raise SystemExit(c.exit") + ")"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["train.py", "--lr", "1"], ["debug", "train.py", "--lr", "1"]),
        (["-m", "pkg.train"], ["debug", "-m", "pkg.train"]),
        (["--headless", "train.py"], ["debug", "--headless", "train.py"]),
        (["-v", "train.py", "report"], ["-v", "debug", "train.py", "report"]),
        (["report", "x"], ["report", "x"]),
        (["--no-animations", "report"], ["--no-animations", "report"]),
        (["--help"], ["--help"]),
        (["--version"], ["--version"]),
        ([], []),
    ],
)
def test_python_m_neuraldbg_means_debug_unless_a_command_is_named(words: list[str], meant: list[str]) -> None:
    assert as_command(words) == meant
