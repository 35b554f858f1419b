"""Debugging far away: a real run and its server, seen through a real tunnel, and nothing left when it is over."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest
from sshd import sshd
from texts import NETWORK
from waiting import eventually

from neural.cloud import children, tunnels
from neural.cloud.cloud_execution import CloudExecutor, detect_environment
from neuraldbg.errors import UsageError

GUIDE = Path(__file__).parents[2] / "docs" / "cloud.md"
LONG = NETWORK.replace("epochs: 1", "epochs: 100000")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tunnel of the machine is used, whatever it has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(tunnels.SSH_VARIABLE, raising=False)
    real = tunnels.shutil.which
    monkeypatch.setattr(tunnels.shutil, "which", lambda name, **k: None if name in HIDDEN else real(name, **k))


HIDDEN = {"cloudflared", "ngrok", "bore"}


@pytest.fixture
def executor() -> Iterator[CloudExecutor]:
    with CloudExecutor(timeout=120, retry_attempts=1) as made:
        yield made


def post(url: str, **headers: str) -> tuple[int, Any]:
    return get(url, method="POST", **headers)


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")


def bearer(url: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {parse_qs(urlsplit(url).query)['token'][0]}"}


def root(url: str) -> str:
    return url.partition("/?")[0]


def test_a_dashboard_without_a_tunnel_says_what_to_type(executor: CloudExecutor, tmp_path: Path) -> None:
    told = executor.start_debug_dashboard(NETWORK, port=0)
    assert told["status"] == "running", told
    assert told["backend"] == "pytorch"
    assert told["tunnel_url"] is None
    assert "cloudflared" in told["tunnel_reason"]
    port = urlsplit(told["dashboard_url"]).port
    assert told["ssh_command"].startswith(f"ssh -L {port}:127.0.0.1:{port} ")
    assert psutil.Process(told["process_id"]).ppid() == os.getpid()
    page = root(told["dashboard_url"])
    assert get(f"{page}/api/run")[0] == 401  # also for the owner: one of his processes may be a tunnel
    status, answer = get(f"{page}/api/run", **bearer(told["dashboard_url"]))
    assert status == 200
    run_dir = Path(told["run_directory"])
    assert answer["name"] == run_dir.name
    eventually(lambda: psutil.Process(told["process_id"]).status() == psutil.STATUS_ZOMBIE)
    eventually(lambda: get(f"{page}/api/run", **bearer(told["dashboard_url"]))[1]["state"] == "finished")
    for log in run_dir.parent.glob("*.log"):
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
    executor.cleanup()
    assert not psutil.pid_exists(told["process_id"])
    with pytest.raises(urllib.error.URLError):
        get(f"{page}/api/run")
    assert (run_dir / "run.json").is_file()  # what was recorded stays


def test_a_tunnel_through_a_real_sshd_carries_the_token(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd") as target, CloudExecutor(timeout=120, ssh_host=target) as executor:
        told = executor.start_debug_dashboard(NETWORK, setup_tunnel=True, port=0)
        assert told["status"] == "running", told
        assert told["tunnel_provider"] == "ssh"
        assert told["tunnel_reason"] is None
        far, near = urlsplit(told["tunnel_url"]), urlsplit(told["dashboard_url"])
        assert far.hostname == "127.0.0.1"
        assert far.port != near.port
        assert "token=" in far.query
        assert get(f"{root(told['tunnel_url'])}/api/run")[0] == 401
        assert get(f"{root(told['tunnel_url'])}/api/run", **bearer(told["tunnel_url"]))[0] == 200
        executor.cleanup()
        with pytest.raises(urllib.error.URLError):
            get(f"{root(told['tunnel_url'])}/api/run")


def test_a_host_that_keeps_the_port_to_itself_is_told_with_the_way_in(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd") as target:
        by_name = target.replace("@127.0.0.1", "@gateway.invalid")  # a name that only this ssh knows
        with CloudExecutor(timeout=120, ssh_host=f"-o HostName=127.0.0.1 {by_name}") as executor:
            told = executor.start_debug_dashboard(NETWORK, port=0)
            port = urlsplit(told["tunnel_url"]).port
            assert root(told["tunnel_url"]) == f"http://127.0.0.1:{port}"
            assert f"`ssh -L {port}:127.0.0.1:{port} gateway.invalid`" in told["tunnel_reason"]
            assert get(f"{root(told['tunnel_url'])}/api/run", **bearer(told["tunnel_url"]))[0] == 200


def test_a_training_is_held_and_let_go_through_the_tunnel(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd") as target, CloudExecutor(timeout=120, ssh_host=target) as executor:
        told = executor.start_debug_dashboard(LONG, port=0)
        page, token = root(told["tunnel_url"]), bearer(told["tunnel_url"])
        eventually(lambda: get(f"{page}/api/state", **token)[1].get("state") == "running")
        assert post(f"{page}/api/pause", **token)[0] == 200
        eventually(lambda: get(f"{page}/api/state", **token)[1].get("state") == "paused")
        assert post(f"{page}/api/continue")[0] == 401
        assert post(f"{page}/api/continue", **token)[0] == 200
        eventually(lambda: get(f"{page}/api/state", **token)[1].get("state") == "running")


@pytest.mark.parametrize("target", ["", "me@host -N", "me@'host"])
def test_a_host_that_is_none_is_refused_before_anything_starts(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tunnels.SSH_VARIABLE, target or " ")
    told = CloudExecutor().start_debug_dashboard(NETWORK, port=0)
    assert told["status"] == "failed"
    assert "ssh" in told["error"]
    assert not Path("neuraldbg_runs").exists()


def test_the_host_is_found_in_what_one_types_after_ssh() -> None:
    said = "Allocated port 4711 for remote forward to 127.0.0.1:8050"
    for target, host in (("me@host", "host"), ("-p 2 box", "box"), ("ssh://me@box:2222", "box"), ("me@::1", "[::1]")):
        assert tunnels.ssh_provider(target).address(said) == f"http://{host}:4711"


def test_a_host_that_cannot_be_reached_is_no_reason_to_have_no_dashboard() -> None:
    with CloudExecutor(timeout=120, retry_attempts=2, ssh_host="-p 1 nobody@127.0.0.1") as executor:
        told = executor.start_debug_dashboard(NETWORK, port=0)
        assert told["status"] == "running"
        assert told["tunnel_url"] is None
        assert told["tunnel_reason"].startswith("ssh: ")
        assert "refused" in told["tunnel_reason"]


def test_a_network_with_a_mistake_fails_with_the_reason_and_leaves_nothing(executor: CloudExecutor) -> None:
    before = psutil.Process().children()
    told = executor.start_debug_dashboard(NETWORK.replace("Dense", "Dence"), port=0)
    assert set(told) == {"status", "error"}
    assert told["status"] == "failed"
    assert "Dence" in told["error"]
    assert executor.get_environment_info()["sessions"] == []
    assert psutil.Process().children() == before


@pytest.mark.parametrize("given", [None, Path("model.neural"), b"network"])
def test_what_is_no_text_is_refused_before_anything_starts(executor: CloudExecutor, given: Any) -> None:
    told = executor.start_debug_dashboard(given, port=0)
    assert (told["status"], type(given).__name__ in told["error"]) == ("failed", True)
    with pytest.raises(UsageError, match="text of a network"):
        executor.compile_model(given)
    assert not Path("neuraldbg_runs").exists()


def test_who_loses_patience_leaves_nothing_that_cleaning_up_does_not_end(
    executor: CloudExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = psutil.Process().children()
    with monkeypatch.context() as patch:
        patch.setattr(children.Child, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            executor.start_debug_dashboard(LONG, port=0)
    assert len(psutil.Process().children()) == len(before) + 1
    executor.cleanup()
    assert psutil.Process().children() == before


def test_a_tunnel_that_nobody_waits_for_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_program(tmp_path / "bin", "bore", SPOKEN["bore"][0], monkeypatch)
    before = psutil.Process().children()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(children.Child, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tunnels.open_tunnel(tunnels.providers(None), 8123, tmp_path / "log", attempts=1, seconds=60)
    assert psutil.Process().children() == before


def test_who_forgets_to_clean_up_leaves_nothing_running() -> None:
    code = (
        "import json; from neural.cloud.cloud_execution import CloudExecutor; executor = CloudExecutor();"
        f"print(json.dumps(executor.start_debug_dashboard({LONG!r}, setup_tunnel=False, port=0)))"
    )
    told = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert told["status"] == "running"
    assert not psutil.pid_exists(told["process_id"])
    with pytest.raises(urllib.error.URLError):
        get(f"{root(told['dashboard_url'])}/api/run")


# -- providers that tell their address: programs of the same names that say what those say -----------------------------

SPOKEN = {
    "cloudflared": ("INF |  https://some-four-random-words.trycloudflare.com  |", "https://some-four-random-words.trycloudflare.com"),
    "ngrok": ('t=2026 lvl=info msg="started tunnel" obj=tunnels addr=http://x url=https://ab12.ngrok-free.app', "https://ab12.ngrok-free.app"),
    "bore": ("INFO bore_cli::client: listening at bore.pub:41234", "http://bore.pub:41234"),
}  # fmt: skip


def a_program(
    folder: Path, name: str, says: str, monkeypatch: pytest.MonkeyPatch, *, then: str = "exec sleep 600"
) -> Path:
    """Writes down how it was called, says its line and stays."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "$@" > {folder}/called\nenv > {folder}/env\ncat <<"END"\n{says}\nEND\n{then}\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr("test_cloud_execution.HIDDEN", {"cloudflared", "ngrok", "bore"} - {name})
    return folder / "called"


@pytest.mark.parametrize("name", SPOKEN)
def test_whichever_provider_is_on_the_path_is_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says, url = SPOKEN[name]
    called = a_program(tmp_path / "bin", name, f"something else\n{says}", monkeypatch)
    (found,) = tunnels.providers(None)
    tunnel = tunnels.open_tunnel([found], 8123, tmp_path / "log", attempts=1, seconds=60)
    try:
        assert (tunnel.provider, tunnel.url) == (name, url)
        assert "8123" in called.read_text()
    finally:
        tunnel.child.end()


def test_one_that_ends_is_tried_again_and_then_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_program(tmp_path / "bin", "bore", "Error: could not connect", monkeypatch, then="exit 1")
    with pytest.raises(tunnels.NoTunnel, match="bore: Error: could not connect"):
        tunnels.open_tunnel(tunnels.providers(None), 8123, tmp_path / "log", attempts=3, seconds=60)
    assert (tmp_path / "log").read_text().count("could not connect") == 3


def test_ngrok_is_for_a_dashboard_of_ours_only(
    executor: CloudExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert executor.setup_ngrok_tunnel(8050) is None
    assert "no dashboard of this executor is on port 8050" in caplog.text
    told = executor.start_debug_dashboard(NETWORK, setup_tunnel=False, port=0)
    assert told["tunnel_reason"] == "no tunnel was asked for"
    a_program(tmp_path / "bin", "ngrok", SPOKEN["ngrok"][0], monkeypatch)
    url = executor.setup_ngrok_tunnel(urlsplit(told["dashboard_url"]).port or 0, auth_token="an account's")
    assert url is not None
    assert url.startswith("https://ab12.ngrok-free.app/?token=")
    assert urlsplit(url).query == urlsplit(told["dashboard_url"]).query
    assert "NGROK_AUTHTOKEN=an account's" in (tmp_path / "bin" / "env").read_text()
    assert "account" not in (tmp_path / "bin" / "called").read_text()


def test_the_guide_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(block, str(GUIDE), "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.startswith("Access debugger at: ssh -L ")


# -- the other calls ---------------------------------------------------------------------------------------------------


def test_models_are_compiled_drawn_and_run(executor: CloudExecutor) -> None:
    script = executor.compile_model(NETWORK)
    assert "class Small" in Path(script).read_text()
    assert "<svg" in Path(executor.visualize_model(NETWORK, "svg")).read_text()
    model = Path("model.neural")
    model.write_text(NETWORK)
    done = executor.run_model(str(model), epochs=1, batch_size=64)
    assert done["success"], done["stderr"]
    with pytest.raises(UsageError, match="own settings"):
        executor.run_model(script, epochs=2)
    with pytest.raises(UsageError, match="Dence"):
        executor.compile_model(NETWORK.replace("Dense", "Dence"))


def test_the_environment_is_told_without_guessing(executor: CloudExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    told = executor.get_environment_info()
    assert (told["environment"], told["is_cloud"], told["tunnels"]) == ("local", False, [])
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    assert detect_environment() == "kaggle"
    assert CloudExecutor("colab").environment == "colab"
    assert executor.start_nocode_interface()["status"] == "failed"
