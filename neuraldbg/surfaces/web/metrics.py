"""`/metrics`: the health of the served runs in Prometheus' text format 0.0.4. What is not known has no line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import APIRouter, Response

from neuraldbg.records import SiteKind
from neuraldbg.store.counters import read_counters
from neuraldbg.surfaces.live_analysis import NOT_READABLE
from neuraldbg.surfaces.web.asking import Runs
from neuraldbg.surfaces.web.runs import ServedRun
from neuraldbg.trace import Trace

router = APIRouter(tags=["views"])
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LOOK_BACK: Final = 1_000  # steps; a series that is older says nothing about how the run goes
METRICS: Final = {  # name: type, meaning
    "neuraldbg_up": ("gauge", "1 where the trace of a served run can be read, else 0."),
    "neuraldbg_run_state": ("gauge", "1 for the state a run is in: running, paused, finished, crashed, killed, ..."),
    "neuraldbg_last_step": ("gauge", "Newest step that left a row, by rank."),
    "neuraldbg_last_step_timestamp_seconds": ("gauge", "When the newest step was recorded, in seconds since 1970."),
    "neuraldbg_step_time_seconds": ("gauge", "Duration of the newest timed step."),
    "neuraldbg_loss": ("gauge", "Newest recorded loss."),
    "neuraldbg_findings": ("gauge", "Findings that stand now, by kind and severity."),
    "neuraldbg_dropped_rows_total": ("counter", "Rows that the writer had no room for, by table."),
    "neuraldbg_evicted_rows_total": ("counter", "Rows deleted to stay under the disk limit, by table."),
    "neuraldbg_overhead_ratio": ("gauge", "Time the debugger took as a share of the run's, as it measured itself."),
    "neuraldbg_shipped_parts_total": ("counter", "Files of the trace put on the object store."),
    "neuraldbg_shipped_bytes_total": ("counter", "Bytes of the trace put on the object store."),
    "neuraldbg_ship_failures_total": ("counter", "Tries to reach the object store that failed and were made again."),
    "neuraldbg_ship_lost_rows_total": ("counter", "Rows deleted by the disk limit before they could be shipped."),
    "neuraldbg_ship_waiting_bytes": ("gauge", "Bytes that wait on this machine to be shipped."),
}
_SERIES: Final = {"loss": "neuraldbg_loss", "step_time_s": "neuraldbg_step_time_seconds"}


@dataclass(slots=True)
class Samples:
    """Lines by metric: the format wants those of one together."""

    lines: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, value: float, **labels: str) -> None:
        inside = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
        self.lines.setdefault(name, []).append(f"{name}{{{inside}}} {number(value)}")

    def text(self) -> str:
        return "".join(self._blocks())

    def _blocks(self) -> Iterator[str]:
        for name, (kind, meaning) in METRICS.items():
            if name in self.lines:
                yield f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"
                yield from (f"{line}\n" for line in self.lines[name])


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    if value != value:
        return "NaN"
    return {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value) or repr(value)


@router.get(
    "/metrics",
    summary="Health of every served run, for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
)
def metrics(runs: Runs) -> Response:
    samples = Samples()
    for run in runs:
        try:
            _sample(run, samples)
            samples.add("neuraldbg_up", 1, run=run.name)
        except NOT_READABLE:  # one that cannot be read now does not hide the others
            samples.add("neuraldbg_up", 0, run=run.name)
    return Response(samples.text(), media_type=CONTENT_TYPE)


def _sample(run: ServedRun, samples: Samples) -> None:
    state = run.state()["state"]
    with run.reading() as trace:
        found = Samples()
        found.add("neuraldbg_run_state", 1, run=run.name, state=state)
        _of_steps(trace, run.name, found)
        _of_counts(trace, run.name, found)
    for name, lines in found.lines.items():  # a run that fails half-way leaves no half of itself
        samples.lines.setdefault(name, []).extend(lines)


def _of_steps(trace: Trace, run: str, samples: Samples) -> None:
    last = trace.last_step
    if last is None:
        return
    names = {site.id: site.path for site in trace.sites if site.kind is SiteKind.SERIES}
    rows = trace.table("scalars", ("step", "site", "rank", "value", "wall_ns"), (max(0, last - LOOK_BACK), None))
    columns = (rows[name].tolist() for name in ("step", "site", "rank", "value", "wall_ns"))
    newest: dict[tuple[str, int], tuple[int, float, int]] = {}
    ends: dict[int, tuple[int, int]] = {}
    for step, site, rank, value, wall_ns in zip(*columns, strict=True):
        ends[rank] = max(ends.get(rank, (step, wall_ns)), (step, wall_ns))
        if names.get(site) in _SERIES:
            key = (names[site], rank)
            newest[key] = max(newest.get(key, (step, value, wall_ns)), (step, value, wall_ns), key=lambda one: one[0])
    for rank, (step, wall_ns) in sorted(ends.items()):
        samples.add("neuraldbg_last_step", step, run=run, rank=str(rank))
        if wall_ns > 0:
            samples.add("neuraldbg_last_step_timestamp_seconds", wall_ns / 1e9, run=run, rank=str(rank))
    for (name, rank), (_, value, _) in sorted(newest.items()):
        samples.add(_SERIES[name], value, run=run, rank=str(rank))


def _of_counts(trace: Trace, run: str, samples: Samples) -> None:
    found: dict[tuple[str, str], int] = {}
    for one in trace.findings():
        key = (str(one.get("kind")), str(one.get("severity")))
        found[key] = found.get(key, 0) + 1
    for (kind, severity), count in sorted(found.items()):
        samples.add("neuraldbg_findings", count, run=run, kind=kind, severity=severity)
    _tables(samples, "neuraldbg_dropped_rows_total", run, trace.dropped)
    _tables(samples, "neuraldbg_evicted_rows_total", run, trace.evicted)
    ratios = {fact["rank"]: fact["ratio"] for fact in trace.facts("overhead") if _is_number(fact.get("ratio"))}
    for rank, ratio in sorted(ratios.items()):
        samples.add("neuraldbg_overhead_ratio", ratio, run=run, rank=str(rank))
    for name, value in _shipping(read_counters(trace.path)):
        samples.add(name, value, run=run)


def _tables(samples: Samples, name: str, run: str, counts: Mapping[str, Any]) -> None:
    for table, count in sorted(counts.items()):
        if _is_number(count):
            samples.add(name, count, run=run, table=table)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shipping(told: Mapping[str, Any] | None) -> Iterable[tuple[str, float]]:
    """Of a run that is shipped while it goes on; nothing of another."""
    names = {
        "parts": "neuraldbg_shipped_parts_total",
        "bytes": "neuraldbg_shipped_bytes_total",
        "failures": "neuraldbg_ship_failures_total",
        "lost_rows": "neuraldbg_ship_lost_rows_total",
        "waiting_bytes": "neuraldbg_ship_waiting_bytes",
    }
    return [(name, told[key]) for key, name in names.items() if told is not None and _is_number(told.get(key))]
