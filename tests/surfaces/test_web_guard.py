"""Who is let in: the owner on loopback, whoever has the token elsewhere, and no page of another site anywhere."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_runs import made_run, train
from servers import asking, serving
from starlette.testclient import TestClient, WebSocketDenialResponse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from neuraldbg.surfaces.web.doorway import Doorway
from neuraldbg.surfaces.web.guard import Peer, uid_in

ROOT_ONLY = pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="only root can become somebody else to ask"
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with made_run(tmp_path_factory.mktemp("guard") / "run") as run:
        train(run, steps=3)
        run.end(steps=3)
    return run.directory


@pytest.fixture(scope="module")
def client(run_dir: Path) -> Iterator[TestClient]:
    with asking(run_dir) as client:
        yield client


@pytest.fixture(scope="module")
def far(run_dir: Path) -> Iterator[TestClient]:
    """Bound to an address that others can reach."""
    with asking(run_dir, host="0.0.0.0", token="secret") as client:
        client.base_url = "http://10.1.2.3:8050"
        client.get("/favicon.svg", headers={"authorization": "Bearer secret"})
        yield client


@pytest.mark.parametrize("origin", ["http://evil.example", "https://127.0.0.1:8051", "null", "http://localhost:8050"])
def test_a_foreign_origin_is_refused(client: TestClient, origin: str) -> None:
    for method, path in (("GET", "/api/run"), ("POST", "/api/continue")):
        response = client.request(method, path, headers={"origin": origin})
        assert response.status_code == 403
        assert origin in response.json()["error"]


def test_our_own_origin_may_ask(client: TestClient) -> None:
    assert client.get("/api/run", headers={"origin": "http://127.0.0.1:8050"}).status_code == 200


def test_a_request_that_another_site_caused_without_an_origin_is_refused(client: TestClient) -> None:
    image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/api/run", headers=image).status_code == 403
    assert client.get("/", headers=link).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8050", "127.0.0.1.evil.example", "10.0.0.1", "", "[::"])
def test_a_wrong_host_is_refused(client: TestClient, host: str) -> None:
    response = client.get("/api/run", headers={"host": host})
    assert response.status_code == 403
    assert "error" in response.json()


@pytest.mark.parametrize("host", ["localhost:8050", "127.0.0.1:9000", "LOCALHOST", "[::1]:8050", "localhost."])
def test_our_own_names_are_known_also_through_a_tunnel(client: TestClient, host: str) -> None:
    assert client.get("/api/run", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"host": "evil.example"}])
def test_a_websocket_from_another_origin_or_host_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect("/api/events", headers=headers):
        pass
    assert refused.value.status_code == 403


def test_the_same_over_a_real_handshake(run_dir: Path) -> None:
    with serving(run_dir) as door:
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://127.0.0.1:{door.port}/api/events", origin="http://evil.example")  # type: ignore[arg-type]
        assert refused.value.response.status_code == 403
        assert b"evil.example" in refused.value.response.body
        own = f"http://127.0.0.1:{door.port}"
        with connect(f"ws://127.0.0.1:{door.port}/api/events", origin=own) as stream:  # type: ignore[arg-type]
            assert json.loads(stream.recv(timeout=20))["type"] in ("layers", "state")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_write_that_a_form_could_send_is_refused(client: TestClient, kind: str) -> None:
    response = client.post("/api/breakpoint", content='{"layer_name": "fc"}', headers={"content-type": kind})
    assert (response.status_code, kind in response.json()["error"]) == (415, True)
    assert client.post("/api/continue", headers={"content-type": kind}).status_code == 415


def test_a_body_without_a_kind_or_of_any_size_is_refused(client: TestClient) -> None:
    assert client.post("/api/breakpoint", content=b"{}").status_code == 415
    large = client.post("/api/breakpoint", content=b" " * 70_000, headers={"content-type": "application/json"})
    assert large.status_code == 413
    pieces = client.post("/api/breakpoint", content=iter([b"{}"]), headers={"content-type": "application/json"})
    assert pieces.status_code == 411


def test_off_loopback_nobody_gets_in_without_the_token(far: TestClient) -> None:
    for path in ("/", "/api/run", "/openapi.json", "/docs", "/health", "/favicon.ico"):
        response = far.get(path)
        assert response.status_code == 401, path
        assert response.headers["www-authenticate"] == "Bearer"
    assert far.get("/api/run", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert far.get("/api/run?token=").status_code == 401
    with pytest.raises(WebSocketDenialResponse) as refused, far.websocket_connect("ws://10.1.2.3:8050/api/events"):
        pass
    assert refused.value.status_code == 401


def test_the_token_opens_as_a_header(far: TestClient) -> None:
    assert far.get("/api/run", headers={"authorization": "Bearer secret"}).status_code == 200
    assert far.get("/api/run", headers={"authorization": "bearer  secret"}).status_code == 200
    assert "set-cookie" not in far.get("/api/run", headers={"authorization": "Bearer secret"}).headers


def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address(run_dir: Path) -> None:
    with asking(run_dir, host="0.0.0.0", token="secret") as far:
        far.base_url = "http://10.1.2.3:8050"
        response = far.get("/?token=secret&view=why", follow_redirects=False)
        assert (response.status_code, response.headers["location"]) == (303, "/?view=why")
        sent = far.get(
            "/?token=secret&view=%22why", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        )
        assert (sent.status_code, sent.headers["set-cookie"]) == (200, response.headers["set-cookie"])
        assert 'content="0; url=/?view=%22why"' in sent.text
        cookie = response.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert far.get("/api/run").status_code == 200
        with far.websocket_connect("ws://10.1.2.3:8050/api/events") as stream:
            assert stream.receive_json()["run"] == "run"


def test_a_cookie_of_another_server_opens_nothing(far: TestClient) -> None:
    for cookie in ("neuraldbg_8050=wrong", "neuraldbg_8051=secret", "x", "=;;"):
        assert far.get("/api/run", headers={"cookie": cookie}).status_code == 401


def test_another_uid_on_loopback_needs_the_token(run_dir: Path) -> None:
    with asking(run_dir, uid_of=lambda _: os.getuid() + 1, token="secret") as client:
        assert client.get("/api/run").status_code == 401
        assert client.get("/api/run", headers={"authorization": "Bearer secret"}).status_code == 200
    with asking(run_dir, uid_of=lambda _: None) as client:
        assert client.get("/api/run").status_code == 401


@ROOT_ONLY
def test_a_real_process_of_another_user_is_refused_and_our_own_is_not(run_dir: Path) -> None:
    with serving(run_dir) as door:

        def ask(user: int) -> str:
            result = subprocess.run(
                ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"http://127.0.0.1:{door.port}/api/run"],
                user=user, capture_output=True, text=True, check=True,
            )  # fmt: skip
            return result.stdout

        assert (ask(65534), ask(os.getuid())) == ("401", "200")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tables are read")
def test_the_owner_of_a_real_connection_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as near:
            far, remote = listener.accept()
            with far:
                assert remote == near.getsockname()
                assert Peer(remote, far.getsockname()).uid == os.getuid()
                assert Peer((remote[0], 1), far.getsockname()).uid is None


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F72 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1
   1: 0100007F:1F72 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 112 1
   2: 0100007F:9C40 0100007F:1F72 {state} 00000000:00000000 00:00000000 00000000 {uid}        0 {inode} 1
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the table above was written by such a machine")
@pytest.mark.parametrize(
    ("row", "uid"),
    [
        ({"state": "01", "uid": 65534, "inode": 113}, 65534),
        ({"state": "05", "uid": 1000, "inode": 113}, 1000),  # it will send nothing more, and still waits for us
        ({"state": "04", "uid": 0, "inode": 0}, None),  # closed: the kernel has forgotten whose it was and says 0
        ({"state": "06", "uid": 0, "inode": 0}, None),
    ],
)
def test_a_socket_that_nobody_holds_any_more_is_nobodys(row: dict[str, object], uid: int | None) -> None:
    text = TABLE.format(**row)
    assert uid_in(text.splitlines(), ("127.0.0.1", 40000), ("127.0.0.1", 8050)) == uid


def test_the_address_carries_the_token_only_where_it_is_needed() -> None:
    for host, needed in (("127.0.0.1", sys.platform != "linux"), ("0.0.0.0", True)):
        door = Doorway(host, 0)
        try:
            assert (f"token={door.token}" in door.line) is needed
        finally:
            door.close()


# -- behind a tunnel ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tunnelled(run_dir: Path) -> Iterator[TestClient]:
    """The peer is a process of the owner's: the tunnel."""
    with asking(run_dir, token="secret", behind_proxy=True) as client:
        client.get("/favicon.svg", headers={"authorization": "Bearer secret"})
        yield client


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "some-words.example.com", "bore.example:41234"])
def test_behind_a_proxy_everybody_needs_the_token_by_any_name(tunnelled: TestClient, host: str) -> None:
    asked = {"host": host}
    assert tunnelled.get("/api/run", headers=asked).status_code == 401
    assert tunnelled.get("/api/run", headers={**asked, "authorization": "Bearer secret"}).status_code == 200
    assert tunnelled.get("/api/run", headers={**asked, "authorization": "Bearer other"}).status_code == 401


def test_behind_a_proxy_other_sites_stay_outside(tunnelled: TestClient) -> None:
    given = {"host": "some-words.example.com", "authorization": "Bearer secret"}
    own = {"origin": "https://some-words.example.com"}
    assert tunnelled.get("/api/run", headers={**given, **own}).status_code == 200
    assert tunnelled.get("/api/run", headers={**given, "origin": "https://evil.example"}).status_code == 403
    assert tunnelled.get("/api/run", headers={**given, "host": ""}).status_code == 403


def test_a_door_behind_a_proxy_tells_its_token(run_dir: Path) -> None:
    door = Doorway("127.0.0.1", 0, behind_proxy=True)
    try:
        assert door.address == f"{door.url}/?token={door.token}"
    finally:
        door.close()
