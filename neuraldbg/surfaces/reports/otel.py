"""Scalars and findings of a run over OTLP/HTTP, to any OpenTelemetry collector: series as gauges, findings as logs."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from neuraldbg.config.installation import own_version
from neuraldbg.errors import StoreError, UsageError
from neuraldbg.records import SiteKind
from neuraldbg.store.extras import needed
from neuraldbg.trace import Trace

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
DEFAULT: Final = "http://localhost:4318"
POINTS_AT_ONCE: Final = 5_000
PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
TRY_AGAIN: Final = (429, 502, 503, 504)
SEVERITY: Final = {"info": 9, "warning": 13, "critical": 17}  # INFO, WARN, ERROR
WHAT: Final = "--format otel"
_PROTO: Final = "opentelemetry.proto"
_OF_FINDING: Final = (
    "kind",
    "severity",
    "step",
    "last_step",
    "layer",
    "op",
    "source",
    "confidence",
    "inference",
    "rank",
)


@dataclass(slots=True)
class Sent:
    points: int = 0
    findings: int = 0
    requests: int = 0


def endpoint_of(given: str | None) -> str:
    """Where to: as given, as the environment says, or the collector of this machine."""
    url = (given or os.environ.get(ENDPOINT) or DEFAULT).rstrip("/")
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url!r} is no collector: OTLP over HTTP goes to an address such as {DEFAULT}")
    return url


class Collector:
    """The other end: takes protobuf messages, tries again when it is told to come back."""

    def __init__(self, url: str, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._url, self._pause = url, pause
        pairs = (pair.partition("=") for pair in os.environ.get(HEADERS, "").split(",") if "=" in pair)
        self._headers = {name.strip(): unquote(value.strip()) for name, _, value in pairs}

    def post(self, signal: str, message: Any) -> None:
        headers = {"Content-Type": "application/x-protobuf", **self._headers}
        request = urllib.request.Request(f"{self._url}/v1/{signal}", message.SerializeToString(), headers)
        for pause_s in (*PAUSES_S, None):
            try:
                with urllib.request.urlopen(request, timeout=10):
                    return
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in TRY_AGAIN or pause_s is None:
                    raise StoreError(f"{self._url} refuses {signal}: {error.code} {error.reason}") from error
            except OSError as error:
                if pause_s is None:
                    why = getattr(error, "reason", error)
                    raise StoreError(f"no collector answers at {self._url} ({why}); is it running?") from error
            self._pause(pause_s)


def send(trace: Trace, url: str, *, until: Callable[[], bool] = lambda: True) -> Sent:
    """Sends everything recorded until now, and, until `until` says so or the run ends, what comes after it."""
    needed(f"{_PROTO}.collector.logs.v1.logs_service_pb2", WHAT)
    collector, sent, told = Collector(url), Sent(), set[str]()
    for news in trace.follow(from_start=True, interval_s=1.0, until=until):
        rows = news.tables.get("scalars")
        for message, points in () if rows is None else _metrics(trace, rows):
            collector.post("metrics", message)
            sent.points, sent.requests = sent.points + points, sent.requests + 1
        _send_findings(trace, collector, sent, told)
    _send_findings(trace, collector, sent, told)
    return sent


def _send_findings(trace: Trace, collector: Collector, sent: Sent, told: set[str]) -> None:
    fresh = [one for one in trace.findings() if str(one.get("id")) not in told]
    if fresh:
        collector.post("logs", _logs(trace, fresh))
        told |= {str(one.get("id")) for one in fresh}
        sent.findings, sent.requests = sent.findings + len(fresh), sent.requests + 1


def _metrics(trace: Trace, rows: Any) -> Iterator[tuple[Any, int]]:
    """Messages of at most so many points; a row without a time has none."""
    service = needed(f"{_PROTO}.collector.metrics.v1.metrics_service_pb2", WHAT)
    names = {site.id: site.path for site in trace.sites if site.kind is SiteKind.SERIES}
    columns = [rows[name].tolist() for name in ("site", "rank", "value", "wall_ns")]
    known = [row for row in zip(*columns, strict=True) if row[0] in names and row[3] > 0]
    for start in range(0, len(known), POINTS_AT_ONCE):
        message = service.ExportMetricsServiceRequest()
        scope = _scope(message.resource_metrics.add(), trace, "scope_metrics")
        gauges: dict[str, Any] = {}
        for site, rank, value, wall_ns in known[start : start + POINTS_AT_ONCE]:
            if names[site] not in gauges:
                gauges[names[site]] = scope.metrics.add(name=f"neuraldbg.{names[site]}")
            point = gauges[names[site]].gauge.data_points.add(time_unix_nano=wall_ns, as_double=value)
            point.attributes.add(key="rank").value.int_value = rank
        yield message, len(known[start : start + POINTS_AT_ONCE])


def _logs(trace: Trace, findings: Sequence[Mapping[str, Any]]) -> Any:
    message = needed(f"{_PROTO}.collector.logs.v1.logs_service_pb2", WHAT).ExportLogsServiceRequest()
    scope = _scope(message.resource_logs.add(), trace, "scope_logs")
    for one in findings:
        severity = str(one.get("severity"))
        record = scope.log_records.add(
            observed_time_unix_nano=time.time_ns(), severity_text=severity, severity_number=SEVERITY.get(severity, 0)
        )
        record.body.string_value = str(one.get("summary", ""))
        given = {name: one.get(name) for name in _OF_FINDING} | {"finding": one.get("id")}
        for name, value in given.items():
            if value is not None:
                _put(record.attributes.add(key=f"neuraldbg.{name}").value, value)
    return message


def _put(slot: Any, value: Any) -> None:
    if isinstance(value, int):
        slot.int_value = value
    elif isinstance(value, float):
        slot.double_value = value
    else:
        slot.string_value = str(value)


def _scope(resource: Any, trace: Trace, kind: str) -> Any:
    about = {"service.name": "neuraldbg", "neuraldbg.run": trace.run.id, "neuraldbg.script": trace.run.script}
    for key, value in about.items():
        if value:
            resource.resource.attributes.add(key=key).value.string_value = value
    scope = getattr(resource, kind).add()
    scope.scope.name, scope.scope.version = "neuraldbg", own_version()
    return scope
