"""However a trainer ends, what it had written is there, somebody says what happened, and nothing else is harmed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forkserver import ForkServer, Result, Running
from programs.truth import FOLDER

from neuraldbg import open_trace

pytestmark = pytest.mark.slow
BAD = FOLDER / "bad"
PROMISED_S = 2.0  # what is older than this when the kill comes must be on the disk


def start(torch_server: ForkServer, folder: Path, *options: str) -> Running:
    run = torch_server.start(
        "debug", "--headless", "--out", str(folder / "run"), *options, str(BAD / "sleeper.py"), neural=True, cwd=folder
    )
    run.wait_for_output(b"step 10 ")
    return run


def steps_printed(output: bytes) -> int:
    lines = re.findall(rb"^step (\d+) .*\n", output, re.MULTILINE)
    return int(lines[-1])


def recorded_steps(folder: Path) -> list[int]:
    """Steps of which the trace holds the time; the time axis has no hole."""
    with open_trace(folder / "run") as trace:
        site = next(site.id for site in trace.sites if site.path == "step_time_s")
        return sorted(trace.table("scalars", columns=["step"], site=site)["step"].tolist())


def kill_at_random(run: Running, number: int, seed: int) -> tuple[Result, int]:
    """Kills after a random while; the result, and the step the script had reached long enough ago to be promised."""
    pause = random.Random(seed).uniform(0.0, 0.9)
    time.sleep(pause)
    promised = steps_printed(run.out)
    time.sleep(PROMISED_S)
    run.kill(number)
    return run.wait(), promised


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_run_is_read_back_and_reported(torch_server: ForkServer, tmp_path: Path, seed: int) -> None:
    result, promised = kill_at_random(start(torch_server, tmp_path), signal.SIGKILL, seed)
    assert result.code == -signal.SIGKILL
    steps = recorded_steps(tmp_path)
    assert steps == list(range(len(steps))), "no hole"
    assert len(steps) >= promised
    assert "killed" in result.stderr
    assert "NeuralDbg  sleeper.py" in result.stderr
    assert "Linear" in result.stderr, "the layers are listed as after any run"
    with open_trace(tmp_path / "run") as trace:
        assert not trace.ended


def test_a_terminated_run_is_read_back_and_reported(torch_server: ForkServer, tmp_path: Path) -> None:
    result, promised = kill_at_random(start(torch_server, tmp_path), signal.SIGTERM, 3)
    assert result.code == -signal.SIGTERM
    assert len(recorded_steps(tmp_path)) >= promised
    assert "NeuralDbg  sleeper.py" in result.stderr


def test_ctrl_c_reaches_the_script_and_the_report_still_comes(torch_server: ForkServer, tmp_path: Path) -> None:
    """The terminal sends it to the whole group: the viewer must not die of it."""
    run = start(torch_server, tmp_path)
    run.kill(signal.SIGINT, group=True)
    result = run.wait()
    assert result.code == -signal.SIGINT
    assert "KeyboardInterrupt" in result.stderr
    assert "NeuralDbg  sleeper.py" in result.stderr
    with open_trace(tmp_path / "run") as trace:
        assert trace.ended
        assert len(recorded_steps(tmp_path)) >= steps_printed(result.out)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_dead_viewer_does_not_harm_the_training(torch_server: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        (BAD / "sleeper.py").read_text().replace("while True:", "while step < 400:") + "raise SystemExit(3)\n"
    )
    run = torch_server.start("debug", "--headless", "--out", "run", "train.py", neural=True, cwd=tmp_path)
    run.wait_for_output(b"step 10 ")
    [viewer] = _children(run.pid)
    os.kill(viewer, signal.SIGKILL)
    result = run.wait()
    assert result.code == 3
    assert steps_printed(result.out) == 400
    assert len(recorded_steps(tmp_path)) == 400
    assert "Traceback" not in result.stderr


def test_a_stopped_and_continued_run_goes_on(torch_server: ForkServer, tmp_path: Path) -> None:
    run = start(torch_server, tmp_path)
    run.kill(signal.SIGSTOP)
    time.sleep(0.3)
    before = steps_printed(run.out)
    run.kill(signal.SIGCONT)
    run.wait_for_output(f"step {before + 50} ".encode())
    run.kill(signal.SIGTERM)
    assert run.wait().code == -signal.SIGTERM
    steps = recorded_steps(tmp_path)
    assert steps == list(range(len(steps)))


# -- a full disk -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of its own."""
    place = folder / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a tmpfs here; the limit on file size is tested all the same")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def training(folder: Path, steps: int) -> str:
    script = folder / "train.py"
    script.write_text(
        "import sys, torch\nfrom torch import nn\ntorch.set_num_threads(1)\ntorch.manual_seed(0)\n"
        "model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)], nn.Linear(8, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        f"for step in range({steps}):\n"
        "    optimizer.zero_grad()\n"
        "    loss = nn.functional.mse_loss(model(torch.randn(8, 8)), torch.zeros(8, 1))\n"
        "    loss.backward()\n    optimizer.step()\n"
        "print('trained', loss.item().hex())\n"
    )
    return str(script)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="mounting a small disk needs root; the limit on file size is tested below"
)
@pytest.mark.parametrize("size", ["200k", "1m"])
def test_a_full_disk_costs_rows_and_not_the_training(torch_server: ForkServer, tmp_path: Path, size: str) -> None:
    script = training(tmp_path, 400)
    plain = torch_server.python(script)
    with small_disk(tmp_path, size) as disk:
        result = torch_server.neural(
            "debug", "--headless", "--budget", "full", "--out", str(disk / "run"), script, cwd=tmp_path
        )
        assert (result.code, result.stdout) == (0, plain.stdout), result.stderr
        with open_trace(disk / "run") as trace:
            assert sum(trace.dropped.values()) > 0
            assert trace.ended
    assert re.search(r"dropped|lost", result.stderr), result.stderr
    assert "Traceback" not in result.stderr


def test_a_limit_on_the_size_of_files_costs_rows_and_not_the_training(torch_server: ForkServer, tmp_path: Path) -> None:
    """What a quota does: writes fail in the middle of the run."""
    script = training(tmp_path, 400)
    plain = torch_server.python(script)
    wrapper = tmp_path / "limited.py"
    wrapper.write_text(
        "import resource, runpy, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))\n"
        f"sys.argv = [{script!r}]\nrunpy.run_path({script!r}, run_name='__main__')\n"
    )
    result = torch_server.neural("debug", "--headless", "--budget", "full", "--out", "run", str(wrapper), cwd=tmp_path)
    assert (result.code, result.stdout) == (0, plain.stdout), result.stderr
    with open_trace(tmp_path / "run") as trace:
        assert sum(trace.dropped.values()) > 0
    assert re.search(r"dropped|lost", result.stderr), result.stderr


def test_the_disk_a_run_may_take_is_kept_to(torch_server: ForkServer, tmp_path: Path) -> None:
    words = ["--budget", "full", "--max-disk", "400KB", "--export", "session.json", "--out", "run"]
    result = torch_server.neural("debug", "--headless", *words, training(tmp_path, 600), cwd=tmp_path)
    assert result.code == 0
    taken = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert taken <= 400_000
    session = json.loads((tmp_path / "session.json").read_text())
    assert session["run"]["steps"] == 600


def test_a_run_directory_that_vanishes_does_not_stop_the_training(torch_server: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        Path(training(tmp_path, 100)).read_text().replace("print(", "import shutil; shutil.rmtree('run')\nprint(")
    )
    result = torch_server.neural("debug", "--headless", "--out", "run", "train.py", cwd=tmp_path)
    assert result.code == 0
    assert result.stdout.startswith("trained ")
    assert "Traceback" not in result.stderr


def test_a_cold_start_works_as_the_warm_one_does(tmp_path: Path) -> None:
    """Without the fork server: the real command in a real process."""
    command = [sys.executable, "-m", "neuraldbg", "debug", "--headless", "--out", "run", str(BAD / "exits_3.py")]
    result: Any = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (3, "leaving\n")
    assert "5 updates" in result.stderr
    with open_trace(tmp_path / "run") as trace:
        assert trace.ended
