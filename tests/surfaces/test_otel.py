"""`neural export --format otel`: a collector on this machine gets the series and the findings."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, neural, refused
from made_runs import made_run, train
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from neuraldbg.errors import StoreError
from neuraldbg.surfaces.reports.otel import Collector, send
from neuraldbg.trace import open_trace


class Listening(ThreadingHTTPServer):
    """Takes what an OpenTelemetry collector takes; `refusals` are answered first."""

    def __init__(self) -> None:
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.logs: list[ExportLogsServiceRequest] = []
        self.headers: list[Any] = []
        self.refusals: list[int] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Listening

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.refusals.pop(0) if self.server.refusals else 200
        if status == 200:
            self.server.headers.append(self.headers)
            if self.path == "/v1/metrics":
                self.server.metrics.append(ExportMetricsServiceRequest.FromString(body))
            elif self.path == "/v1/logs":
                self.server.logs.append(ExportLogsServiceRequest.FromString(body))
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Listening]:
    with Listening() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    from neuraldbg.records import SiteKind

    with made_run(tmp_path / "run") as run:
        train(run, steps=3)
        site = run.site("loss", SiteKind.SERIES)
        for step in range(7_000):
            run._row("scalars", step, site, value=step / 2, wall_ns=10**18 + step)
        run.end(steps=3)
    told = {"id": "a", "kind": "nan_loss", "severity": "critical", "summary": "The loss is NaN.", "step": 33}
    (run.directory / "findings.jsonl").write_text(json.dumps({**told, "layer": None, "confidence": 0.9}) + "\n")
    return run.directory


def points(server: Listening) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for request in server.metrics:
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            rows = [(point.time_unix_nano, point.as_double) for point in metric.gauge.data_points]
            found.setdefault(metric.name, []).extend(rows)
    return found


def test_every_timed_scalar_and_every_finding_arrives_once(run_dir: Path, collector: Listening) -> None:
    result = neural("export", str(run_dir), collector.url, "--format", "otel", "--json", cwd=run_dir)
    told = json.loads(result.stdout)
    assert (told["points"], told["findings"]) == (7_000, 1)
    assert points(collector) == {"neuraldbg.loss": [(10**18 + step, step / 2) for step in range(7_000)]}
    assert len(collector.metrics) == 2  # a request is bounded
    (record,) = collector.logs[0].resource_logs[0].scope_logs[0].log_records
    assert (record.severity_text, record.severity_number) == ("critical", 17)
    assert record.body.string_value == "The loss is NaN."
    attributes = {one.key: one.value for one in record.attributes}
    assert attributes["neuraldbg.kind"].string_value == "nan_loss"
    assert attributes["neuraldbg.step"].int_value == 33
    assert "neuraldbg.layer" not in attributes


def test_a_collector_that_is_busy_is_asked_again(run_dir: Path, collector: Listening) -> None:
    collector.refusals = [503, 429]
    paused: list[float] = []
    with open_trace(run_dir) as trace:
        message = ExportMetricsServiceRequest()
        Collector(collector.url, pause=paused.append).post("metrics", message)
        assert send(trace, collector.url).points == 7_000
    assert paused == [0.5, 1.0]


def test_a_refusal_and_a_collector_that_is_not_there_are_told(run_dir: Path, collector: Listening) -> None:
    collector.refusals = [401]
    line = refused(neural("export", str(run_dir), collector.url, "--format", "otel", cwd=run_dir))
    assert "refuses metrics: 401" in line
    with pytest.raises(StoreError, match="no collector answers"):
        Collector("http://127.0.0.1:9", pause=lambda _: None).post("metrics", ExportMetricsServiceRequest())
    assert "is no collector" in refused(neural("export", str(run_dir), "s3://x", "--format", "otel", cwd=run_dir))


def test_headers_come_from_the_environment(
    run_dir: Path, collector: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20abc,x-team=vision")
    Collector(collector.url).post("logs", ExportLogsServiceRequest())
    assert collector.headers[0]["Authorization"] == "Bearer abc"
    assert collector.headers[0]["X-Team"] == "vision"


def test_a_missing_package_is_named_with_its_extra(run_dir: Path) -> None:
    hidden = run_dir.parent / "hidden" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('No module named opentelemetry')\n")
    path = f"{run_dir.parent / 'hidden'}:{ROOT}"
    result = neural("export", str(run_dir), "--format", "otel", cwd=run_dir, PYTHONPATH=path)
    assert "pip install 'neural-debugger[otel]'" in refused(result, 4)
