"""What the routes answer about recorded runs: shapes, measured numbers, and a reason for every refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from made_runs import made_run, train
from servers import asking
from starlette.testclient import TestClient

from neuraldbg.records import Kind


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("runs")
    for name, nan_from in (("good", None), ("broken", 33)):
        with made_run(folder / name) as run:
            train(run, nan_from=nan_from)
            run.end(steps=50)
    with asking(folder / "good", folder / "broken") as client:
        yield client


def test_a_layer_answers_with_the_three_objects_of_the_seed(client: TestClient) -> None:
    answer = client.get("/api/layer_inspect/Conv2D_1").json()
    assert answer["layer"] == "conv1"
    assert answer["breakpoint"] == {}
    assert answer["statistics"]["execution_times"]["mean"] == pytest.approx(0.00125)
    assert answer["statistics"]["activations"]["median"] == 0.25
    assert answer["statistics"]["gradients"]["max"] == pytest.approx(0.3)  # of its weight: the output's was not taken
    assert answer["profile"]["call_count"] == 50
    latest = answer["latest"]
    assert (latest["step"], latest["flops"], latest["memory"]) == (49, 1000, pytest.approx(4096 / 1e6))
    assert (latest["mean_activation"], latest["std_activation"]) == (0.25, 0.5)


def test_a_layer_at_an_earlier_step(client: TestClient) -> None:
    answer = client.get("/api/layer_inspect/fc?step=7").json()
    assert (answer["step"], len(answer["history"])) == (7, 8)


def test_the_inspector_keeps_the_last_hundred_executions(tmp_path: Path) -> None:
    with made_run(tmp_path / "long") as run:
        train(run, steps=130)
        run.end(steps=130)
    with asking(tmp_path / "long") as client:
        history = client.get("/api/layer_inspect/fc").json()["history"]
    assert [history[0]["step"], history[-1]["step"], len(history)] == [30, 129, 100]


def test_names_with_slashes_are_one_layer(tmp_path: Path) -> None:
    with made_run(tmp_path / "keras") as run:
        run.stats(run.module("dense/kernel", "Dense", run.model()), Kind.ACTIVATION, 0)
        run.end(steps=1)
    with asking(tmp_path / "keras") as client:
        assert client.get("/api/layer_inspect/dense/kernel").json()["layer"] == "dense/kernel"


def test_an_unknown_layer_names_the_nearest_beside_the_three_objects(client: TestClient) -> None:
    response = client.get("/api/layer_inspect/Conv3D_1")
    assert response.status_code == 404
    answer = response.json()
    assert [answer[name] for name in ("statistics", "breakpoint", "profile")] == [{}, {}, {}]
    assert "Conv2D_1" in answer["nearest"] or "Conv2d_1" in answer["nearest"]
    assert "did you mean" in answer["error"]


def test_runs_and_one_of_them(client: TestClient) -> None:
    runs = client.get("/api/runs").json()["runs"]
    assert [(run["name"], run["state"], run["last_step"]) for run in runs] == [
        ("good", "finished", 49), ("broken", "finished", 49),
    ]  # fmt: skip
    run = client.get("/api/run?run=broken").json()
    assert run["tree"][0]["type"] == "Net"
    assert [child["name"] for child in run["tree"][0]["children"]] == ["conv1", "act", "fc"]
    assert "loss" in run["series"]
    assert "grad_norm" in run["metrics"]


def test_an_unknown_run_names_the_nearest(client: TestClient) -> None:
    response = client.get("/api/run?run=goood")
    assert (response.status_code, response.json()["nearest"]) == (404, ["good"])


def test_a_series_is_the_smallest_and_largest_of_every_stretch(client: TestClient) -> None:
    answer = client.get("/api/series?metric=loss&points=5").json()
    assert answer["steps"] == [0, 10, 20, 30, 40]
    assert answer["max"][0] == 2.3
    assert answer["min"][-1] == pytest.approx(2.3 * np.exp(-49 / 20))
    assert answer["nan_steps"] == []


def test_nan_is_kept_apart_from_the_numbers(client: TestClient) -> None:
    answer = client.get("/api/series?run=broken&metric=loss&points=5&from=20").json()
    assert (answer["max"][-1], answer["min"][-1], answer["nan_steps"]) == ("nan", "nan", [32, 38, 44])


def test_a_spike_survives_being_pooled(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        for step in range(1000):
            run.scalar("loss", step, 1e6 if step == 777 else 1.0)
        run.end(steps=1000)
    with asking(tmp_path / "run") as client:
        found = client.get("/api/series?metric=loss&points=100").json()
    assert max(found["max"]) == 1e6
    assert len(found["steps"]) == 100


def test_a_metric_of_a_layer(client: TestClient) -> None:
    found = client.get("/api/series?metric=execution_time&layer=fc&points=1").json()
    assert (found["min"], found["max"], found["rows"]) == ([pytest.approx(5e-4)], [pytest.approx(5e-4)], 50)
    assert client.get("/api/series?metric=gradient.std&layer=fc.weight").json()["rows"] == 50


def test_an_unknown_metric_or_series_names_the_nearest(client: TestClient) -> None:
    response = client.get("/api/series?metric=grad_nrom&layer=fc")
    assert (response.status_code, response.json()["nearest"][0]) == (404, "grad_norm")
    assert client.get("/api/series?metric=los").json()["nearest"] == ["loss"]


def test_the_heatmap_is_one_byte_a_cell_with_its_scale_in_headers(client: TestClient) -> None:
    response = client.get("/api/heatmap?run=broken&metric=mean_activation&width=10")
    assert response.headers["content-type"] == "application/octet-stream"
    rows, columns = int(response.headers["x-rows"]), int(response.headers["x-columns"])
    cells = np.frombuffer(response.content, np.uint8).reshape(rows, columns)
    assert (rows, columns) == (3, 10)
    assert cells[2].tolist() == [0] * 6 + [255] * 4  # steps 30 to 34 hold the first NaN
    assert cells[0].max() == 0
    assert (response.headers["x-first-step"], response.headers["x-last-step"]) == ("0", "49")
    named = client.get("/api/heatmap?run=broken&metric=mean_activation&width=10&format=json").json()
    assert named["layers"] == ["conv1", "act", "fc"]
    assert named["nan"][2] == [6, 7, 8, 9]


def test_a_heatmap_of_times_and_sizes_is_of_the_forward_pass(client: TestClient) -> None:
    times = client.get("/api/heatmap?metric=execution_time&width=5&format=json").json()
    assert times["layers"] == ["conv1", "act", "fc"]
    assert times["values"][2] == pytest.approx([5e-4] * 5)  # its backward takes 2 ms
    sizes = client.get("/api/heatmap?metric=memory&width=50&format=json").json()
    assert sizes["values"][0] == pytest.approx([0.004096] * 50)
    assert client.get("/api/heatmap?metric=memory&from=900").headers["x-rows"] == "0"


def test_a_heatmap_of_too_many_rows_has_columns_of_whole_windows(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "x-column-steps" not in client.get("/api/heatmap?metric=grad_norm&width=7").headers
    monkeypatch.setattr("neuraldbg.trace.pieces.MOST_ROWS", 10)
    with made_run(tmp_path / "run") as run:
        train(run, steps=200)
        run.end(steps=200)
    with asking(tmp_path / "run") as asked:
        said = asked.get("/api/heatmap?metric=grad_norm&from=10").headers
        edges = asked.get("/api/heatmap?metric=grad_norm&from=10&format=json").json()["edges"]
    assert edges == [10, 64, 128, 192, 200]
    assert [said[f"x-{name}"] for name in ("columns", "first-step", "second-step", "column-steps", "last-step")] == [
        "4", "10", "64", "64", "199",
    ]  # fmt: skip


def test_histograms_are_answered_without_their_empty_ends(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        site = run.module("fc", "Linear", run.model())
        run.stats(site, Kind.ACTIVATION, 0)
        for step in range(300):
            run.histogram(site, Kind.ACTIVATION, step, {-3: 5, -2: 0, -1: 20}, zeros=7)
        run.histogram(site, Kind.ACTIVATION, 300, {}, zeros=4)
        run.end(steps=301)
    with asking(tmp_path / "run") as client:
        answer = client.get("/api/histogram?layer=fc").json()
        none = client.get("/api/histogram?layer=fc&kind=gradient").json()
    assert (answer["tensor"], answer["recorded"], len(answer["histograms"])) == ("fc", 301, 101)
    first, last = answer["histograms"][0], answer["histograms"][-1]
    assert first == {
        "step": 0, "values": 32, "looked_at": 32, "zero": 7, "not_finite": 0, "from": -3, "counts": [5, 0, 20]
    }  # fmt: skip
    assert (last["step"], last["zero"], last["counts"]) == (300, 4, [])
    assert (none["tensor"], none["histograms"]) == (None, [])


def test_every_rank_has_its_last_step_loss_and_time(client: TestClient) -> None:
    told = client.get("/api/ranks").json()
    known = {"rank": 0, "folder": 0, "ended": True, "last_step": 49, "loss": pytest.approx(0.1985, abs=1e-3)}
    alone = dict.fromkeys(("host", "local_rank", "sync_s", "sync_share", "overlap_share", "standing"))
    assert told["ranks"] == [{**known, **alone, "step_time_s": pytest.approx(0.01)}]


@pytest.mark.parametrize("step", [0, 20, 49])
def test_what_is_summed_up_can_be_asked_for_as_it_was(client: TestClient, step: int) -> None:
    slowest = client.get(f"/api/summary?to={step}").json()
    assert {one["call_count"] for one in slowest["layers"]} == {step + 1}
    assert slowest["to"] == step
    (rank,) = client.get(f"/api/ranks?to={step}").json()["ranks"]
    assert rank["last_step"] == step
    profile = client.get(f"/api/profile?to={step}").json()
    timed = step + 1 if step < 8 else step - 1  # the first two are warming up, where there are others
    assert (profile["steps"], {one["calls"] for one in profile["layers"]}) == (timed, {timed})
    views = client.get(f"/api/profile?to={step}&format=views").json()
    assert views["to"] == step
    assert client.get("/api/summary?from=9&to=3").status_code == 422


def test_the_whole_run_is_what_nobody_limits(client: TestClient) -> None:
    assert client.get("/api/summary").json() == {**client.get("/api/summary?to=49").json(), "to": None}
    assert client.get("/api/profile").json() == client.get("/api/profile?to=49").json()


def test_losses_over_time_and_epochs(client: TestClient) -> None:
    by_time = client.get("/api/compare/losses?a=good&b=broken&align=time").json()
    assert by_time["unknown"] is None
    assert len(by_time["loss"]) == len(by_time["steps"]) == 400
    by_epoch = client.get("/api/compare/losses?a=good&b=broken&align=epoch").json()
    assert (by_epoch["loss"], by_epoch["unknown"]) == ([], "run A used no DataLoader whose length is known")
    assert client.get("/api/compare/losses?a=good&b=broken&align=mood").status_code == 422


def test_checkpoints_are_told_with_the_run(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=5)
        for step in (2, 2, 4):
            run.writer.fact("checkpoint_saved", step=step, file="last.pt", line="train.py:9")
        run.writer.fact("state_loaded", step=0, owner="module", line="train.py:3")
        run.end(steps=5)
    with asking(tmp_path / "run") as client:
        found = client.get("/api/run").json()["checkpoints"]
    assert [(one["step"], one["what"], one["file"]) for one in found] == [
        (0, "loaded", None), (2, "saved", "last.pt"), (4, "saved", "last.pt")
    ]  # fmt: skip


def test_no_histogram_is_made_up(client: TestClient) -> None:
    answer = client.get("/api/histogram?layer=fc&kind=activation").json()
    assert answer["histograms"] == []
    assert answer["ranges"]["max"]["max"][0] == 3.0
    assert client.get("/api/histogram?layer=fc&kind=actvation").json()["nearest"] == ["activation"]


def test_findings_and_one_of_them(client: TestClient) -> None:
    found = client.get("/api/findings?run=broken").json()["findings"]
    assert found[0]["severity"] == "critical"
    one = client.get(f"/api/findings/{found[0]['id']}?run=broken").json()
    assert one == found[0]
    missing = client.get("/api/findings/nan_activaton:fc:0?run=broken")
    assert (missing.status_code, missing.json()["nearest"][0]) == (404, "nan_activation:fc:0")
    assert client.get("/api/findings?run=good").json() == {"findings": []}


def test_times_of_layers(client: TestClient) -> None:
    flame = client.get("/api/flame?step=3").json()
    assert {span["name"] for span in flame["spans"]} == {"conv1", "act", "fc"}
    assert all(span["end"] - span["start"] == pytest.approx(span["duration"]) for span in flame["spans"])
    chrome = client.get("/api/flame?step=3&format=chrome").json()
    assert {event["name"] for event in chrome["traceEvents"] if event["ph"] == "X"} == {"conv1", "act", "fc"}
    assert {event["args"]["step"] for event in chrome["traceEvents"] if event["ph"] == "X"} == {3}
    assert client.get("/api/trace.json").json()["traceEvents"]
    slowest = client.get("/api/summary").json()["layers"]
    assert [each["layer"] for each in slowest][-1] == "fc"
    assert slowest[0]["call_count"] == 50
    assert client.get("/api/flame?step=4000").status_code == 404


def test_resources_are_what_was_recorded(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        for step in range(10):
            run.scalar("rss_bytes", step, 5e8 + step)
            run.scalar("resource.gpu0.utilization", step, float(step))
        run.scalar("loss", 0, 1.0)
        run.end(steps=10)
    with asking(tmp_path / "run") as client:
        found = client.get("/api/resources?points=5").json()
    assert (found["cpu"], list(found["memory"]), list(found["gpu"])) == ({}, ["rss_bytes"], ["gpu0"])
    assert found["memory"]["rss_bytes"]["steps"] == [0, 2, 4, 6, 8]
    assert found["memory"]["rss_bytes"]["max"][-1] == 5e8 + 9
    assert found["gpu"]["gpu0"]["utilization"]["min"] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_two_runs_are_compared_and_part_where_one_broke(client: TestClient) -> None:
    answer = client.get("/api/compare?a=good&b=broken").json()
    assert answer["loss_differs_from"] == 33
    assert (answer["divergence"]["layer"], answer["divergence"]["step"]) == ("fc", 33)
    assert client.get("/api/compare?a=good&b=good").json()["divergence"] is None


def test_a_finding_and_a_job_that_are_not_there_are_refused(client: TestClient) -> None:
    response = client.post("/api/replay", json={"finding": "x"})
    assert response.status_code == 404
    assert "no finding 'x'" in response.json()["error"]
    assert client.get("/api/jobs/1").status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/breakpoint"), ("POST", "/api/continue"), ("POST", "/api/pause"), ("POST", "/api/step"),
        ("GET", "/api/tensor?layer=fc"), ("DELETE", "/api/breakpoint/1"),
    ],
)  # fmt: skip
def test_without_a_trainer_control_is_503_and_says_why(client: TestClient, method: str, path: str) -> None:
    response = client.request(method, path)
    assert response.status_code == 503
    assert response.json() == {
        "error": "no training process is attached to good (it has ended, or was started with --headless)"
    }


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("{", 400, "this is not JSON"),
        ("", 422, "Field required"),
        ("[]", 422, ""),
        ('{"layer": "x"}', 422, "layer_name: Field required"),
        ('{"layer_name": 3}', 422, "layer_name: "),
        ('{"layer_name": "fc", "colour": 1}', 422, "colour"),
        ("nan", 400, "this is not JSON"),
    ],
)
def test_bad_bodies_are_refused_with_a_reason(client: TestClient, text: str, status: int, said: str) -> None:
    response = client.post("/api/breakpoint", content=text, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert said in response.json()["error"]


def test_an_unknown_path_and_method_are_json_too(client: TestClient) -> None:
    missing = client.get("/api/breakpoints")
    assert (missing.status_code, missing.json()["nearest"][0]) == (404, "/api/breakpoint")
    assert client.put("/api/breakpoint", json={}).json()["error"] == "Method Not Allowed"


def test_a_stretch_that_ends_before_it_begins(client: TestClient) -> None:
    response = client.get("/api/series?metric=loss&from=9&to=3")
    assert (response.status_code, response.json()["error"]) == (422, "from 9 is after to 3")


def test_the_names_of_the_original_server(client: TestClient) -> None:
    assert client.get("/health").json().keys() == {"status", "service", "version"}
    assert client.get("/health/live").json() == {"status": "alive"}
    assert client.get("/health/ready").json() == {"status": "ready"}
    status = client.get("/api/debugger/status").json()
    assert (status["isRunning"], status["isPaused"], status["currentStep"]) == (False, False, 49)
    assert client.get("/api/debugger/trace").json()["trace"][0]["mean_activation"] == 0.25
    assert client.get("/api/debugger/variables").json() == {"variables": {}}
    assert "progress" in client.get("/api/debugger/progress").json()


def test_a_run_that_was_killed_one_that_crashed_and_one_that_was_left(tmp_path: Path) -> None:
    with made_run(tmp_path / "killed") as run:
        train(run, steps=5)
    with made_run(tmp_path / "crashed") as run:
        train(run, steps=5)
        run.end(exit_code=1, error="ValueError: x", steps=5)
    with made_run(tmp_path / "left") as run:
        train(run, steps=5)
        run.end(exit_code=130, error="KeyboardInterrupt", steps=5)
    with asking(*(tmp_path / name for name in ("killed", "crashed", "left"))) as client:
        states = [run["state"] for run in client.get("/api/runs").json()["runs"]]
    assert states == ["killed", "crashed", "interrupted"]


def test_a_run_without_a_single_row_answers_everywhere(tmp_path: Path) -> None:
    with made_run(tmp_path / "empty") as run:
        run.end()
    with asking(tmp_path / "empty") as client:
        for path in ("run", "runs", "findings", "flame", "summary", "resources", "state", "heatmap", "debugger/trace"):
            assert client.get(f"/api/{path}").status_code == 200, path
        assert client.get("/api/heatmap").headers["x-rows"] == "0"


def test_a_growing_run_is_read_as_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraldbg.surfaces.web.runs.FRESH_S", 0.0)
    with made_run(tmp_path / "run") as run:
        run.scalar("loss", 0, 2.0)
        run.writer.flush()
        with asking(tmp_path / "run") as client:
            assert client.get("/api/series?metric=loss").json()["steps"] == [0]
            run.scalar("loss", 1, 1.0)
            run.writer.flush()
            assert client.get("/api/series?metric=loss").json()["steps"] == [0, 1]


def test_pages_load_nothing_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/docs", "/docs.js", "/favicon.svg", "/favicon.ico"):
        response = client.get(path)
        assert response.status_code == 200
        links = response.text.replace("http://www.w3.org/2000/svg", "").replace("http://127.0.0.1:8050", "")
        assert "http://" not in links
        assert "https://" not in links
        assert "//cdn" not in links


def test_the_docs_page_has_a_curl_line_for_every_route(client: TestClient) -> None:
    page = client.get("/docs").text
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"<h2>{method.upper()} {path}</h2>" in page
    assert page.count("<pre>curl") == page.count("Copy</button>")
