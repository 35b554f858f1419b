"""The fork server runs a program as a fresh interpreter would, and the leftovers check sees what tests leave."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from forkserver import ForkServer
from leftovers import Leftovers
from programs.truth import FOLDER, TRUTHS

BAD = FOLDER / "bad"


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


def test_the_server_is_single_threaded_so_that_forking_is_safe(torch_server: ForkServer) -> None:
    assert torch_server.about["threads"] == 1


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "raise SystemExit('no data')", "1 / 0", "def x(:"])
def test_a_program_ends_as_under_a_fresh_interpreter(torch_server: ForkServer, script, ending: str) -> None:
    text = "import sys, atexit, threading, time\natexit.register(print, 'at exit')\n"
    text += "threading.Thread(target=lambda: (time.sleep(0.05), print('from the thread'))).start()\n"
    path = script(text + "print('hello', sys.argv[1:])\n" + ending + "\n")
    fresh = subprocess.run([sys.executable, str(path), "a", "b"], capture_output=True, check=False)
    forked = torch_server.python(path, "a", "b")
    assert (forked.code, forked.out, forked.err) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_a_program_sees_the_world_as_under_a_fresh_interpreter(torch_server: ForkServer, tmp_path: Path) -> None:
    command = [sys.executable, str(BAD / "prints_argv.py"), "--lr", "0.1"]
    environment = {**os.environ, "MARKER": "set"}
    fresh = subprocess.run(command, capture_output=True, cwd=tmp_path, input=b"typed", env=environment, check=False)
    forked = torch_server.python(*command[1:], cwd=tmp_path, stdin=b"typed", env={"MARKER": "set"})
    assert (forked.code, forked.out, forked.err) == (0, fresh.stdout, fresh.stderr)


def test_a_missing_script_is_reported_as_python_reports_it(torch_server: ForkServer, tmp_path: Path) -> None:
    fresh = subprocess.run([sys.executable, "absent.py"], capture_output=True, cwd=tmp_path, check=False)
    forked = torch_server.python("absent.py", cwd=tmp_path)
    assert (forked.code, forked.out, forked.err) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_unwritten_files_of_the_program_reach_the_disk(torch_server: ForkServer, script, tmp_path: Path) -> None:
    path = script("log = open('log.txt', 'w')\nlog.write('last words')\n")
    assert torch_server.python(path, cwd=tmp_path).code == 0
    assert (tmp_path / "log.txt").read_text() == "last words"


def test_runs_do_not_see_each_other(torch_server: ForkServer, script, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("value = 1\n")
    path = script("import sys, torch, neighbour\nprint(hasattr(torch, 'seen'))\ntorch.seen = True\n")
    assert [torch_server.python(path).stdout for _ in range(2)] == ["False\n", "False\n"]


def test_a_keyboard_interrupt_ends_the_process_by_its_signal(torch_server: ForkServer) -> None:
    result = torch_server.python(BAD / "keyboard_interrupt.py")
    assert result.code == -signal.SIGINT
    assert result.stderr.endswith("KeyboardInterrupt\n")


def test_a_running_program_can_be_watched_and_killed(torch_server: ForkServer) -> None:
    running = torch_server.start(BAD / "sleeper.py")
    running.wait_for_output(b"step 20 ")
    assert running.code is None
    running.kill(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL


def test_ctrl_c_reaches_a_running_program(torch_server: ForkServer) -> None:
    running = torch_server.start(BAD / "sleeper.py")
    running.wait_for_output(b"step 10 ")
    running.kill(signal.SIGINT)
    result = running.wait()
    assert result.code == -signal.SIGINT
    assert "KeyboardInterrupt" in result.stderr


def test_a_program_that_never_ends_is_killed_and_reported(torch_server: ForkServer) -> None:
    running = torch_server.start(BAD / "sleeper.py")
    with pytest.raises(TimeoutError, match="still ran"):
        running.wait(timeout=0.2)
    assert running.wait().code == -signal.SIGKILL


def test_waiting_covers_processes_that_outlive_the_program(torch_server: ForkServer, script) -> None:
    path = script(
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.2); print(\"later\")'])\n"
        "import os; os._exit(0)\n"
    )
    assert torch_server.python(path).stdout == "later\n"


def test_a_program_can_be_given_a_terminal(torch_server: ForkServer, script) -> None:
    ours, theirs = os.openpty()
    try:
        path = script("import sys\nprint(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())\n")
        assert torch_server.start(path, tty=os.ttyname(theirs)).wait().code == 0
        assert os.read(ours, 100) == b"True True True\r\n"
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.name)
def test_a_training_program_gives_the_same_result_twice(torch_server: ForkServer, truth, tmp_path: Path) -> None:
    first, second = (torch_server.python(truth.path, *truth.args, cwd=tmp_path) for _ in range(2))
    assert first.code == 0, first.stderr
    assert first.err == b""
    assert first.out.splitlines()[-1].startswith(b"RESULT ")
    assert first.out == second.out


def test_every_program_has_its_truth() -> None:
    written = {path.name for path in FOLDER.glob("*.py")} - {"truth.py"}
    assert written == {truth.program for truth in TRUTHS if "/" not in truth.program}


class TestLeftovers:
    def test_sees_nothing_where_nothing_is_left(self) -> None:
        assert Leftovers.now()._new_in(Leftovers.now()) == []

    def test_sees_a_thread(self) -> None:
        before, stop = Leftovers.now(), threading.Event()
        thread = threading.Thread(target=stop.wait, name="forgotten")
        thread.start()
        assert before._new_in(Leftovers.now()) == ["thread 'forgotten'"]
        stop.set()
        thread.join()

    def test_sees_a_listening_port(self) -> None:
        before = Leftovers.now()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            assert before._new_in(Leftovers.now()) == [f"listening socket port {listener.getsockname()[1]}"]

    def test_sees_a_process(self) -> None:
        before = Leftovers.now()
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
            found = before._new_in(Leftovers.now())
        assert len(found) == 1
        assert found[0].startswith(f"process {child.pid} (")

    def test_sees_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        before = Leftovers.now()
        (tmp_path / "debris").mkdir()
        assert before._new_in(Leftovers.now()) == ["file debris"]

    def test_sees_hooks_and_patches_of_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = pytest.importorskip("torch")
        pytest.importorskip("torch.utils.data")
        before = Leftovers.now()
        hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
        monkeypatch.setattr(torch.autograd, "backward", lambda *_: None)
        monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", lambda self: iter(()))
        assert before._new_in(Leftovers.now()) == [
            "1 hooks in torch.nn.modules.module._global_forward_hooks",
            "torch.autograd.backward is patched",
            "torch.utils.data.dataloader.DataLoader.__iter__ is patched",
        ]
        hook.remove()
