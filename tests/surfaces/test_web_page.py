"""What the server does for its own page: serve it, tell it its settings, and answer what only it asks."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from made_runs import made_run, train
from servers import asking, serving
from starlette.testclient import TestClient

from neuraldbg.surfaces.web import judgement, pages
from neuraldbg.trace.findings import write_findings, write_verdict


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("runs")
    for name, nan_from in (("good", None), ("broken", 33)):
        with made_run(folder / name) as run:
            train(run, nan_from=nan_from)
            run.end(steps=50)
    with asking(folder / "good", folder / "broken") as client:
        yield client


# -- the page itself ---------------------------------------------------------------------------------------------------


def test_the_built_page_is_served_with_what_a_browser_may_keep(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<title>NeuralDbg</title>")
    (tmp_path / "assets" / "index-abc.js").write_text("1")
    monkeypatch.setattr(pages, "BUILT", tmp_path)
    home = client.get("/")
    assert home.text == "<title>NeuralDbg</title>"
    assert home.headers["cache-control"] == "no-cache"
    assert "default-src 'self'" in home.headers["content-security-policy"]
    asset = client.get("/assets/index-abc.js")
    assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert "javascript" in asset.headers["content-type"]


@pytest.mark.parametrize("name", ["..%2Findex.html", "%2e%2e", "nothing.js"])
def test_nothing_but_assets_is_served_as_one(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("secret")
    monkeypatch.setattr(pages, "BUILT", tmp_path)
    answer = client.get(f"/assets/{name}")
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_a_page_that_was_not_built_says_why_and_what_to_do(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / pages.NOT_BUILT).write_text("npm install failed: <no registry>\n")
    monkeypatch.setattr(pages, "BUILT", tmp_path)
    home = client.get("/").text
    assert "npm install failed: &lt;no registry&gt;" in home
    assert "npm run build" in home


def test_the_page_is_told_what_was_configured(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.end(steps=0)
    with asking(tmp_path / "run") as client:
        told = client.get("/api/settings").json()
    assert (told["theme"], told["refresh_s"], told["max_history"], told["history"]) == ("dark", 1.0, 1000, 100)
    assert told["charts"] == ["execution_trace", "gradient_flow", "memory_profile"]


# -- what it asks ------------------------------------------------------------------------------------------------------


def test_a_frame_holds_every_layer_at_the_last_measured_step(client: TestClient) -> None:
    frame = client.get("/api/frame?step=7").json()
    assert (frame["step"], frame["timed_step"]) == (7, 7)
    at = frame["layers"].index("conv1")
    assert frame["metrics"]["mean_activation"][at] == pytest.approx(0.25)
    assert frame["metrics"]["execution_time"][at] == pytest.approx(0.00125)
    assert client.get("/api/frame?step=100000").json()["step"] == 49
    assert client.get("/api/frame").json()["step"] == 49


def test_a_moment_is_the_frame_the_inspector_and_the_flame_graph_in_one_answer(client: TestClient) -> None:
    whole = client.get("/api/moment?step=7&layer=conv1&spans=true").json()
    frame = client.get("/api/frame?step=7").json()
    numbers = np.frombuffer(base64.b64decode(whole["metrics"]["mean_activation"]), np.float32)
    assert numbers.tolist() == frame["metrics"]["mean_activation"]
    assert (whole["step"], whole["layers"], whole["flops"]) == (7, frame["layers"], frame["flops"])
    inspected = client.get("/api/layer_inspect/conv1?step=7").json()
    assert whole["inspected"] == {name: inspected[name] for name in whole["inspected"]}
    assert whole["inspected"]["step"] == 7
    assert whole["spans"] == client.get("/api/flame?step=7").json()["spans"]


def test_a_moment_holds_only_what_is_asked_for(client: TestClient) -> None:
    bare = client.get("/api/moment?step=7").json()
    assert (bare["inspected"], bare["spans"]) == (None, [])
    unknown = client.get("/api/moment?step=7&layer=conv7").json()["inspected"]
    assert "did you mean 'conv1'" in unknown["error"]


def test_hits_that_were_recorded_are_told_with_the_run(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.writer.fact("hit", at_step=3, layer="fc", phase="forward", breakpoints=[1])
        run.end(steps=5)
    with asking(tmp_path / "run") as client:
        assert client.get("/api/run").json()["hits"] == [{"step": 3, "layer": "fc"}]


def test_a_verdict_that_was_written_is_not_worked_out_again(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run)
        run.end(steps=50)
    told = {"state": "healthy", "headline": "as the viewer has written it", "finding": None}
    write_findings(tmp_path / "run", [])
    write_verdict(tmp_path / "run", told)
    with asking(tmp_path / "run") as client:
        assert client.get("/api/verdict").json() == told
        (tmp_path / "run" / "verdict.json").write_text("[")  # half of one counts as none
        assert client.get("/api/verdict").json()["headline"].startswith("50 updates")


def test_a_server_that_leaves_takes_the_judging_process_with_it(tmp_path: Path) -> None:
    judge = judgement.Judge()
    judge.close()
    with made_run(tmp_path / "run") as run:
        train(run)
        run.end(steps=50)
    assert judge.recorded(tmp_path / "run").verdict == judgement.SO_FAR


def test_a_heatmap_comes_with_its_names(client: TestClient) -> None:
    heat = client.get("/api/heatmap/cells?metric=mean_activation&width=10&run=broken").json()
    cells = np.frombuffer(base64.b64decode(heat["cells"]), np.uint8).reshape(len(heat["layers"]), -1)
    assert cells.shape[1] == len(heat["edges"]) - 1
    assert (heat["edges"][0], heat["edges"][-1]) == (0, 50)


def test_what_was_tried_on_a_run_is_told_and_else_how_to(tmp_path: Path) -> None:
    run_dir = tmp_path / "a run"
    with made_run(run_dir) as run:
        train(run)
        run.end(steps=50)
    with asking(run_dir) as client:
        nothing = client.get("/api/whatif").json()
        assert nothing == {"tried": None, "trying": None, "command": f"neural whatif '{run_dir}'"}
        assert client.get("/api/run").json()["again"] == f"neural view '{run_dir}'"
        arm = {"intervention": "lr x0.1", "verdict": "verified", "metric": {"control": "inf", "arm": 0.5}}
        (run_dir / "whatif.json").write_text(json.dumps({"control": {}, "arms": [arm], "notes": []}))
        assert client.get("/api/whatif").json()["tried"]["arms"] == [arm]
        (run_dir / "whatif.json").write_text("half an answer")
        assert client.get("/api/whatif").json()["tried"] is None


def test_a_moment_has_the_loss_of_its_very_step(client: TestClient) -> None:
    for step in (7, 31):
        series = client.get(f"/api/series?metric=loss&from={step}&to={step}").json()
        assert client.get(f"/api/moment?step={step}").json()["scalars"]["loss"] == series["max"][0]
    assert client.get("/api/moment?run=broken&step=40").json()["scalars"]["loss"] == "nan"


def test_the_verdict_names_the_finding_behind_it(client: TestClient) -> None:
    verdict = client.get("/api/verdict?run=broken").json()
    assert verdict["state"] == "critical"
    found = client.get("/api/findings?run=broken").json()["findings"]
    assert verdict["finding"] in [one["id"] for one in found]


def test_anomalies_are_counted_by_layer(client: TestClient) -> None:
    found = client.get("/api/anomalies?run=broken").json()
    assert found["samples"] > 0
    assert sum(one["count"] for one in found["layers"]) <= found["total"]


def test_a_condition_is_rehearsed_on_the_recorded_steps(client: TestClient) -> None:
    def rehearsed(condition: str, layer: str | None) -> dict[str, object]:
        body = {"condition": condition, "layer_name": layer}
        answer: dict[str, object] = client.post("/api/breakpoint/rehearsal", json=body).json()
        return answer

    found = rehearsed("step >= 36", "conv1")
    assert (found["error"], found["would_hit"], found["layers"]) == (None, 14, ["conv1"])
    assert found["last"] == {"step": 49, "layer": "conv1"}
    assert rehearsed("", "*")["would_hit"] == rehearsed("", "*")["looked_at"]
    assert rehearsed("loss > 1e9", "Conv2D_1")["would_hit"] == 0
    assert rehearsed("1 / (step - step) > 0", "conv1")["would_hit"] == 0
    assert rehearsed("grad_norm <", "conv1")["error"]
    assert rehearsed("nonsense > 1", None)["error"]
    body = {"condition": "isnan(mean_activation)", "layer_name": "*"}
    broken = client.post("/api/breakpoint/rehearsal?run=broken", json=body).json()
    assert broken["would_hit"] == 17, broken  # as the gate sees it
    unknown = rehearsed("", "conv")
    assert "conv" in str(unknown["error"])
    assert unknown["nearest"] == ["conv1"]
    assert unknown["unknown_layer"] is True
    assert rehearsed("grad_norm <", "conv")["unknown_layer"] is False  # the condition comes first


def test_a_cause_comes_before_what_it_led_to() -> None:
    def finding(kind: str, severity: str, *led_to: str) -> dict[str, object]:
        chain = [{"kind": each, "layer": None, "step": 1, "summary": ""} for each in led_to]
        more = {"layer": None, "confidence": 0.9, "step": 0, "chain": chain, "summary": kind, "id": kind}
        return {"kind": kind, "severity": severity, **more}

    given = [finding("quiet", "info"), finding("nan", "critical"), finding("lr", "warning", "nan")]
    assert [one["kind"] for one in judgement.causes_first(given)] == ["lr", "nan", "quiet"]
    assert judgement.of_findings(given[:1]) is None
    assert judgement.of_findings(given[1:]) == {"state": "critical", "headline": "nan (since step 0)", "finding": "nan"}


def test_a_theme_and_charts_reach_the_page(tmp_path: Path) -> None:
    from neuraldbg.surfaces.web.asking import Settings

    with made_run(tmp_path / "run") as run:
        run.end(steps=0)
    given = Settings(0.05, theme="light", charts=("memory_profile",))
    with serving(tmp_path / "run", settings=given) as door:
        import json
        from urllib.request import urlopen

        with urlopen(f"{door.url}/api/settings", timeout=10) as answer:
            told = json.loads(answer.read())
    assert (told["theme"], told["charts"]) == ("light", ["memory_profile"])
