"""The button on a finding: what it would run is told first, then it is run beside the server; what it proves is what
the page and the report say from then on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forkserver import ForkServer
from made_runs import made_run, train
from servers import asking, training
from starlette.testclient import TestClient
from texts import FORGETFUL
from waiting import eventually

from neuraldbg.surfaces.web import judgement

SCRIPT = FORGETFUL + 'open("log.txt", "w").write(str(float(loss)))\n'
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory, torch_server: ForkServer) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(SCRIPT)
    assert (
        torch_server.neural("debug", "--headless", "--record", "off", "--out", "run", "train.py", cwd=folder).code == 0
    )
    return folder / "run"


@pytest.fixture
def client(run_dir: Path) -> Iterator[TestClient]:
    with asking(run_dir) as client:
        yield client


def trying(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/api/whatif").json()["trying"]
    return found


def test_what_would_be_run_is_told_and_nothing_is(client: TestClient, run_dir: Path) -> None:
    told = client.get("/api/whatif/plan?finding=missing_zero_grad").json()
    assert told["command"] == ["train.py"]
    assert told["cwd"] == str(run_dir.parent)
    assert told["wrote"] == ["log.txt"]
    assert {"change": "zero_after", "causes": ["missing_zero_grad"]} in told["tries"]
    assert client.get("/api/whatif").json()["trying"] is None
    assert not (run_dir / "whatif").exists()


def test_a_finding_that_is_not_there_is_refused_by_name(client: TestClient) -> None:
    answer = client.post("/api/whatif", json={"finding": "missing_zero_gradd"})
    assert answer.status_code == 404
    assert "did you mean 'missing_zero_grad'" in answer.json()["error"]


@pytest.mark.slow
def test_an_experiment_can_be_stopped_and_only_one_is_made_at_a_time(client: TestClient, run_dir: Path) -> None:
    started = client.post("/api/whatif", json={"finding": "missing_zero_grad", "steps": 60})
    assert started.json()["trying"]["state"] == "running"
    assert client.post("/api/whatif", json={}).status_code == 409
    eventually(lambda: trying(client)["runs"] > 0)
    stopped = client.request("DELETE", "/api/whatif", headers=JSON).json()["trying"]
    assert stopped["state"] == "stopped"
    assert stopped["error"] is None
    assert not (run_dir / "whatif.json").exists()


@pytest.mark.slow
def test_what_it_proves_is_what_page_and_report_say_from_then_on(
    client: TestClient, run_dir: Path, torch_server: ForkServer
) -> None:
    client.post("/api/whatif", json={"finding": "missing_zero_grad", "steps": 60, "jobs": 2})
    eventually(lambda: trying(client)["state"] != "running", patience_s=240.0)
    done = trying(client)
    assert (done["state"], done["error"]) == ("done", None)
    assert done["runs"] >= 3
    tried = client.get("/api/whatif").json()["tried"]
    assert {arm["cause"] for arm in tried["arms"] if arm["verdict"] == "verified"} == {"missing_zero_grad"}
    first = client.get("/api/findings").json()["findings"][0]
    assert first["kind"] == "missing_zero_grad"
    assert any(each["verified"] for each in first["suggestions"])
    assert client.get("/api/verdict").json()["finding"] == first["id"]
    told = torch_server.neural("export", "run", "-o", "-", cwd=run_dir.parent)
    session = json.loads(told.stdout)["findings"][0]
    assert (session["kind"], session["suggestions"][0]["verified"]) == ("missing_zero_grad", True)


@pytest.mark.slow
def test_a_job_tells_what_became_of_it(client: TestClient) -> None:
    told = client.post("/api/replay", json={"interventions": ["lr x0.1"], "steps": 10}).json()
    assert told["state"] == "running"
    eventually(lambda: client.get(f"/api/jobs/{told['job']}").json()["state"] != "running", patience_s=240.0)
    done = client.get(f"/api/jobs/{told['job']}").json()
    assert (done["state"], done["run"]) == ("done", "run")
    assert [arm["intervention"] for arm in done["tried"]["arms"]] == ["lr x0.1"]


def test_a_tensor_of_a_run_that_was_not_recorded_says_how_it_could_have_been(client: TestClient) -> None:
    answer = client.post("/api/tensor", json={"layer": "0", "step": 3})
    assert answer.status_code == 422
    assert "--record full" in answer.json()["error"]


@pytest.mark.slow
def test_a_tensor_of_a_recorded_run_that_is_over_is_made_again(tmp_path: Path, torch_server: ForkServer) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("debug", "--headless", "--record", "full", "--out", "run", "train.py")
    assert torch_server.neural(*words, cwd=tmp_path).code == 0
    with asking(tmp_path / "run") as client:
        wanted = {"layer": "2", "step": 31, "kind": "gradient", "slice": "0"}
        told = client.post("/api/tensor", json=wanted).json()
    tensor = told["tensor"]
    assert (told["proof"], tensor["shape"]) == ("proved identical", [64, 3])
    assert (tensor["slice_shape"], len(tensor["values"])) == ([3], 3)
    assert sum(tensor["histogram"]["counts"]) == 64 * 3


def test_a_run_that_still_trains_is_not_run_again(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run)
    with training(run.directory), asking(run.directory) as client:
        assert client.get("/api/whatif/plan").status_code == 409
        assert client.post("/api/whatif", json={}).status_code == 409


def test_what_was_proved_stands_before_what_only_looks_worse() -> None:
    def finding(kind: str, verified: bool | None, **more: Any) -> dict[str, Any]:
        fixes = [{"verified": verified}]
        return {
            "id": kind,
            "kind": kind,
            "layer": None,
            "severity": "critical",
            "step": 1,
            "suggestions": fixes,
            **more,
        }

    chained = finding("exploding_loss", None, chain=[{"kind": "nan_loss", "layer": None}], confidence=0.9)
    proved = finding("missing_zero_grad", True, severity="warning", confidence=0.99)
    assert [one["kind"] for one in judgement.causes_first([chained, proved])] == ["missing_zero_grad", "exploding_loss"]
