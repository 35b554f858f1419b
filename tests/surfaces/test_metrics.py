"""`/metrics` as Prometheus reads it, and the dashboard that shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from made_runs import made_run, train
from prometheus_client.parser import text_string_to_metric_families
from servers import asking

from neuraldbg.surfaces.web.metrics import METRICS

Samples = dict[str, list[tuple[dict[str, str], float]]]


def scraped(*runs: Path) -> Samples:
    with asking(*runs) as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    with made_run(tmp_path / "broken") as run:
        train(run)
        run.writer.fact("dropped", rows={"stats": 7, "facts": 0}, error=None)
        run.end(steps=50)
    finding: dict[str, Any] = {"id": "a", "kind": "nan_loss", "severity": "critical", "layer": None, "summary": "x"}
    lines = [finding, {**finding, "id": "b"}, {**finding, "id": "c", "severity": "info", "kind": "note"}]
    lines.append({"id": "b", "withdrawn": True})
    (run.directory / "findings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run.directory


def test_a_run_tells_its_step_loss_time_findings_drops_and_overhead(broken: Path) -> None:
    found = scraped(broken)
    of_rank = {"run": "broken", "rank": "0"}
    assert found["neuraldbg_up"] == [({"run": "broken"}, 1.0)]
    assert found["neuraldbg_run_state"] == [({"run": "broken", "state": "finished"}, 1.0)]
    assert found["neuraldbg_last_step"] == [(of_rank, 49.0)]
    assert found["neuraldbg_step_time_seconds"] == [(of_rank, 0.01)]
    assert found["neuraldbg_loss"][0][1] == pytest.approx(2.3 * 2.718281828 ** (-49 / 20))
    assert found["neuraldbg_overhead_ratio"] == [(of_rank, 0.0093)]
    assert found["neuraldbg_findings"] == [
        ({"run": "broken", "kind": "nan_loss", "severity": "critical"}, 1.0),
        ({"run": "broken", "kind": "note", "severity": "info"}, 1.0),
    ]
    assert ({"run": "broken", "table": "stats"}, 7.0) in found["neuraldbg_dropped_rows_total"]


def test_what_is_not_known_has_no_line(tmp_path: Path) -> None:
    with made_run(tmp_path / "empty"):
        pass
    found = scraped(tmp_path / "empty")
    counted = {"neuraldbg_dropped_rows_total", "neuraldbg_evicted_rows_total"}
    assert set(found) - counted == {"neuraldbg_up", "neuraldbg_run_state"}
    assert {value for name in counted for _, value in found[name]} == {0.0}


def test_a_time_is_that_of_the_newest_row(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        site = run.site("loss", run_kind())
        for step in (3, 4):
            run._row("scalars", step, site, value=float(step), wall_ns=1_700_000_000_500_000_000 + step * 10**9)
    assert scraped(run.directory)["neuraldbg_last_step_timestamp_seconds"][0][1] == pytest.approx(1_700_000_004.5)


def run_kind() -> Any:
    from neuraldbg.records import SiteKind

    return SiteKind.SERIES


def test_odd_names_and_values_are_escaped_as_the_format_wants(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ name\nin two lines'
    with made_run(tmp_path / odd) as run:
        run.scalar("loss", 0, float("nan"))
        run.scalar("step_time_s", 0, float("inf"))
    found = scraped(run.directory)
    (labels, loss), (_, time) = found["neuraldbg_loss"][0], found["neuraldbg_step_time_seconds"][0]
    assert labels["run"] == odd
    assert loss != loss
    assert time == float("inf")


def test_every_run_and_rank_is_there_and_an_unreadable_one_hides_none(
    tmp_path: Path, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neuraldbg.trace import TraceWriter
    from neuraldbg.trace import format as ndt

    with made_run(tmp_path / "two") as run:
        train(run, steps=5)
        with TraceWriter(run.directory, rank=1, threaded=False) as second:
            train(type(run)(run.directory, second), steps=3)
    with monkeypatch.context() as later:
        later.setattr(ndt, "MAJOR", 2)
        with made_run(tmp_path / "newer") as newer:
            train(newer, steps=2)
    found = scraped(newer.directory, broken, run.directory)
    assert {labels["run"]: value for labels, value in found["neuraldbg_up"]} == {"newer": 0, "broken": 1, "two": 1}
    last = {(labels["run"], labels["rank"]): value for labels, value in found["neuraldbg_last_step"]}
    assert last == {("broken", "0"): 49, ("two", "0"): 4, ("two", "1"): 2}


def test_shipping_counters_come_from_the_run(tmp_path: Path, broken: Path) -> None:
    from neuraldbg.store.counters import Counters

    Counters("s3://b/r", parts=3, bytes=1000, failures=2, lost_rows=0, waiting_bytes=12).write(broken)
    found = scraped(broken)
    assert found["neuraldbg_shipped_parts_total"] == [({"run": "broken"}, 3.0)]
    assert found["neuraldbg_ship_failures_total"] == [({"run": "broken"}, 2.0)]
    assert found["neuraldbg_ship_waiting_bytes"] == [({"run": "broken"}, 12.0)]


def test_the_dashboard_asks_only_for_metrics_that_exist_and_for_all_of_them() -> None:
    board = json.loads((ROOT / "examples" / "grafana_dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [one["query"] for one in board["templating"]["list"]]
    asked = set(re.findall(r"neuraldbg_\w+", " ".join(queries)))
    assert asked <= set(METRICS)
    assert set(METRICS) - asked == {"neuraldbg_shipped_parts_total"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])
