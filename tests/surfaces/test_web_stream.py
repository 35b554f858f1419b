"""The stream: frames of the newest step, states and hits as they happen, and a slow page that holds up nobody."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import MadeRun, made_run, train
from servers import asking, send, serving, training
from waiting import eventually
from websockets.sync.client import ClientConnection, connect

from neuraldbg.records import Kind
from neuraldbg.surfaces.web.doorway import Doorway
from neuraldbg.surfaces.web.events import MOST_WAITING, Box


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with made_run(tmp_path / "run") as run:
        train(run, steps=10, nan_from=5)
        run.end(steps=10)
    return run.directory


def stream(door: Doorway, query: str = "") -> ClientConnection:
    return connect(f"ws://127.0.0.1:{door.port}/api/events{query}", max_size=None)


def next_of(connection: ClientConnection, kind: str, within_s: float = 30) -> dict[str, Any]:
    """The next message of a type."""
    while True:
        message: dict[str, Any] = json.loads(connection.recv(timeout=within_s))
        if message["type"] == kind:
            return message


def test_a_page_that_comes_learns_the_layers_the_newest_numbers_and_the_findings(run_dir: Path) -> None:
    with asking(run_dir) as client, client.websocket_connect("ws://127.0.0.1:8050/api/events") as page:
        messages: dict[str, dict[str, Any]] = {}
        while not {"layers", "frame", "state", "finding", "state_change", "execution_progress"} <= set(messages):
            message = page.receive_json()
            messages.setdefault(message["type"], message)
    assert messages["layers"]["layers"] == ["conv1", "act", "fc"]
    frame = messages["frame"]
    assert frame["step"] == 9
    activation = np.frombuffer(base64.b64decode(frame["metrics"]["mean_activation"]), np.float32)
    assert activation[:2].tolist() == [0.25, 0.25]
    assert np.isnan(activation[2])
    assert frame["scalars"]["loss"] == "nan"
    assert frame["scalars"]["lr"] == 0.001
    assert messages["state"]["state"] == "finished"
    assert messages["finding"]["finding"]["step"] == 5


def test_frames_follow_a_growing_run(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run, serving(run.directory) as door:
        site = run.module("fc", "Linear", run.model())
        for step in range(3):
            _one_step(run, site, step)
        with stream(door) as page:
            assert next_of(page, "frame")["step"] == 1  # the newest step may still be being recorded
            _one_step(run, site, 3)
            assert next_of(page, "frame")["step"] == 2


def test_the_trainer_learns_how_often_a_page_looks_and_only_while_one_does(run_dir: Path) -> None:
    told: list[float] = []
    with training(run_dir) as trained, serving(run_dir, interval_s=0.125) as door:
        trained.gate.watched_every = told.append
        send(door, "GET", "/api/run")
        assert told == []
        with stream(door):
            eventually(lambda: told)
        assert set(told) == {0.125}


def test_steps_whose_layers_were_not_measured_are_told_too(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run, serving(run.directory) as door:
        site = run.module("fc", "Linear", run.model())
        for step in range(3):
            _one_step(run, site, step)
        with stream(door) as page:
            assert next_of(page, "frame")["step"] == 1
            run.scalar("loss", 3, 1.5)
            run.writer.flush()
            assert next_of(page, "frame")["step"] == 2  # whole, now that the next one has begun
            run.scalar("loss", 4, 2.0)
            run.scalar("loss", 5, 2.5)
            run.writer.flush()
            told = next_of(page, "step")
            assert (told["step"], told["last_step"], told["scalars"]["loss"]) == (4, 5, 2.0)


def test_the_interval_holds_frames_back(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run, ExitStack() as stack:
        doors = [stack.enter_context(serving(run.directory, interval_s=each)) for each in (0.02, 600)]
        site = run.module("fc", "Linear", run.model())
        for step in range(3):
            _one_step(run, site, step)
        often, seldom = (stack.enter_context(stream(door)) for door in doors)
        assert next_of(often, "frame")["step"] == next_of(seldom, "frame")["step"] == 1
        for step in range(3, 10):
            _one_step(run, site, step)
            assert next_of(often, "frame")["step"] == step - 1
        with pytest.raises(TimeoutError):
            next_of(seldom, "frame", within_s=0.5)


def test_answers_leave_at_once(run_dir: Path) -> None:
    """asyncio switches Nagle's algorithm off only for sockets that say they are TCP."""
    door = Doorway("127.0.0.1", 0)
    assert door.listener.proto == socket.IPPROTO_TCP
    door.close()


def _one_step(run: MadeRun, site: int, step: int) -> None:
    run.stats(site, Kind.ACTIVATION, step, mean=float(step))
    run.scalar("loss", step, 1.0)
    run.writer.flush()


def test_hits_and_pauses_are_told_at_once_whatever_the_interval(run_dir: Path) -> None:
    with training(run_dir) as trained, serving(run_dir, interval_s=600) as door, stream(door) as page:
        assert next_of(page, "state")["state"] == "running"
        trained.gate.breakpoints.add("fc")
        hit = next_of(page, "hit")
        assert (hit["layer"], hit["breakpoints"]) == ("fc", [1])
        paused = next_of(page, "state")
        assert (paused["state"], paused["layer"]) == ("paused", "fc")
        assert next_of(page, "state_change")["isPaused"] is True
        page.send(json.dumps({"command": "clear_all_breakpoints"}))
        page.send(json.dumps({"command": "continue"}))
        while next_of(page, "state")["state"] != "running":
            pass


def test_a_breakpoint_that_somebody_else_changes_is_told_at_once(run_dir: Path) -> None:
    with training(run_dir) as trained, serving(run_dir, interval_s=600) as door, stream(door) as page:
        assert next_of(page, "state")["state"] == "running"
        one = trained.gate.breakpoints.add("fc", "step < 0")
        assert next_of(page, "breakpoints")["run"] == run_dir.name
        trained.gate.breakpoints.change(one.id, enabled=False)
        next_of(page, "breakpoints")
        trained.gate.breakpoints.remove(one.id)
        next_of(page, "breakpoints")


def test_commands_of_the_original_server(run_dir: Path) -> None:
    with training(run_dir) as trained, serving(run_dir) as door, stream(door) as page:
        page.send(json.dumps({"command": "add_breakpoint", "layer_name": "act"}))
        assert next_of(page, "done")["answer"]["layer_name"] == "act"
        eventually(lambda: trained.gate.paused)
        page.send(json.dumps({"command": "step_over"}))
        eventually(lambda: trained.gate.paused and trained.gate.state()["layer"] == "fc")
        refused = {
            '{"command": "paus"}': "did you mean 'pause'?",
            '{"command": "add_breakpoint", "lineNumber": 3}': "layer_name",
            '{"command": "pause"}': "paused already",
            "{": "this is not JSON",
            "[]": "command",
        }
        for text, why in refused.items():
            page.send(text)
            assert why in next_of(page, "error")["error"]


def test_a_page_that_lost_its_line_is_brought_up_to_date(run_dir: Path) -> None:
    with serving(run_dir) as door, stream(door) as page:
        next_of(page, "frame")
        page.send(json.dumps({"last_step": 3}))
        assert next_of(page, "frame")["step"] == 9


def test_an_unknown_run_is_said_and_the_line_closed(run_dir: Path) -> None:
    with serving(run_dir) as door, stream(door, "?run=other") as page:
        assert "no run 'other'" in next_of(page, "error")["error"]


def test_a_slow_page_gets_the_newest_frame_and_every_state_up_to_a_bound() -> None:
    async def waiting() -> list[dict[str, Any]]:
        box = Box()
        for step in range(1000):
            box.put({"type": "frame", "step": step})
            box.put({"type": "hit", "step": step})
        return [await box.get() for _ in range(MOST_WAITING + 1)]

    found = asyncio.run(waiting())
    assert [each["step"] for each in found[:2]] == [1000 - MOST_WAITING, 1001 - MOST_WAITING]
    assert found[-1] == {"type": "frame", "step": 999}


def test_of_many_changes_of_the_breakpoints_one_is_told() -> None:
    async def waiting() -> list[str]:
        box = Box()
        for step in range(100):
            box.put({"type": "breakpoints"})
            box.put({"type": "frame", "step": step})
        return [(await box.get())["type"] for _ in range(2)]

    assert asyncio.run(waiting()) == ["breakpoints", "frame"]


def test_frames_come_no_oftener_than_the_interval(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run, serving(run.directory, interval_s=0.4) as door:
        site = run.module("fc", "Linear", run.model())
        done = threading.Event()

        def write() -> None:
            step = 0
            while not done.wait(0.01):
                _one_step(run, site, step)
                step += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            with stream(door) as page:
                next_of(page, "frame")
                began = time.monotonic()
                for _ in range(3):
                    next_of(page, "frame")
                assert time.monotonic() - began > 2 * 0.4
        finally:
            done.set()
            writer.join()


def test_the_server_stops_while_pages_watch_a_paused_run_and_read_nothing(run_dir: Path) -> None:
    with training(run_dir) as trained:
        trained.gate.breakpoints.add("fc")
        eventually(lambda: trained.gate.paused)
        with serving(run_dir) as door, ExitStack() as pages:
            page = pages.enter_context(stream(door))
            next_of(page, "state")
            deaf = socket.create_connection(("127.0.0.1", door.port))
            deaf.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                         b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                         b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")  # fmt: skip
            assert deaf.recv(12) == b"HTTP/1.1 101"
            later = pages.pop_all()  # they stay until the server is gone
            began = time.monotonic()
        assert time.monotonic() - began < 10
        deaf.close()
        later.close()
        assert trained.gate.paused
