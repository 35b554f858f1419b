"""`server.json`: while a server listens, a paused trainer can say how to go on; afterwards nothing is left of it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from commands import AS_SCRIPT, environment
from made_runs import made_run, train

from neuraldbg.control.server_file import SERVER_FILE, how_to_continue
from neuraldbg.surfaces.reports.files import zip_parts
from neuraldbg.surfaces.web.doorway import Doorway, LazyService


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with made_run(tmp_path / "run") as run:
        train(run, steps=5)
        run.end(steps=5)
    return run.directory


def started_view(run_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", AS_SCRIPT, "view", run_dir.name, "--port", "0"],
        cwd=run_dir.parent, env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_page_beside_a_training_says_where_it_is_until_it_ends(run_dir: Path) -> None:
    door = Doorway("127.0.0.1", 0)
    page = LazyService(door, run_dir, {}, print)
    try:
        assert json.loads((run_dir / SERVER_FILE).read_text())["url"] == f"http://127.0.0.1:{door.port}"
        assert how_to_continue(run_dir) == f"curl -X POST http://127.0.0.1:{door.port}/api/continue"
        assert stat.S_IMODE((run_dir / SERVER_FILE).stat().st_mode) == 0o600
    finally:
        page.close()
    assert not (run_dir / SERVER_FILE).exists()
    assert how_to_continue(run_dir) is None


def test_off_loopback_the_line_brings_its_token(run_dir: Path) -> None:
    door = Doorway("0.0.0.0", 0)
    door.tell(run_dir)
    try:
        assert f"-H 'Authorization: Bearer {door.token}' http://" in (how_to_continue(run_dir) or "")
    finally:
        door.close()


def test_a_second_server_leaves_the_first_in_place(run_dir: Path) -> None:
    first, second = Doorway("127.0.0.1", 0), Doorway("127.0.0.1", 0)
    first.tell(run_dir)
    second.tell(run_dir)
    second.close()
    assert f":{first.port}/" in (how_to_continue(run_dir) or "")
    first.close()
    assert how_to_continue(run_dir) is None


def test_what_a_killed_server_left_is_replaced(run_dir: Path) -> None:
    killed, next_one = Doorway("127.0.0.1", 0), Doorway("127.0.0.1", 0)
    killed.tell(run_dir)
    killed.listener.close()
    next_one.tell(run_dir)
    assert f":{next_one.port}/" in (how_to_continue(run_dir) or "")
    next_one.close()


def test_a_program_that_took_the_port_of_a_killed_server_is_not_taken_for_it(run_dir: Path) -> None:
    killed = started_view(run_dir)
    assert killed.stderr is not None
    killed.stderr.readline()
    port = json.loads((run_dir / SERVER_FILE).read_text())["url"].rpartition(":")[2]
    assert f":{port}/" in (how_to_continue(run_dir) or "")
    killed.kill()
    killed.communicate()
    with socket.create_server(("127.0.0.1", int(port))):
        assert (run_dir / SERVER_FILE).exists()
        assert how_to_continue(run_dir) is None
        door = Doorway("127.0.0.1", 0)
        door.tell(run_dir)
        assert f":{door.port}/" in (how_to_continue(run_dir) or "")
        door.close()
    assert not (run_dir / SERVER_FILE).exists()


def test_without_locks_a_server_that_lives_counts(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    door = Doorway("127.0.0.1", 0)
    door.tell(run_dir)
    assert f":{door.port}/" in (how_to_continue(run_dir) or "")
    told = json.loads((run_dir / SERVER_FILE).read_text())
    (run_dir / SERVER_FILE).write_text(json.dumps({**told, "pid": 2**22 + 1}))
    assert how_to_continue(run_dir) is None
    door.close()


def test_a_run_that_cannot_be_written_is_served_all_the_same(run_dir: Path) -> None:
    door = Doorway("127.0.0.1", 0)
    for nowhere in (run_dir / "run.json", run_dir / "missing"):
        door.tell(nowhere)
        assert how_to_continue(nowhere) is None
    door.close()


def test_it_does_not_travel_with_the_run(run_dir: Path) -> None:
    door = Doorway("127.0.0.1", 0)
    door.tell(run_dir)
    packed = b"".join(zip_parts(run_dir))
    door.close()
    assert b"run.json" in packed
    assert SERVER_FILE.encode() not in packed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_neural_view_takes_it_away_however_it_is_ended(run_dir: Path, number: signal.Signals) -> None:
    process = started_view(run_dir)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        url = json.loads((run_dir / SERVER_FILE).read_text())["url"]
        assert url in line
        subprocess.run(["curl", "-sS", "--max-time", "30", f"{url}/health"], check=True, capture_output=True)
        os.kill(process.pid, number)
        process.wait(30)
    finally:
        process.kill()
        process.communicate()
    assert not (run_dir / SERVER_FILE).exists()
