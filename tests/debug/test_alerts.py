"""Alerts reach the log, a file, a webhook and the bell; whoever does not take them holds up nobody."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import eventually

from neuraldbg.debug import AlertSeverity, DebugSession, alerts, delivery
from neuraldbg.debug.delivery import WAITING, Background, Webhook
from neuraldbg.errors import ConfigError
from neuraldbg.trace import open_trace

Make = Callable[..., DebugSession]


class Receiver(ThreadingHTTPServer):
    """A real server on the loopback. `answers` are given one after the other, the last one for ever."""

    daemon_threads = True

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.asked = 0
        self.answers = [200]
        self.gate = threading.Event()
        self.gate.set()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?key=1"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = server.answers[min(server.asked, len(server.answers) - 1)]
        server.asked += 1
        server.gate.wait(20)
        if answer == 200:
            assert self.headers["Content-Type"] == "application/json"
            server.got.append(json.loads(body))
        try:
            self.send_response(answer)
            self.end_headers()
        except OSError:  # the caller has given up
            pass

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.gate.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_webhook_gets_every_alert_as_json(make_session: Make, receiver: Receiver) -> None:
    session = make_session(alert_webhook=receiver.url)
    session.tensor_inspector.inspect_tensor(np.array([np.nan, 1.0]), "x", "fc1")
    session.alert("own words", AlertSeverity.Info)
    session.stop()
    assert [(one["kind"], one["severity"], one["layer"], one["step"]) for one in receiver.got] == [
        ("NaNValues", "critical", "fc1", 0),
        ("Custom", "info", None, 0),
    ]
    assert {one["session_id"] for one in receiver.got} == {session.id}


@pytest.mark.parametrize(("answers", "got", "asked"), [([503, 429, 200], 1, 3), ([500], 0, 3), ([404], 0, 1)])
def test_what_a_server_cannot_take_now_is_tried_again_and_what_it_refuses_is_not(
    receiver: Receiver, answers: list[int], got: int, asked: int
) -> None:
    receiver.answers = answers
    webhook = Webhook(receiver.url)
    webhook.pause_s = 0.01
    if got:
        webhook({"a": float("nan")})
        assert receiver.got == [{"a": "nan"}]
    else:
        with pytest.raises(OSError, match=f"answered {answers[-1]}"):
            webhook({"a": 1})
    assert (len(receiver.got), receiver.asked) == (got, asked)


def test_a_silent_server_is_left_after_the_timeout(receiver: Receiver) -> None:
    receiver.gate.clear()
    webhook = Webhook(receiver.url, timeout_s=0.1, attempts=2)
    webhook.pause_s = 0.01
    with pytest.raises(OSError, match="cannot be reached"):
        webhook({})
    eventually(lambda: receiver.asked == 2)


def test_training_goes_on_while_the_webhook_hangs_and_what_overflows_is_counted(
    make_session: Make, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "CLOSING_S", 120.0)  # a busy machine takes its time for so many
    receiver.gate.clear()
    session = make_session(alert_webhook=receiver.url)
    for _ in range(WAITING + 50):  # returns though nobody answers
        session.alert("again")
    assert receiver.got == []
    assert session.alerts.total == WAITING + 50
    assert session.alerts.delivery.dropped >= 49
    receiver.gate.set()
    session.stop()
    assert len(receiver.got) + session.alerts.delivery.dropped == WAITING + 50


def test_a_server_that_is_not_there_is_told_of_once(make_session: Make, caplog: pytest.LogCaptureFixture) -> None:
    session = make_session(alert_webhook="http://127.0.0.1:9/nobody")
    session.alerts.delivery.ways[0].pause_s = 0.01  # type: ignore[attr-defined]
    for _ in range(3):
        session.alert("again")
    session.stop()
    assert session.alerts.delivery.failed == 3
    assert caplog.text.count("cannot be reached") == 1


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "http://", "nonsense"])
def test_only_http_addresses_are_taken(make_session: Make, url: str) -> None:
    with pytest.raises(ConfigError, match="http or https"):
        make_session(alert_webhook=url)


def test_the_file_has_one_object_per_line(make_session: Make, tmp_path: Path) -> None:
    place = tmp_path / "new" / "alerts.jsonl"
    session = make_session(alert_file=place)
    session.tensor_inspector.inspect_tensor(np.array([np.inf]), "x")
    session.alert("second")
    session.stop()
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["InfiniteValues", "Custom"]


def test_the_log_has_the_first_of_a_kind_at_their_level(make_session: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "neuraldbg")
    session = make_session(alert_log=True)
    for _ in range(9):
        session.tensor_inspector.inspect_tensor(np.array([np.nan]), "x", "fc1")
    session.alert("only so", AlertSeverity.Info)
    said = [(record.levelname, record.message) for record in caplog.records if "NaN" in record.message]
    assert len(said) == 5
    assert said[0] == ("ERROR", "x at step 0: 1 of 1 are NaN")
    assert "only counted" in said[-1][1]
    assert ("INFO", "only so") in [(record.levelname, record.message) for record in caplog.records]
    assert session.alerts.total == 10


def test_the_bell_rings_at_a_terminal_once_for_a_kind(make_session: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def __init__(self, tty: bool) -> None:
            self.text, self._tty = "", tty

        def isatty(self) -> bool:
            return self._tty

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            pass

    for tty, rings in ((True, "\a"), (False, "")):
        terminal = Terminal(tty)
        monkeypatch.setattr(sys, "stderr", terminal)
        session = make_session(alert_bell=True)
        for _ in range(3):
            session.alert("look", AlertSeverity.Critical)
        session.alert("a word", AlertSeverity.Info, layer="fc2")
        assert terminal.text == rings
    monkeypatch.undo()


def test_the_newest_are_kept_and_all_are_counted(make_session: Make) -> None:
    session = make_session(max_alerts=4)
    for number in range(10):
        session.alert(str(number), AlertSeverity.Critical)
    assert [one.message for one in session.alerts] == ["6", "7", "8", "9"]
    assert (session.alerts.total, session.alerts.critical, session.alerts.counts()) == (10, 10, {"Custom": 10})


def test_the_trace_has_the_first_of_a_kind_at_a_place(make_session: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "WRITTEN_PER_KIND", 3)
    session = make_session()
    for layer in ("fc1", "fc2"):
        for _ in range(5):
            session.alert("again", layer=layer)
    report = session.stop()
    assert report.alert_counts == {"Custom": 10}
    assert report.run_dir is not None
    with open_trace(report.run_dir) as trace:
        assert [fact["layer"] for fact in trace.facts("alert")] == ["fc1"] * 3 + ["fc2"] * 3


AT_EXIT = """
import sys, time
from pathlib import Path
from neuraldbg.debug.delivery import Background

def slowly():
    time.sleep(0.3)
    Path(sys.argv[1]).write_text("written")

Background("neuraldbg-test").do(slowly)
"""


def test_a_program_that_ends_without_closing_delivers_what_waits(tmp_path: Path) -> None:
    words = [sys.executable, "-c", AT_EXIT, str(tmp_path / "file")]
    subprocess.run(words, check=True, timeout=60)
    assert (tmp_path / "file").read_text() == "written"


def test_closing_waits_for_what_is_under_way_and_leaves_no_thread() -> None:
    done: list[int] = []
    background = Background("neuraldbg-test")

    def slowly(number: int) -> None:
        time.sleep(0.01)
        done.append(number)

    for number in range(5):
        assert background.do(lambda number=number: slowly(number))
    background.close()
    assert done == [0, 1, 2, 3, 4]
    assert not background.do(lambda: None)
    assert "neuraldbg-test" not in [thread.name for thread in threading.enumerate()]
