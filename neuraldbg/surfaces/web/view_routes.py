"""Routes that read the trace: runs, layers, series, heatmaps, findings, times. They need no training process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response

from neuraldbg.analysis import profile
from neuraldbg.errors import NeuralDbgError, UnknownLayer, UnknownName, nearest
from neuraldbg.surfaces.live_analysis import NOT_READABLE
from neuraldbg.surfaces.web import data, inspector
from neuraldbg.surfaces.web.answers import StrictJSON, problem, problems
from neuraldbg.surfaces.web.asking import Configured, Layer, Rank, Run, Runs, Step, Stretch
from neuraldbg.surfaces.web.control_routes import by_layer
from neuraldbg.surfaces.web.runs import ServedRun
from neuraldbg.trace import Trace

router = APIRouter(tags=["views"], responses=problems(404, 422, 503), default_response_class=StrictJSON)
Name = Annotated[
    str, Query(max_length=200, description="grad_norm, mean_activation, ... (see /api/run), or kind.field")
]


@router.get("/api/layer_inspect/{layer:path}", summary="One layer: statistics, breakpoint, profile, last executions")
def layer_inspect(
    layer: Annotated[str, Path(max_length=300)], run: Run, settings: Configured, step: Step = None
) -> StrictJSON:
    try:
        with run.reading() as trace:
            found = inspector.inspect_layer(trace, layer, step=step, history=settings.history)
    except UnknownLayer as error:
        empty: dict[str, Any] = {"statistics": {}, "breakpoint": {}, "profile": {}}
        return problem(404, str(error), {**empty, "nearest": error.nearest})
    return StrictJSON({**found, "breakpoint": _breakpoint(run, found["layer"], found["aliases"])})


def _breakpoint(run: ServedRun, layer: str, aliases: list[str]) -> dict[str, Any]:
    try:
        standing = run.call("breakpoints")
    except NeuralDbgError:
        return {}
    meant = [one for one in standing if layer in one["layers"] or one["layer_name"] in (layer, *aliases)]
    return next(iter(by_layer([{**one, "layer_name": layer} for one in meant]).values()), {})


@router.get("/api/runs", summary="The runs that are served")
def runs(runs: Runs) -> StrictJSON:
    found = []
    for run in runs:
        try:
            with run.reading() as trace:
                entry = inspector.run_entry(trace, run.name)
            found.append({**entry, "state": run.state()["state"]})
        except NOT_READABLE as error:  # one that cannot be read now does not hide the others
            found.append({"name": run.name, "state": "unreadable", "error": f"{type(error).__name__}: {error}"})
    return StrictJSON({"runs": found})


@router.get("/api/run", summary="One run: its models and layers, its last step, its state")
def run_(run: Run) -> StrictJSON:
    state = run.state()
    with run.reading() as trace:
        entry = {**inspector.run_entry(trace, run.name), **inspector.run_details(trace)}
    return StrictJSON({**entry, "state": state["state"], "where": state, "again": run.command("view")})


@router.get("/api/series", summary="A metric of a layer, or a named series, over the steps")
def series(
    run: Run,
    settings: Configured,
    between: Stretch,
    metric: Name,
    layer: Layer | None = None,
    points: Annotated[int | None, Query(ge=1, le=20_000, description="stretches of steps at most")] = None,
) -> StrictJSON:
    with run.reading() as trace:
        return StrictJSON(data.series(trace, metric, layer, between, points or settings.points))


@router.get(
    "/api/heatmap",
    summary="A metric of every layer over the steps, one byte a cell",
    response_class=Response,
    responses={
        200: {
            "description": "rows x columns of uint8: 0 to 250 from X-Min to X-Max, 252 -Inf, 253 +Inf or an infinity "
            "in the tensor, 254 not measured, 255 NaN. X-Held: yes where a value stands for steps after it, too. "
            "Column c holds the steps from first + c * n // columns on, n = last - first + 1; where there is an "
            "X-Column-Steps, column c > 0 those from X-Second-Step + (c - 1) * X-Column-Steps on. "
            "format=json: in numbers.",
            "content": {"application/octet-stream": {}, "application/json": {}},
        }
    },
)
def heatmap(
    run: Run,
    between: Stretch,
    metric: Name = "grad_norm",
    width: Annotated[int, Query(ge=1, le=4000, description="columns at most")] = 1000,
    form: Annotated[Literal["bytes", "json"], Query(alias="format")] = "bytes",
    rank: Rank = None,
) -> Response:
    with run.reading() as trace:
        found = data.heatmap(trace, metric, between, width, rank)
    if form == "json":
        values = [[None if v != v else v for v in row] for row in found.values.tolist()]
        nan = [row.nonzero()[0].tolist() for row in found.nan]
        edges = found.edges.tolist()
        return StrictJSON({"metric": metric, "layers": found.layers, "edges": edges, "values": values, "nan": nan})
    return _bytes(data.picture(found), metric)


def _bytes(shown: data.Picture, metric: str) -> Response:
    rows, columns = shown.cells.shape
    headers = {
        "X-Metric": metric.encode("ascii", "replace").decode(),
        "X-Rows": str(rows),
        "X-Columns": str(columns),
        "X-Min": "" if shown.low is None else repr(shown.low),
        "X-Max": "" if shown.high is None else repr(shown.high),
        "X-Scale": "log" if shown.log else "linear",
        "X-First-Step": str(shown.edges[0]) if shown.edges else "",
        "X-Last-Step": str(shown.edges[-1] - 1) if shown.edges else "",
        "X-Not-Measured": str(data.NOT_MEASURED),
        "X-NaN": str(data.NAN),
        "X-Infinities": f"{data.MINUS_INF} {data.PLUS_INF}",
        "X-Held": "yes" if shown.held else "no",
        **_windows(shown.edges),
    }
    return Response(shown.cells.tobytes(), media_type="application/octet-stream", headers=headers)


def _windows(edges: list[int]) -> dict[str, str]:
    """Of columns that hold whole windows of roll-ups: where the second begins, and how many steps one has."""
    columns = len(edges) - 1
    if columns < 2 or edges == [edges[0] + c * (edges[-1] - edges[0]) // columns for c in range(columns + 1)]:
        return {}
    return {"X-Second-Step": str(edges[1]), "X-Column-Steps": str(edges[2] - edges[1])}


@router.get("/api/histogram", summary="How the values of a layer's tensors lie, over the steps")
def histogram(
    run: Run,
    layer: Layer,
    between: Stretch,
    settings: Configured,
    kind: Annotated[str, Query(max_length=50, description=", ".join(data.KINDS))] = "activation",
) -> StrictJSON:
    """`histograms`: of steps that were measured in full, up to 120 rows, how many values have a magnitude of
    2^(from + i) to 2^(from + i + 1); zeros and what is not finite are counted apart. Empty for runs of older versions,
    for tensors on a device, and for kinds other than activation, gradient and parameter. `ranges`: smallest, largest,
    mean and deviation over all measured steps. Of a paused run /api/tensor has the values themselves."""
    if kind not in data.KINDS:
        raise UnknownName("kind", kind, data.KINDS, listed_by="/docs")
    with run.reading() as trace:
        site = trace.site(layer)
        ranges = {
            name: data.series(trace, f"{kind}.{name}", layer, between, settings.points)
            for name in ("min", "max", "mean", "std")
        }
        counted = data.histograms(trace, layer, kind, between)
        name = trace.canonical(site)
    return StrictJSON({"layer": name, "kind": kind, **counted, "ranges": ranges})


@router.get("/api/findings", summary="What is wrong, most likely cause first")
def findings(run: Run) -> StrictJSON:
    return StrictJSON({"findings": run.findings()})


@router.get("/api/findings/{id:path}", summary="One finding: evidence, causal chain, suggestions")
def finding(run: Run, number: Annotated[str, Path(alias="id", max_length=500)]) -> StrictJSON:
    found = {str(one.get("id")): one for one in run.findings()}
    if number not in found:
        return problem(404, f"no finding {number!r} in this run", {"nearest": nearest(number, found)})
    return StrictJSON(found[number])


@router.get("/api/flame", summary="When every layer of a step ran; format=chrome for Perfetto")
def flame(
    run: Run, step: Step = None, form: Annotated[Literal["json", "chrome"], Query(alias="format")] = "json"
) -> StrictJSON:
    with run.reading() as trace:
        shown = data.timed_step(trace, step)
        if form == "chrome":
            return StrictJSON(profile.chrome_trace(trace, shown))
        return StrictJSON({"step": shown, "spans": profile.flame(trace, shown)})


@router.get("/api/trace.json", summary="The newest step as a Chrome trace")
def chrome(run: Run, step: Step = None) -> StrictJSON:
    with run.reading() as trace:
        return StrictJSON(profile.chrome_trace(trace, data.timed_step(trace, step)))


@router.get("/api/summary", summary="The slowest layers: total, calls, average, shortest, longest")
def summary(run: Run, between: Stretch, limit: Annotated[int, Query(ge=1, le=10_000)] = 10) -> StrictJSON:
    with run.reading() as trace:
        layers = profile.slowest(trace.between(*between), k=None)
    return StrictJSON({"layers": layers[:limit], "timed_layers": len(layers), "to": between[1]})


@router.get(
    "/api/profile",
    summary="Where the time and memory went: phases, layers, bottlenecks, leaks; format=views or html",
    response_class=Response,
    responses={200: {"content": {"application/json": {}, "text/html": {}}}},
)
def profile_(
    run: Run,
    between: Stretch,
    form: Annotated[Literal["json", "views", "html"], Query(alias="format")] = "json",
) -> Response:
    from neuraldbg.analysis.findings import strict
    from neuraldbg.analysis.profile_report import profile_of
    from neuraldbg.analysis.profile_views import views_of
    from neuraldbg.surfaces.reports.profile_page import html_of

    with run.apart() as trace:
        shown = trace.between(*between)
        told, used = profile_of(shown), profile.resources(shown)
    if form == "html":
        return Response(html_of(told, used), media_type="text/html; charset=utf-8")
    return StrictJSON(strict({"views": views_of(told, used), "to": between[1]} if form == "views" else told))


@router.get("/api/resources", summary="Memory, processor and devices over the steps")
def resources(
    run: Run,
    between: Stretch,
    settings: Configured,
    points: Annotated[int | None, Query(ge=1, le=20_000)] = None,
) -> StrictJSON:
    with run.reading() as trace:
        return StrictJSON(data.resources(trace, between, points or settings.points))


@router.get("/api/compare", summary="Two served runs side by side, and where they part")
def compare(
    runs: Runs, a: Annotated[str, Query(max_length=300)], b: Annotated[str, Query(max_length=300)]
) -> StrictJSON:
    from neuraldbg.analysis.compare import compare_sessions
    from neuraldbg.surfaces.reports.session import session_object

    first, second = runs.get(a), runs.get(b)
    with first.reading() as trace_a:
        session_a = session_object(trace_a)
        if first is second:
            return StrictJSON(asdict(compare_sessions(session_a, session_a, traces=(trace_a, trace_a))))
    with second.reading() as trace_b:
        session_b = session_object(trace_b)
    with _both(first, second) as traces:
        return StrictJSON(asdict(compare_sessions(session_a, session_b, traces=traces)))


@router.get("/api/compare/losses", summary="The losses of two runs over the epochs of their data, or over the time")
def losses(
    runs: Runs,
    a: Annotated[str, Query(max_length=300)],
    b: Annotated[str, Query(max_length=300)],
    align: Annotated[Literal["epoch", "time"], Query(description="epochs begun, or seconds since the first loss")],
) -> StrictJSON:
    """`loss`: at each place the last value of both runs until there; `steps`: where the first run was by then."""
    from neuraldbg.analysis.alignment import aligned

    with _both(runs.get(a), runs.get(b)) as traces:
        return StrictJSON(asdict(aligned(*traces, align)))


@contextmanager
def _both(a: ServedRun, b: ServedRun) -> Iterator[tuple[Trace, Trace]]:
    """Both at once; two who compare them the other way round do not wait for each other."""
    if a is b:
        with a.reading() as trace:
            yield trace, trace
        return
    ordered = sorted((a, b), key=lambda run: run.name)
    with ordered[0].reading() as one, ordered[1].reading() as other:
        yield (one, other) if ordered[0] is a else (other, one)
