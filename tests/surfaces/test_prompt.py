"""The prompt at a breakpoint: a real script, a real terminal."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import AS_SCRIPT, environment

from neuraldbg.control.channel import channel

pty = pytest.importorskip("pty")
SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    batch = torch.randn(16, 4)
    loss = (model(batch) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print("done", loss.item().hex())
"""
SILENT = SCRIPT.replace('print("done", loss.item().hex())', 'open("done", "w").write(loss.item().hex())')
PATIENCE_S = 90


class Terminal:
    """A person who waits for a word and then types."""

    def __init__(self, folder: Path, *words: str, script: str = SCRIPT) -> None:
        (folder / "train.py").write_text(script)
        self.folder = folder
        self.seen = ""
        self._at = 0
        ours, theirs = pty.openpty()
        self._fd = ours
        self.process = subprocess.Popen(
            [sys.executable, "-c", AS_SCRIPT, "--no-animations", "debug", *words, "train.py"],
            cwd=folder, env=environment(TERM="xterm", COLUMNS="100"), stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(theirs)

    def until(self, word: str) -> str:
        """What came up to a word that was not there before."""
        end = time.monotonic() + PATIENCE_S
        while True:
            found = re.search(word, self.seen[self._at :])
            if found is not None:
                text = self.seen[self._at : self._at + found.end()]
                self._at += found.end()
                return text
            assert time.monotonic() < end, f"no {word!r} in {self.seen!r}"
            if select.select([self._fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self._fd, 65536).decode(errors="replace").replace("\r", "")
                except OSError:
                    assert word in self.seen[self._at :], self.seen

    def type(self, line: str) -> None:
        self.press(f"{line}\n")

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def hang_up(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def ask(self, line: str, answer: str) -> None:
        self.type(line)
        self.until(re.escape(answer))

    def end(self) -> int:
        """Waits for the end; the page, which stays until Ctrl-C, is sent away."""
        while self.process.poll() is None:
            if "until Ctrl-C" in self.seen[self._at :]:
                self._at = len(self.seen)
                os.write(self._fd, b"\x03")
            try:
                if select.select([self._fd], [], [], 0.2)[0]:
                    self.seen += os.read(self._fd, 65536).decode(errors="replace").replace("\r", "")
            except OSError:
                break
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._fd >= 0:
            os.close(self._fd)


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    made = Terminal(tmp_path, *request.param)
    try:
        yield made
    finally:
        made.close()


def breaking(*words: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("terminal", [words], indirect=True, ids=[" ".join(words)])


@breaking("--breakpoint", "Dense_2 if step == 2")
def test_a_breakpoint_opens_the_prompt_and_everything_can_be_asked_there(terminal: Terminal) -> None:
    opened = terminal.until(r"\(neural\) ")
    assert "paused at 2 forward, step 2, train.py:9: breakpoint 1 (step == 2)" in opened
    terminal.ask("l", "-> 2")
    terminal.ask("p batch.shape, step", "(torch.Size([16, 4]), 2)")
    terminal.ask("p 1 / 0", "ZeroDivisionError")
    terminal.ask("t", "output of 2: 16x1 float32 on cpu")
    terminal.ask("t 0 weight", "weight of 0: 8x4")
    terminal.ask("v", "mean_activation")
    terminal.ask("w", "Verdict")
    terminal.ask("x", "no command 'x'")
    terminal.ask("b 0 if grad_nrom > 1", "did you mean grad_norm")
    terminal.ask("b 0 if grad_norm >= 0", "breakpoint 2 at 0 (backward)")
    terminal.ask("b", "hits 1")
    terminal.ask("d 2", "deleted 2")
    terminal.ask("n", "paused at model forward")
    terminal.ask("n", "paused at 2 backward")
    terminal.ask("", "paused at 1 backward")
    terminal.ask("s", "after the update, step 2")
    terminal.type("c")
    assert terminal.end() == 0
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=terminal.folder, capture_output=True, text=True, check=True
    )
    assert plain.stdout.strip() in terminal.seen


@breaking("--step")
def test_q_leaves_as_an_interrupt_does(terminal: Terminal) -> None:
    assert "paused at 0 forward, step 0" in terminal.until(r"\(neural\) ")
    terminal.type("q")
    assert terminal.end() == -signal.SIGINT
    assert "done" not in terminal.seen


@breaking("--breakpoint", "0")
def test_ctrl_c_while_paused_ends_the_script(terminal: Terminal) -> None:
    terminal.until(r"\(neural\) ")
    os.killpg(os.getpgid(terminal.process.pid), signal.SIGINT)
    assert terminal.end() == -signal.SIGINT
    assert "KeyboardInterrupt" in terminal.seen


@breaking("--break-on", "vanishing-gradient", "--breakpoint", "Dense_9")
def test_names_that_mean_nothing_are_told(terminal: Terminal) -> None:
    assert terminal.end() == 0
    assert "no layer 'Dense_9' in this run; did you mean" in terminal.seen


@breaking("--breakpoint", "0 if step == 1")
def test_somebody_else_may_let_it_go_on(terminal: Terminal) -> None:
    terminal.until(r"\(neural\) ")
    [run] = (terminal.folder / "neuraldbg_runs").iterdir()
    with channel(run) as line:
        assert line.call("state")["layer"] == "0"
        assert line.call("tensor", kind="output")["shape"] == [16, 8]
        line.call("continue")
    assert terminal.end() == 0
    assert "continued from elsewhere" in terminal.seen


@breaking("--breakpoint", "0 if step == 1")
def test_a_half_typed_line_holds_up_nobody(terminal: Terminal) -> None:
    terminal.until(r"\(neural\) ")
    terminal.press("p bat")
    terminal.until("p bat")
    [run] = (terminal.folder / "neuraldbg_runs").iterdir()
    with channel(run) as line:
        assert line.call("tensor", kind="output")["shape"] == [16, 8]
        line.call("step", unit="layer")
    assert "continued from elsewhere" in terminal.until("paused at 1 forward")
    terminal.until(r"\(neural\) ")
    terminal.ask("p 6 * 7", "42")  # and the half line of before is no part of it
    terminal.type("c")
    assert terminal.end() == 0


@breaking("--breakpoint", "0 if step == 1")
def test_lines_can_be_edited_completed_and_remembered(terminal: Terminal) -> None:
    terminal.until(r"\(neural\) ")
    terminal.press("p 6 + 7")
    terminal.ask("\x1b[D\x1b[D\x7f*", "42")
    terminal.ask("\x1b[A", "42")
    terminal.ask("t 0 wei\t", "weight of 0: 8x4")
    terminal.ask("b 0 if  grad_nrom > 1", "grad_nrom > 1\n^")
    terminal.type("c")
    assert terminal.end() == 0


@breaking("--breakpoint", "0 if step > 0 and step < 3")
def test_the_end_of_input_lets_the_training_go_on_until_the_next_stop(terminal: Terminal) -> None:
    for step in (1, 2):
        assert f"step {step}" in terminal.until(r"\(neural\) ")
        terminal.press("\x04")
        terminal.until("training goes on")
    assert terminal.end() == 0
    assert "done" in terminal.seen


def test_a_terminal_that_is_gone_holds_no_training(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup: a terminal that hangs up ends nobody
    try:
        terminal = Terminal(tmp_path, "--port", "0", "--breakpoint", "0", script=SILENT)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        terminal.until(r"\(neural\) ")
        terminal.hang_up()
        assert terminal.process.wait(PATIENCE_S) == 0
    finally:
        terminal.close()
    with_us = (tmp_path / "done").read_text()
    (tmp_path / "train.py").write_text(SCRIPT)
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert plain.stdout == f"done {with_us}\n"


@breaking("--port", "0")
def test_at_a_terminal_the_page_stays_until_ctrl_c(terminal: Terminal) -> None:
    page = re.search(r"stays at (\S+) until Ctrl-C", terminal.until("until Ctrl-C"))
    assert page is not None
    assert "Verdict" in terminal.seen
    with urllib.request.urlopen(page[1] + "/api/run") as answer:
        assert json.load(answer)["state"] == "finished"
    os.write(terminal._fd, b"\x03")
    assert terminal.end() == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(page[1])
