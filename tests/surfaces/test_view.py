"""`neural view`, and the page beside a training: said in one line, ended by Ctrl-C, in nobody's way."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import AS_SCRIPT, environment, neural, refused
from made_runs import made_run, train
from servers import training

from neuraldbg.errors import UsageError
from neuraldbg.surfaces.web.doorway import Doorway, LazyService

ADDRESS = re.compile(r"http://\S+")


@contextmanager
def started(*words: str, cwd: Path, code: str = AS_SCRIPT, **options: Any) -> Iterator[tuple[Any, str]]:
    """A process that serves, and the line in which it says where."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=cwd, env=environment(), stderr=subprocess.PIPE, text=True, **options
    )
    try:
        assert process.stderr is not None
        yield process, process.stderr.readline()
    finally:
        process.kill()
        process.communicate()


def asked(line: str, path: str) -> Any:
    with urllib.request.urlopen(ADDRESS.findall(line)[0] + path, timeout=30) as response:
        return json.load(response)


def test_several_runs_are_served_until_ctrl_c(place: Path) -> None:
    with started("view", "good", "neuraldbg_runs/broken", "--port", "0", cwd=place) as (process, line):
        assert line.startswith("neuraldbg: good, broken: serving on http://127.0.0.1:")
        assert [run["name"] for run in asked(line, "/api/runs")["runs"]] == ["good", "broken"]
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=30)
        assert (process.returncode, rest) == (0, "")


def test_a_crashed_run_is_served(tmp_path: Path) -> None:
    with made_run(tmp_path / "crashed") as run:
        train(run, steps=5)
        run.end(exit_code=1, error="ValueError: x", steps=5)
    with started("view", "crashed", "--port", "0", cwd=tmp_path) as (_, line):
        assert asked(line, "/api/run")["state"] == "crashed"


def test_without_a_name_the_newest_run_that_lives_is_served(place: Path) -> None:
    import datetime

    folder = place / "neuraldbg_runs"
    began = datetime.datetime.fromtimestamp(psutil.Process().create_time() + 1, datetime.timezone.utc)
    with made_run(folder / "live", pid=os.getpid(), started=began.isoformat()) as run:
        train(run, steps=5)
    os.utime(folder / "live" / "run.json", (1, 1))  # the others are newer, and over
    with training(run.directory), started("view", "--port", "0", cwd=place) as (_, line):
        assert line.startswith("neuraldbg: live: ")
        assert asked(line, "/api/state")["state"] == "running"


def test_without_a_name_and_a_live_run_the_newest_is_served(place: Path) -> None:
    with started("view", "--port", "0", cwd=place) as (_, line):
        assert line.startswith("neuraldbg: broken: ")


def test_a_run_that_is_not_there_is_one_line(place: Path) -> None:
    assert "did you mean" in refused(neural("view", "brokn", cwd=place))
    (place / "nothing").mkdir()
    assert "it is no run" in refused(neural("view", "nothing", cwd=place))
    assert "port" in refused(neural("view", "--port", "seventy", cwd=place))


def test_a_taken_port_is_answered_with_the_next_free_one() -> None:
    first = Doorway("127.0.0.1", 0)
    second = Doorway("127.0.0.1", first.port)
    try:
        assert second.port > first.port
        assert second.line == f"port {first.port} is taken, serving on http://127.0.0.1:{second.port}"
    finally:
        first.close()
        second.close()


def test_an_address_that_is_not_ours_is_refused_with_a_way_out() -> None:
    for host in ("203.0.113.7", "no-such-host.invalid"):
        with pytest.raises(UsageError, match=r"cannot serve on .*--host"):
            Doorway(host, 8050)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with made_run(tmp_path / "run") as run:
        train(run)
        run.end(steps=50)
    return run.directory


VIEWER = "import sys; from neuraldbg.surfaces.viewer import main; sys.exit(main())"


@contextmanager
def viewer(run_dir: Path, *options: str) -> Iterator[tuple[Any, str, ExitStack]]:
    """The viewer as a trainer starts it; closing the last of the three is the trainer's end."""
    reading, writing = os.pipe()
    words = [str(run_dir), "--parent-fd", str(reading), *options]
    with ExitStack() as trainer:
        trainer.callback(os.close, writing)
        with started(*words, cwd=run_dir, code=VIEWER, pass_fds=[reading]) as (process, line):
            os.close(reading)
            yield process, line, trainer


def test_the_page_beside_a_training_is_served_until_its_verdict_is_out(run_dir: Path) -> None:
    with viewer(run_dir, "--port", "0") as (process, line, trainer):
        assert re.fullmatch(r"neuraldbg: serving on http://127\.0\.0\.1:\d+\n", line)
        assert asked(line, "/api/layer_inspect/Conv2D_1")["layer"] == "conv1"
        trainer.close()
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Verdict    healthy" in rest
        with pytest.raises(urllib.error.URLError):
            asked(line, "/health")


def test_nobody_asks_and_no_web_package_is_imported(run_dir: Path) -> None:
    code = (
        "import sys; from neuraldbg.surfaces.viewer import main; main(); "
        "print([m for m in ('torch', 'fastapi', 'uvicorn', 'websockets', 'asyncio') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(run_dir), "--parent-fd", "999", "--port", "0"],
        env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert result.stdout == "[]\n"


def test_a_killed_server_harms_neither_the_training_nor_its_breakpoints(run_dir: Path) -> None:
    with training(run_dir) as trained, viewer(run_dir, "--port", "0") as (process, line, _):
        trained.gate.breakpoints.add("fc", "memory < 0")
        assert list(asked(line, "/api/breakpoint")) == ["fc"]
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        step = trained.step
        while trained.step < step + 3:
            threading.Event().wait(0.001)
        assert len(trained.gate.breakpoints.all()) == 1


def test_a_page_that_cannot_be_served_is_one_line_and_the_verdict_still_comes(run_dir: Path) -> None:
    with viewer(run_dir, "--host", "203.0.113.7", "--port", "8050") as (process, line, trainer):
        assert line.startswith("neuraldbg: no page: cannot serve on 203.0.113.7")
        trainer.close()
        assert "Verdict" in process.communicate(timeout=60)[1]


def test_a_lazy_service_ends_whether_or_not_somebody_came(run_dir: Path) -> None:
    for knocked in (False, True):
        door = Doorway("127.0.0.1", 0)
        service = LazyService(door, run_dir, {"interval_s": 1.0}, print)
        if knocked:
            assert asked(door.line, "/health")["status"] == "healthy"
        service.close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", door.port), timeout=1)
