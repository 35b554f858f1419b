"""The line between trainer and viewer: nobody at its other end can hold up the training, or lead us elsewhere."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

from neuraldbg.control import channel as channel_module
from neuraldbg.control.breakpoints import MOST
from neuraldbg.control.channel import CONTROL_FILE, MOST_LINES, MOST_UNANSWERED, ChannelClient, ChannelServer
from neuraldbg.control.gate import Gate
from neuraldbg.control.line import LONGEST_REQUEST
from neuraldbg.control.verbs import Verbs
from neuraldbg.errors import AbortedByUser, ChannelClosed, ChannelError, ChannelSilent
from neuraldbg.records import Phase, Stop

EVENT = {"event": "hit", "breakpoints": [1], "layer": "x" * 200}


@pytest.fixture
def gate() -> Gate:
    made = Gate()
    made.remote = True
    return made


@pytest.fixture
def server(gate: Gate, tmp_path: Path) -> Iterator[ChannelServer]:
    made = ChannelServer(Verbs(gate), tmp_path)
    yield made
    made.close()


def raw(run_dir: Path) -> tuple[socket.socket, str]:
    """A connection that has said nothing yet, and the token it would say."""
    address = json.loads((run_dir / CONTROL_FILE).read_text())
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address["unix"])  # waits where many do
    connection.settimeout(20)
    return connection, address["token"]


def refusal(client: ChannelClient, verb: str, **arguments: Any) -> ChannelError:
    with pytest.raises(ChannelError) as refused:
        client.call(verb, **arguments)
    return refused.value


# -- those who do not read ---------------------------------------------------------------------------------------------


def test_somebody_who_never_reads_is_dropped_and_holds_up_nobody(
    server: ChannelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "STALLED_S", 0.5)
    deaf, token = raw(tmp_path)
    events: list[dict[str, Any]] = []
    with deaf:
        deaf.sendall(json.dumps({"token": token}).encode() + b"\n")
        assert b"ok" in deaf.recv(1000)
        client = ChannelClient(tmp_path, on_event=events.append)
        client.call("state")
        published = 0

        def publish() -> None:
            nonlocal published
            until_s = time.monotonic() + 1.5
            while published < 20_000 or time.monotonic() < until_s:
                server.publish(EVENT)
                published += 1

        training = threading.Thread(target=publish, daemon=True)
        training.start()
        training.join(60)
        assert not training.is_alive()  # a blocking send would never have come back
        left = 0
        while piece := deaf.recv(1 << 16):  # dropped: what the kernel holds, then the end
            left += len(piece)
        assert left < published * len(json.dumps(EVENT))
        assert client.call("state")["state"] == "running"
        client.close()
    assert len(events) > 100  # who reads still hears, however fast it comes


def test_a_silent_connection_is_closed_after_a_while(
    server: ChannelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server is not None
    monkeypatch.setattr(channel_module, "HELLO_S", 0.3)
    silent, _ = raw(tmp_path)
    with silent:
        assert silent.recv(10) == b""
    dripping, _ = raw(tmp_path)
    with dripping:
        eventually(lambda: _refuses(dripping))  # a byte now and then is no hello either


def _refuses(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"x")
    except OSError:
        return True
    return False


def test_there_are_only_so_many_lines(server: ChannelServer, tmp_path: Path) -> None:
    held = [raw(tmp_path)[0] for _ in range(MOST_LINES)]
    try:
        eventually(lambda: len(server._lines) == MOST_LINES)
        with pytest.raises(ChannelClosed):
            ChannelClient(tmp_path)
    finally:
        for each in held:
            each.close()
    eventually(lambda: not server._lines)
    client = ChannelClient(tmp_path)
    assert client.call("state")["state"] == "running"
    client.close()


def test_a_trainer_that_says_nothing_is_not_asked_for_ever(tmp_path: Path) -> None:
    gone_on = threading.Event()
    server = ChannelServer(lambda *_: gone_on.wait(30), tmp_path)
    client = ChannelClient(tmp_path, timeout_s=0.001)
    try:
        for _ in range(MOST_UNANSWERED):
            assert isinstance(refusal(client, "state"), ChannelSilent)
        assert "wait already" in str(refusal(client, "state"))
        gone_on.set()
        eventually(lambda: client._unanswered == 0)
        client._timeout_s = 10.0
        assert client.call("state") is True
    finally:
        client.close()
        server.close()


# -- long answers ------------------------------------------------------------------------------------------------------


def test_as_many_breakpoints_as_there_may_be_can_be_listed(gate: Gate, server: ChannelServer, tmp_path: Path) -> None:
    assert server is not None
    client = ChannelClient(tmp_path)
    try:
        for number in range(MOST):
            condition = f"step == {number} and " + " and ".join(["memory < 1"] * 20)
            gate.breakpoints.add(f"{number:0300d}", condition, group="g" * 200)
        gate.breakpoints.all()[0].layers = tuple("layer" + "x" * 100 for _ in range(20_000))  # of a glob
        listed = client.call("breakpoints")
        assert [one["id"] for one in listed] == [one.id for one in gate.breakpoints]
        assert len(json.dumps(listed)) > 2 * LONGEST_REQUEST
        gate.breakpoints.all()[0].layers = tuple("layer" + "x" * 1000 for _ in range(20_000))
        assert "too long" in str(refusal(client, "breakpoints"))
        assert client.call("state")["state"] == "running"
    finally:
        client.close()


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("add", {"layer_name": ["fc"]}),
        ("add", {"layer_name": "x" * 301}),
        ("add", {"layer_name": "fc", "group": "g" * 201}),
        ("add", {"layer_name": "fc", "group": {"a": 1}}),
        ("add", {"layer_name": "fc", "condition": 5}),
        ("add", {"layer_name": "fc", "condition": "1 < " * 200}),
        ("add", {"layer_name": "fc", "phase": "f" * 30}),
        ("add", {"layer_name": "fc", "enabled": "no"}),
        ("add", {"layer_name": "fc", "once": 1}),
        ("change", {"enabled": True}),
        ("change", {"id": [1]}),
        ("change", {"id": True}),
        ("change", {"id": 1, "enabled": None}),
        ("change", {"id": 1, "group": 7}),
        ("change", {"id": 1, "condition": ["step"]}),
        ("group", {"group": ["g"], "enabled": True}),
        ("step", {"unit": 3}),
        ("tensor", {"slice": 3}),
    ],
)
def test_what_is_no_value_is_refused(
    gate: Gate, server: ChannelServer, tmp_path: Path, verb: str, arguments: dict[str, Any]
) -> None:
    assert server is not None
    gate.breakpoints.add("fc", group="g")
    before = gate.breakpoints.all()[0].as_dict()
    client = ChannelClient(tmp_path)
    try:
        assert refusal(client, verb, **arguments).kind in ("UsageError", "ConditionError")
    finally:
        client.close()
    assert [one.as_dict() for one in gate.breakpoints] == [before]


# -- where a line leads ------------------------------------------------------------------------------------------------


def planted(run_dir: Path, **address: Any) -> None:
    (run_dir / CONTROL_FILE).write_text(json.dumps({**address, "token": "secret", "pid": 1}))


def test_nobody_is_called_over_the_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        planted(tmp_path, tcp=list(listener.getsockname()))
        with pytest.raises(ChannelClosed, match=r"it has ended, or was started with --headless"):
            ChannelClient(tmp_path)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_socket_that_others_can_reach_is_not_called(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "control"))
        listener.listen(1)
        listener.settimeout(0.1)
        planted(tmp_path, unix=str(folder / "control"))
        with pytest.raises(ChannelClosed, match="no training process"):
            ChannelClient(tmp_path)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_socket_of_another_user_is_not_called(
    server: ChannelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server is not None
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(ChannelClosed):
        ChannelClient(tmp_path)


@pytest.mark.parametrize("address", [{"unix": 5}, {"unix": ["a"]}, {"unix": "/"}, {"unix": "\0"}, {}, {"tcp": 3}])
def test_an_address_that_is_none_leads_nowhere(tmp_path: Path, address: dict[str, Any]) -> None:
    planted(tmp_path, **address)
    with pytest.raises(ChannelClosed):
        ChannelClient(tmp_path)


def test_without_unix_sockets_only_this_machine_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, family = socket.socketpair, socket.AF_UNIX
    monkeypatch.setattr(socket, "socketpair", lambda: pair(family))
    monkeypatch.delattr(socket, "AF_UNIX")
    made = ChannelServer(lambda verb, _: verb, tmp_path)
    client = ChannelClient(tmp_path)
    assert client.call("state") == "state"
    client.close()
    made.close()
    for host in ("192.0.2.1", "example.org", "0.0.0.0"):
        planted(tmp_path, tcp=[host, 80])
        with pytest.raises(ChannelClosed):
            ChannelClient(tmp_path)


def test_a_trainer_that_was_stopped_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "HELLO_S", 0.2)
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(folder / "control"))
        silent.listen(1)  # the kernel accepts, as it does for a stopped process, until so many wait
        planted(tmp_path, unix=str(folder / "control"))
        waiting = []
        for _ in range(4):
            with pytest.raises(ChannelSilent, match="does not answer"):
                ChannelClient(tmp_path)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.setblocking(False)
            waiting.append(connection)
            connection.connect_ex(str(folder / "control"))
        for each in waiting:
            each.close()


# -- the end -----------------------------------------------------------------------------------------------------------


def test_abort_ends_a_training_that_runs_once(gate: Gate, server: ChannelServer, tmp_path: Path) -> None:
    assert server is not None
    caught: list[int] = []

    def train() -> None:
        for step in range(100_000):
            try:
                if gate.active:
                    gate.reached(Stop(step, Phase.FORWARD, "fc", 1, {}), [])
            except AbortedByUser:
                caught.append(step)
                over.wait(10)
            if over.is_set() and step > caught[0] + 100:
                return

    over = threading.Event()
    client = ChannelClient(tmp_path)
    thread = threading.Thread(target=train)
    client.call("abort")
    thread.start()
    eventually(lambda: bool(caught))
    over.set()
    thread.join(20)
    assert len(caught) == 1  # a script that catches it, to save something, is not interrupted again
    assert not gate.active
    client.close()
