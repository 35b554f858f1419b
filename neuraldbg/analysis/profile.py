"""Where the time of a run went: the calls of a step as a tree, the times of every layer, what the machine was doing.

Pure functions over recorded spans. A span lasts as long as the call did, less the time the debugger itself took in it;
on a device it is the device's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.ranks import main_rank
from neuraldbg.records import Kind, Phase, Site, SiteKind
from neuraldbg.trace.rollup import per_site
from neuraldbg.trace.tables import PHASE_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

_COLUMNS: Final = ("step", "seq", "site", "phase", "start_ns", "duration_ns", "rank")
_PHASE: Final = {code: phase.value for phase, code in PHASE_CODE.items()}
_RESOURCE: Final = "resource."
_GPU: Final = "gpu"
_USED: Final = ("rss_bytes", "device_bytes", "device_allocated_bytes", "device_reserved_bytes")  # at updates
LAYER_TIMES = ("total_time", "call_count", "min_time", "max_time", "avg_time")
Columns = Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class _Call:
    """One span in its place among the others."""

    name: str
    phase: str | None
    start_ns: int
    duration_ns: int
    seq: int
    depth: int = 0
    inside: list[_Call] = field(default_factory=list)

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


def flame(trace: Trace, step: int | None = None) -> list[dict[str, Any]]:
    """The calls of one step (the last recorded one by default), each once, earliest first.

    `start` and `end` in seconds since the step's first call. A call inside another one is one deeper; where measuring
    made the outer one look longer than it was, the gaps between the inner ones are shortened, never the calls.
    """
    wanted = trace.last_step_in("spans") if step is None else step
    if wanted is None:
        return []
    spans: Columns = trace.table("spans", _COLUMNS, between=(wanted, wanted))
    spans = _only(spans, (spans["rank"] == _speaking(trace, spans)) & (spans["start_ns"] >= 0))
    if not len(spans["step"]):
        return []
    roots = _tree(_calls(trace, spans))
    begin = min(call.start_ns for call in roots)
    return [
        {
            "name": call.name,
            "start": (call.start_ns - begin) / 1e9,
            "end": (call.end_ns - begin) / 1e9,
            "duration": call.duration_ns / 1e9,
            "depth": call.depth,
            "phase": call.phase,
        }
        for call in _walk(roots)
    ]


def layer_times(trace: Trace, phase: str = "forward") -> dict[str, dict[str, Any]]:
    """Seconds of every layer in all its recorded calls: forward (also of evaluations) or backward.

    Models are not among them, containers are: their time includes that of the layers inside.
    """
    phases = (Phase.FORWARD, Phase.EVAL) if phase == "forward" else (Phase(phase),)
    sites = {site.id: site for site in trace.sites}
    found: dict[str, dict[str, Any]] = {}
    for number, told in per_site(trace, Kind.SPAN, "duration_ns", phases).items():
        if _is_layer(sites.get(number)) and told.count:
            seconds = (told.mean * told.count / 1e9, told.count, told.low / 1e9, told.high / 1e9, told.mean / 1e9)
            found[trace.canonical(number)] = dict(zip(LAYER_TIMES, seconds, strict=True))
    return found


def slowest(trace: Trace, k: int | None = 10) -> list[dict[str, Any]]:
    """The layers that took longest in all (None: every one), those that hold no other: `layer` and its times."""
    holders = {
        (site.model, parent) for site in trace.sites if site.kind is SiteKind.MODULE for parent in _parents(site.path)
    }
    inner = {trace.canonical(site) for site in trace.sites if (site.model, site.path) in holders}
    times = [{"layer": name, **each} for name, each in layer_times(trace).items() if name not in inner]
    return sorted(times, key=lambda each: -each["total_time"])[:k]


def chrome_trace(trace: Trace, step: int | None = None) -> dict[str, Any]:
    """The calls of one step, or of all, in the Trace Event Format of Chrome and Perfetto: a process per rank.

    Times in microseconds since the first call of that rank. Calls that overlap without one being inside the other, as
    on a device, stand in lines of their own.
    """
    spans: Columns = trace.table("spans", _COLUMNS, between=None if step is None else (step, step))
    spans = _only(spans, spans["start_ns"] >= 0)  # of a time that was only told nobody knows when it was
    events: list[dict[str, Any]] = []
    for rank in sorted(set(spans["rank"].tolist())):
        of_rank = _only(spans, spans["rank"] == rank)
        begin = int(of_rank["start_ns"].min())
        events.append({"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        for number, of_step in _by_step(of_rank):
            roots = _tree(_calls(trace, of_step))
            events += [_event(call, line, begin, number, rank) for call, line in _lines(_walk(roots))]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def nested_calls(trace: Trace, step: int | None = None, most: int | None = None) -> dict[int, list[dict[str, Any]]]:
    """By rank the calls of one step, or of all (the newest ones where there are more than `most`), in the order they
    began: name, phase, depth, and microseconds since the rank's first call."""
    spans: Columns = trace.table("spans", _COLUMNS, between=None if step is None else (step, step))
    spans = _only(spans, spans["start_ns"] >= 0)
    found = {}
    for rank in sorted(set(spans["rank"].tolist())):
        of_rank = _only(spans, spans["rank"] == rank)
        if most is not None and len(of_rank["step"]) > most:
            first = int(np.partition(of_rank["step"], -most)[-most]) + 1
            of_rank = _only(of_rank, of_rank["step"] >= first)
        begin = int(of_rank["start_ns"].min()) if len(of_rank["start_ns"]) else 0
        found[int(rank)] = [
            {
                "name": call.name,
                "phase": call.phase,
                "depth": call.depth,
                "start_us": (call.start_ns - begin) / 1e3,
                "duration_us": call.duration_ns / 1e3,
            }
            for _, of_step in _by_step(of_rank)
            for call in _walk(_tree(_calls(trace, of_step)))
        ]
    return found


def resources(trace: Trace, between: tuple[int | None, int | None] | None = None) -> dict[str, Any]:
    """What the process and its machine used, as recorded: `{"cpu": {name: curve}, "memory": {...}, "gpu": {"gpu0":
    {...}}}`; a curve has `steps`, `time_s` (since the first of them all) and `values`. What was not recorded is absent.
    """
    names = {site.id: site.path for site in trace.sites if site.kind is SiteKind.SERIES and _is_resource(site.path)}
    table: Columns = trace.table("scalars", ("step", "site", "value", "wall_ns", "rank"), between=between)
    table = _only(table, np.isin(table["site"], list(names)))
    table = _only(table, table["rank"] == _speaking(trace, table))
    found: dict[str, Any] = {"cpu": {}, "memory": {}, "gpu": {}}
    begin = int(table["wall_ns"].min()) if len(table["wall_ns"]) else 0
    for number in sorted(set(table["site"].tolist()), key=lambda each: (_is_sampled(names[each]), names[each])):
        rows = _only(table, table["site"] == number)
        rows = _only(rows, np.argsort(rows["wall_ns"], kind="stable"))
        curve = {
            "steps": rows["step"].tolist(),
            "time_s": ((rows["wall_ns"] - begin) / 1e9).tolist(),
            "values": rows["value"].tolist(),
        }
        name = names[number].removeprefix(_RESOURCE)
        group, _, rest = name.partition(".")
        if group.startswith(_GPU) and rest:
            found["gpu"].setdefault(group, {})[rest] = curve
        else:  # the sampled ones come last and replace those of single updates
            found["cpu" if "cpu" in name else "memory"][name] = curve
    return found


def _is_sampled(series: str) -> bool:
    return series.startswith(_RESOURCE)


def _is_resource(series: str) -> bool:
    return _is_sampled(series) or series in _USED


def _speaking(trace: Trace, table: Columns) -> int:
    """The rank whose times are shown: clocks of several are not comparable."""
    there = sorted(set(table["rank"].tolist()))
    main = main_rank(trace)
    return main if main is not None and main in there else int(there[0]) if there else -1


def _only(columns: Columns, rows: NDArray[Any]) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _by_step(columns: Columns) -> Iterator[tuple[int, Columns]]:
    order = np.argsort(columns["step"], kind="stable")
    ordered = _only(columns, order)
    steps, starts = np.unique(ordered["step"], return_index=True)
    for step, rows in zip(steps.tolist(), np.split(np.arange(len(order)), starts[1:]), strict=True):
        yield step, _only(ordered, rows)


def _is_layer(site: Site | None) -> bool:
    return site is not None and site.kind is SiteKind.MODULE and bool(site.path)


def _parents(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _calls(trace: Trace, spans: Columns) -> list[_Call]:
    names = {number: trace.canonical(number) for number in set(spans["site"].tolist())}
    rows = zip(*(spans[name].tolist() for name in ("site", "phase", "start_ns", "duration_ns", "seq")), strict=True)
    return [
        _Call(names[site], _PHASE.get(phase), start, max(duration, 0), seq)
        for site, phase, start, duration, seq in rows
    ]


def _tree(calls: Iterable[_Call]) -> list[_Call]:
    """A call is inside another one that began before it and was recorded, as calls are when they end, after it."""
    roots: list[_Call] = []
    open_calls: list[_Call] = []
    for call in sorted(calls, key=lambda each: (each.start_ns, each.seq)):
        while open_calls and not (open_calls[-1].start_ns < call.start_ns and open_calls[-1].seq > call.seq):
            open_calls.pop()
        call.depth = len(open_calls)
        (open_calls[-1].inside if open_calls else roots).append(call)
        open_calls.append(call)
    for root in roots:
        _fit(root)
    return roots


def _fit(call: _Call) -> None:
    """Our own time between the inner calls is not part of the outer one: it is taken out of the gaps."""
    inner = call.inside
    if inner and max(each.end_ns for each in inner) > call.end_ns:
        gaps, at = [], call.start_ns
        for each in inner:
            gaps.append(max(each.start_ns - at, 0))
            at = max(at, each.end_ns)
        room = max(call.duration_ns - sum(each.duration_ns for each in inner), 0)
        share = min(1.0, room / sum(gaps)) if sum(gaps) else 0.0
        at = call.start_ns
        for each, gap in zip(inner, gaps, strict=True):
            _move(each, at + int(gap * share) - each.start_ns)
            at = each.end_ns
    for each in inner:
        _fit(each)


def _move(call: _Call, by_ns: int) -> None:
    call.start_ns += by_ns
    for each in call.inside:
        _move(each, by_ns)


def _walk(calls: Iterable[_Call]) -> Iterator[_Call]:
    for call in calls:
        yield call
        yield from _walk(call.inside)


def _lines(calls: Iterable[_Call]) -> Iterator[tuple[_Call, int]]:
    """Each call with the first line in which it is inside, or after, whatever stands there."""
    ends: list[list[int]] = []  # of the calls that are open in a line
    for call in sorted(calls, key=lambda each: (each.start_ns, -each.duration_ns)):
        for open_ends in ends:
            while open_ends and open_ends[-1] <= call.start_ns:
                open_ends.pop()
        free = (line for line, open_ends in enumerate(ends) if not open_ends or open_ends[-1] >= call.end_ns)
        line = next(free, len(ends))
        if line == len(ends):
            ends.append([])
        ends[line].append(call.end_ns)
        yield call, line


def _event(call: _Call, line: int, begin: int, step: int, rank: int) -> dict[str, Any]:
    return {
        "name": call.name,
        "cat": call.phase or "",
        "ph": "X",
        "ts": (call.start_ns - begin) / 1e3,
        "dur": call.duration_ns / 1e3,
        "pid": rank,
        "tid": line + 1,
        "args": {"step": step},
    }
