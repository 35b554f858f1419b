"""The viewer is a light second process that has the last word, whatever becomes of the first."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from commands import environment
from made_runs import made_run, train
from servers import training

from neuraldbg.surfaces.terminal.live import LiveText, can_draw
from neuraldbg.trace import open_trace

VIEWER = [sys.executable, "-m", "neuraldbg.surfaces.viewer"]


def watch(
    run_dir: Path, *options: str, then: Callable[[subprocess.Popen[bytes]], None] = lambda _: None
) -> tuple[int, str, str]:
    """Starts the viewer as the trainer does, lets the trainer go away, and gives code, stdout and stderr."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*VIEWER, str(run_dir), "--parent-fd", str(reading), *options],
        pass_fds=[reading], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(reading)
    then(process)
    os.close(writing)
    out, err = process.communicate(timeout=60)
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with made_run(tmp_path / "run") as run:
        train(run)
        run.end(steps=50)
    return run.directory


def test_the_report_comes_on_stderr_when_the_trainer_is_gone(run_dir: Path) -> None:
    code, out, err = watch(run_dir)
    assert (code, out) == (0, "")
    assert "Verdict    healthy: 50 updates, loss 2.30 -> 0.198" in err
    assert "\x1b" not in err


def test_it_waits_for_the_trainer_and_not_for_ctrl_c(run_dir: Path) -> None:
    def interrupt(process: subprocess.Popen[bytes]) -> None:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)

    code, _, err = watch(run_dir, then=interrupt)
    assert code == 0
    assert "Verdict" in err


def test_json_goes_to_stdout_and_the_export_to_its_file(run_dir: Path, tmp_path: Path) -> None:
    code, out, err = watch(run_dir, "--json", "--export", str(tmp_path / "s.json"))
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((tmp_path / "s.json").read_text())


def test_an_export_that_fails_is_one_line(run_dir: Path, tmp_path: Path) -> None:
    code, _, err = watch(run_dir, "--export", str(tmp_path / "gone" / "s.json"))
    assert code == 0
    assert err.splitlines()[-1].startswith("neuraldbg: cannot write ")


def test_fail_on_says_that_it_could_not_judge(tmp_path: Path) -> None:
    with made_run(tmp_path / "short") as run:
        train(run, steps=3)
        run.end(steps=3)
    code, _, err = watch(run.directory, "--fail-on", "critical")
    assert code == 7
    assert err.splitlines()[-1] == (
        "neuraldbg: exit code 7: --fail-on critical was asked and the run could not be judged"
    )


def test_a_killed_trainer_is_reported_as_killed(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=7)
    _, _, err = watch(run.directory)
    assert "the process was killed before it ended; 7 updates" in " ".join(err.split())


def test_a_run_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    code, _, err = watch(tmp_path / "nowhere")
    assert code == 0
    assert len(err.splitlines()) == 1
    assert err.startswith("neuraldbg: no report: ")


def test_no_framework_and_no_web_package_is_ever_imported(run_dir: Path) -> None:
    code = (
        "import sys; from neuraldbg.surfaces.viewer import main; main(); "
        "print([m for m in ('torch', 'tensorflow', 'jax', 'fastapi', 'uvicorn', 'websockets') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(run_dir), "--parent-fd", "999"],
        env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert result.stdout == "[]\n"


class Screen:
    """The trainer's terminal: a pty with a viewer on it."""

    def __init__(self, run_dir: Path, *, rows: int = 24, columns: int = 80, term: str = "xterm") -> None:
        self.ours, theirs = pty.openpty()
        self.resize(rows, columns, descriptor=theirs)
        reading, self.trainer = os.pipe()
        self.process = subprocess.Popen(
            [*VIEWER, str(run_dir), "--parent-fd", str(reading), "--live"],
            pass_fds=[reading], env=environment(TERM=term), stdin=theirs, stdout=theirs, stderr=theirs,
            preexec_fn=os.setpgrp,  # SIGTSTP does nothing in a group whose parent is gone, as that of a test may be
        )  # fmt: skip
        os.close(theirs)
        os.close(reading)
        self.text = ""

    def resize(self, rows: int, columns: int, descriptor: int | None = None) -> None:
        target = self.ours if descriptor is None else descriptor
        fcntl.ioctl(target, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, pattern: str, patience_s: float = 30.0) -> re.Match[str]:
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            found = re.search(pattern, self.text)
            if found:
                return found
            self._read()
        raise AssertionError(f"{pattern!r} never came: {self.text!r}")

    def _read(self) -> bool:
        if select.select([self.ours], [], [], 0.2)[0]:
            try:
                self.text += os.read(self.ours, 65536).decode("utf-8", "replace")
            except OSError:  # the other side is closed
                return False
        return True

    def end_of_trainer(self) -> None:
        os.close(self.trainer)
        self.trainer = -1
        self.finish()

    def finish(self) -> None:
        while self.process.poll() is None and self._read():
            pass
        self.process.wait(timeout=30)
        while select.select([self.ours], [], [], 0)[0] and self._read():
            pass


@contextmanager
def screen(run_dir: Path, *, rows: int = 24, columns: int = 80, term: str = "xterm") -> Iterator[Screen]:
    shown = Screen(run_dir, rows=rows, columns=columns, term=term)
    try:
        yield shown
    finally:
        if shown.trainer >= 0:
            os.close(shown.trainer)
        shown.process.kill()
        shown.process.wait(timeout=30)
        os.close(shown.ours)


def test_the_live_line_has_its_own_row_and_gives_it_back(run_dir: Path) -> None:
    with screen(run_dir) as shown:
        shown.read_until(r"\x1b\[1;23r")
        shown.read_until(r"\x1b\[24;1H.* neural debug \| step 49 \| loss 0\.198 \| ")
        shown.end_of_trainer()
    released = shown.text.rindex("\x1b[r")
    assert released > shown.text.rindex("\x1b[1;23r")
    assert "Verdict" in shown.text[released:]
    assert " neural debug |" not in shown.text[released:]


def test_the_live_line_says_where_a_held_training_waits(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=5)
    with training(run.directory) as trained:
        trained.gate.breakpoints.add("fc")
        with screen(run.directory) as shown:
            shown.read_until(r"neural debug \| paused at fc forward for [\d.]+s \| step \d")
            shown.text = ""
            shown.read_until(r"neural debug \| paused at fc forward for [1-9]")  # it is seen to wait
            shown.text = ""
            trained.gate.breakpoints.clear()
            trained.gate.resume()
            shown.read_until(r"neural debug \| step 4")
            trained.gate.pause()
            shown.read_until(
                r"neural debug \| paused (at \w+ (forward|backward)|after the update) for [\d.]+s \| step \d"
            )


def test_it_follows_a_resize(run_dir: Path) -> None:
    with screen(run_dir) as shown:
        shown.read_until(r"\x1b\[24;1H.* neural debug")
        shown.resize(30, 60)
        shown.read_until(r"\x1b\[1;29r")
        shown.read_until(r"\x1b\[30;1H.* neural debug")
        shown.resize(2, 60)
        shown.end_of_trainer()
    assert "\x1b[r" in shown.text[shown.text.rindex("\x1b[1;29r") :]


def test_the_row_is_given_back_on_sigterm(run_dir: Path) -> None:
    with screen(run_dir) as shown:
        shown.read_until(r"\x1b\[24;1H.* neural debug")
        shown.process.send_signal(signal.SIGTERM)
        shown.finish()
    assert shown.text.rindex("\x1b[r") > shown.text.rindex("\x1b[1;23r")
    assert shown.process.returncode == 128 + signal.SIGTERM


def test_the_row_is_given_back_while_stopped(run_dir: Path) -> None:
    with screen(run_dir) as shown:
        shown.read_until(r"\x1b\[24;1H.* neural debug")
        shown.process.send_signal(signal.SIGTSTP)
        shown.read_until(r"\x1b\[r")
        while psutil.Process(shown.process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)  # a SIGCONT that comes before the stop is lost
        shown.text = ""
        shown.process.send_signal(signal.SIGCONT)
        shown.read_until(r"\x1b\[1;23r")
        shown.end_of_trainer()


@pytest.mark.parametrize(("rows", "term"), [(24, "dumb"), (2, "xterm"), (24, "")])
def test_a_terminal_that_cannot_keep_a_row_gets_none(run_dir: Path, rows: int, term: str) -> None:
    with screen(run_dir, rows=rows, term=term) as shown:
        time.sleep(0.5)
        shown.end_of_trainer()
    assert not re.search(r"\x1b\[\d+;\d+[rH]", shown.text)
    assert "Verdict" in shown.text


def test_a_live_line_grows_with_the_trace(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.writer.flush()
        with open_trace(run.directory) as trace:
            live = LiveText(trace)
            assert live.text(now_s=0.0, running_s=0.4) == " neural debug | no step yet | 0.4s"
            for step in range(10):
                run.scalar("loss", step, 2.0)
                run.scalar("lr", step, 0.001)
            run.writer.flush()
            assert live.text(now_s=1.0, running_s=1.4) == " neural debug | step 9 | loss 2.00 | 1.4s | lr 0.001"
            for step in range(10, 30):
                run.scalar("loss", step, float("nan") if step > 24 else 1.0)
            run.writer.flush()
            expected = " neural debug | step 29 | loss NaN | NaN/Inf since step 25 | 3.4s | 10.0 steps/s | lr 0.001"
            assert live.text(now_s=3.0, running_s=3.4) == expected


def test_a_pipe_is_no_place_to_draw() -> None:
    reading, writing = os.pipe()
    assert not can_draw(writing, "xterm")
    os.close(reading)
    os.close(writing)
