"""A training process that is stopped, busy, gone or not what it says: the server answers, and says which."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from made_runs import made_run, train
from servers import Training, asking, send, serving
from waiting import eventually

from neuraldbg.control import channel as channel_module
from neuraldbg.control.channel import ChannelServer
from neuraldbg.surfaces.web import pages
from neuraldbg.surfaces.web.app import THREADS
from neuraldbg.surfaces.web.doorway import Doorway
from neuraldbg.surfaces.web.runs import AT_ONCE


def test_abort_ends_a_paused_training(live: tuple[Training, Doorway]) -> None:
    trained, door = live
    send(door, "POST", "/api/breakpoint", {"layer_name": "fc"})
    eventually(lambda: trained.gate.paused)
    status, answer = send(door, "POST", "/api/abort")
    assert (status, answer["message"]) == (200, "Training ends here")
    eventually(lambda: not trained.running)


def test_abort_ends_a_running_training_at_its_next_layer(live: tuple[Training, Doorway]) -> None:
    trained, door = live
    status, answer = send(door, "POST", "/api/abort")
    assert (status, answer["message"]) == (200, "Training ends at the next layer")
    eventually(lambda: not trained.running)


def test_abort_stands_at_docs_with_its_line(run_dir: Path) -> None:
    with asking(run_dir) as client:
        schema = client.get("/openapi.json").json()
        assert "/api/abort" in client.get("/docs").text
        line = pages.curl("http://x", "post", "/api/abort", schema["paths"]["/api/abort"]["post"], schema)
        assert line == "curl -X POST http://x/api/abort"
        status = client.post("/api/abort", headers={"content-type": "application/json"})
    assert status.status_code == 503
    assert status.json()["error"] == (
        "no training process is attached to run (it has ended, or was started with --headless)"
    )


def test_a_trainer_that_was_stopped_starves_nobody(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(channel_module.PATIENCE_S, "tensor", 6.0)
    goes_on = threading.Event()
    trainer = ChannelServer(lambda *_: goes_on.wait(30), run_dir)
    try:
        with serving(run_dir) as door, ThreadPoolExecutor(THREADS + 2) as many:
            send(door, "GET", "/health")
            asked = [many.submit(send, door, "GET", "/api/tensor?layer=fc") for _ in range(THREADS + 2)]
            eventually(lambda: sum(one.done() for one in asked) >= THREADS + 2 - AT_ONCE)
            began = time.monotonic()
            assert send(door, "GET", "/health")[0] == 200
            assert send(door, "GET", "/api/series?metric=loss")[0] == 200
            assert time.monotonic() - began < 3.0
            assert sum(not one.done() for one in asked) == AT_ONCE
            answers = [one.result() for one in asked]
            goes_on.set()
        assert {status for status, _ in answers} == {503}
        assert sum("busy" in answer["error"] for _, answer in answers) == THREADS + 2 - AT_ONCE
    finally:
        goes_on.set()
        trainer.close()


def test_a_trainer_that_was_stopped_is_not_called_running(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(channel_module.PATIENCE_S, "state", 0.2)
    goes_on = threading.Event()
    trainer = ChannelServer(lambda *_: goes_on.wait(30), run_dir)
    try:
        with asking(run_dir) as client:
            assert client.get("/api/state").json() == {"state": "unresponsive", "attached": True, "step": 4}
            assert client.get("/api/runs").json()["runs"][0]["state"] == "unresponsive"
            status = client.get("/api/debugger/status").json()
            assert (status["isRunning"], status["isPaused"]) == (False, False)
    finally:
        goes_on.set()
        trainer.close()


@pytest.mark.parametrize("answer", [["running"], {"state": ["running"]}, {"state": None}, 5, None, {}])
def test_an_answer_that_is_none_breaks_nothing(run_dir: Path, tmp_path: Path, answer: object) -> None:
    with made_run(tmp_path / "other") as other:
        train(other, steps=3)
        other.end(steps=3)
    trainer = ChannelServer(lambda *_: answer, run_dir)
    try:
        with asking(run_dir, other.directory) as client:
            found = client.get("/api/runs")
            assert found.status_code == 200
            assert [one["state"] for one in found.json()["runs"]][1] == "finished"
            assert client.get("/api/layer_inspect/fc").status_code in (200, 503)
            assert client.get("/api/debugger/status").status_code in (200, 503)
            assert client.get("/api/breakpoint").status_code in (200, 503)
    finally:
        trainer.close()


def test_a_run_that_cannot_be_read_does_not_hide_the_others(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuraldbg.surfaces.web.runs import ServedRun

    def torn(self: ServedRun) -> dict[str, Any]:
        raise ValueError("half-written")

    monkeypatch.setattr(ServedRun, "state", torn)
    with asking(run_dir) as client:
        (found,) = client.get("/api/runs").json()["runs"]
    assert (found["name"], found["state"], found["error"]) == ("run", "unreadable", "ValueError: half-written")


@pytest.mark.parametrize(
    "body", [{"group": "g" * 201}, {"layer_name": "x" * 301}, {"phase": "p" * 21}, {"condition": "1 < " * 200}]
)
def test_texts_have_an_end(live: tuple[Training, Doorway], body: dict[str, str]) -> None:
    assert send(live[1], "POST", "/api/breakpoint", {"layer_name": "fc", **body})[0] == 422
    assert send(live[1], "GET", "/api/breakpoint") == (200, {})
