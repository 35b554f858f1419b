"""A run as one HTML file: the page as it was built, with the answers it would ask a server for inside it.

What a page asks for has no end; what a file holds has. So numbers of every layer are there for some hundred steps, the
steps of findings among them, heatmaps hold the largest value of each stretch of steps, curves the smallest too, and
`thinned` says so.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis import profile
from neuraldbg.analysis.findings import strict
from neuraldbg.analysis.profile_report import profile_of
from neuraldbg.analysis.profile_views import views_of
from neuraldbg.analysis.rank_overview import overview
from neuraldbg.analysis.tried import read_tried
from neuraldbg.config.installation import own_version
from neuraldbg.config.schema import CHARTS
from neuraldbg.errors import UsageError
from neuraldbg.records import Kind, Phase, Site
from neuraldbg.surfaces.web import data, inspector
from neuraldbg.surfaces.web.pages import BUILT, ICON, why_not_built
from neuraldbg.surfaces.web.runs import ServedRun
from neuraldbg.trace import Trace, rollup
from neuraldbg.trace.rollup import METRICS
from neuraldbg.trace.tables import PHASE_CODE

LARGEST: Final = 9_000_000  # bytes of the data in the file; above it everything is thinned further
NUMBERS: Final = 2_000_000  # of layers, metrics and steps
CELLS: Final = 3_000_000  # of all heatmaps
IN_CURVES: Final = 1_000_000  # numbers of all curves of layers
HISTOGRAMS: Final = 60_000
SPANS: Final = 24_000
MOST_STEPS, MOST_FLAMES = 1000, 24
POINTS: Final = 1000  # of a curve
LOSSES: Final = 20_000  # of the loss: the header shows that of every step
MOST_TIMED: Final = 2_000  # layers in the table of times
LARGE: Final = 3.4e38  # rounded up it would be infinite
DIGITS: Final = 13  # bits of a number that are kept: four digits
HEATMAPS: Final = (
    "grad_norm", "mean_activation", "std_activation", "max_activation", "dead_ratio", "nan_count", "execution_time",
    "memory", "weight_norm", "update_norm",
)  # fmt: skip
CURVES: Final = HEATMAPS[:-2]  # of parameters none are drawn
IS_NAN: Final = 0x7FE00000  # a NaN that was measured; any other says that nothing was
OF_LAYERS: Final = tuple(name for name in METRICS if METRICS[name].kind.value in ("activation", "gradient", "span"))
KINDS: Final = ("activation", "gradient", "parameter")
RANGES: Final = {"activation": "{}_activation", "gradient": "grad_{}"}  # the metrics that tell them
UNFINISHED: Final = "unfinished"
POLICY: Final = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Room:
    """How much of a run there is room for."""

    share: float = 1.0

    def each(self, whole: int, taken: int, least: int, most: int) -> int:
        """How many of something that takes so much each."""
        return max(least, min(most, int(whole * self.share) // max(1, taken)))


def html_parts(path: Path) -> Iterator[bytes]:
    """The file, piece by piece; UsageError where the page was never built."""
    before, after = _page()
    run = ServedRun(path)
    try:
        name, packed = run.name, b""
        for share in (1.0, 0.5, 0.25, 0.1):
            packed = base64.b64encode(_packed(answers(run, Room(share))))
            if len(packed) <= LARGEST:
                break
    finally:
        run.close()
    yield before.replace("<title>NeuralDbg</title>", f"<title>{_plain(name)} · NeuralDbg report</title>").encode()
    yield b'<script type="application/gzip" id="report">' + packed + b"</script>"
    yield after.encode()


def _plain(text: str) -> str:
    return escape("".join(letter for letter in text if letter.isprintable()))


def _packed(held: dict[str, Any]) -> bytes:
    text = json.dumps(strict(held), allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode(), 7, mtime=0)


# -- the page ----------------------------------------------------------------------------------------------------------


def _page() -> tuple[str, str]:
    """The built page with its script and its style inside, cut where the data goes."""
    try:
        page = (BUILT / "index.html").read_text(encoding="utf-8")
    except OSError:
        raise UsageError(
            f"a report in HTML needs the page, which was not built: {why_not_built()}; in a clone, "
            "`cd web && npm install && npm run build` builds it; --format text and json need none"
        ) from None
    icon = f"data:image/svg+xml,{quote(ICON)}"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}" />'
    page = page.replace('href="/favicon.svg"', f'href="{icon}"').replace("<head>", f"<head>\n    {policy}", 1)
    page = re.sub(r"<noscript>.*?</noscript>", "<noscript>This report needs JavaScript.</noscript>", page, flags=re.S)
    page = re.sub(r'<link rel="stylesheet"[^>]*href="/([^"]+)"[^>]*>', lambda found: _style(found[1]), page)
    script = re.search(r'<script type="module"[^>]*src="/([^"]+)"[^>]*></script>', page)
    if script is None:
        raise UsageError(f"the page in {BUILT} has no script; build it again: cd web && npm run build")
    page = page.replace(script[0], "", 1)
    before, end, rest = page.partition("</body>")
    return before, _script(script[1]) + end + rest


def _style(name: str) -> str:
    return f"<style>{(BUILT / name).read_text(encoding='utf-8')}</style>"


def _script(name: str) -> str:
    """Inside a page a script ends at the first `</script`, and `<!--` hides what follows: neither may stand in it."""
    code = (BUILT / name).read_text(encoding="utf-8")
    code = re.sub(r"</(?=script)", r"<\\/", code, flags=re.I).replace("<!--", r"<\!--")
    return f'<script type="module">{code}</script>\n'


# -- the answers -------------------------------------------------------------------------------------------------------


def answers(run: ServedRun, room: Room) -> dict[str, Any]:
    """Everything the page may ask for, as it asks for it."""
    verdict, findings, anomalies, state = run.verdict(), run.findings(), run.anomalies(), run.state()
    with run.reading() as trace:
        entry = inspector.run_entry(trace, run.name)
        where = {**state, "attached": False, "state": state["state"] if trace.ended else _then(state["state"])}
        details = {**entry, **inspector.run_details(trace), "state": where["state"], "where": where}
        going_on = None if where["state"] != UNFINISHED else trace.last_step
        noted = {int(one["step"]) for one in findings if one.get("step") is not None}
        measured = np.unique(trace.table("stats", ["step"])["step"])
        frames, layers = _frames(trace, measured, noted, room)
        heats = {name: heat for name in HEATMAPS if (heat := _heat(trace, name, room))["layers"]}
        curves = {name: _curves(trace, name, room) for name in CURVES if name in heats}
        flames, timed = _flames(trace, noted, room)
        plain = {
            "/api/settings": _settings((len(measured), len(frames)), heats, (timed, len(flames)), going_on),
            "/api/runs": {"runs": [{**entry, "state": where["state"]}]},
            "/api/run": {**details, "metrics": list(heats)},
            "/api/verdict": verdict,
            "/api/findings": {"findings": findings},
            "/api/anomalies": anomalies,
            "/api/ranks": overview(trace),
            "/api/whatif": {"tried": read_tried(trace.path)},
            "/api/summary": _slowest(trace),
            "/api/resources": data.resources(trace, (None, None), POINTS // 2),
            "/api/profile": strict({"views": views_of(profile_of(trace), profile.resources(trace))}),
            **{f"/api/series?metric={name}": _series(trace, name) for name in data.series_names(trace)},
        }
        histograms = _histograms(trace, layers, frames, room)
        flops = [site.flops for site in data.frame_layers(trace)]
    return {
        "answers": plain, "layers": layers, "flops": flops, "frames": frames, "heats": heats, "flames": flames,
        "histograms": histograms, "curves": curves,
    }  # fmt: skip


def _then(state: str) -> str:
    """Of a run that goes on: a file does not, and must not look as if."""
    return UNFINISHED if state in ("running", "paused", "unresponsive") else state


def _settings(
    steps: tuple[int, int], heats: dict[str, Any], flames: tuple[int, int], going_on: int | None
) -> dict[str, Any]:
    """`steps` and `flames`: how many there were, and how many are here; `going_on`: the last step of a run that is not
    over."""
    said = []
    if steps[1] < steps[0]:
        said.append(f"{steps[1]:,} of {steps[0]:,} measured steps, those of findings among them")
    widest = max((_widest(heat["edges"]) for heat in heats.values()), default=1)
    if widest > 1:
        said.append(f"heatmaps with the largest, curves with the smallest and largest value of up to {widest:,} steps")
    if flames[1] < flames[0]:
        said.append(f"flame graphs of {flames[1]:,} of {flames[0]:,} timed steps")
    told = [] if going_on is None else [f"The training was at step {going_on:,} and not over when this was written."]
    if said:
        told.append(f"This file holds {'; '.join(said)}.")
    elif told:
        told.append("Every step measured until then is in this file.")
    return {
        "theme": "auto",
        "refresh_s": 1,
        "max_history": POINTS,
        "history": 100,
        "charts": list(CHARTS),
        "version": own_version(),
        "report": {
            "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "thinned": " ".join(told) or None,
        },
    }


def _widest(edges: Sequence[int]) -> int:
    return max((after - before for before, after in pairwise(edges)), default=1)


def _slowest(trace: Trace) -> dict[str, Any]:
    layers = profile.slowest(trace, k=None)
    return {"layers": layers[:MOST_TIMED], "timed_layers": min(len(layers), MOST_TIMED)}


def _series(trace: Trace, name: str) -> dict[str, Any]:
    return data.series(trace, name, None, (None, None), LOSSES if name == "loss" else POINTS)


def chosen(steps: NDArray[np.int64], wanted: set[int], most: int) -> list[int]:
    """At most so many, from the first to the last; those wanted, or the nearest before them, first of all."""
    if len(steps) <= most:
        return [int(step) for step in steps]
    at = np.searchsorted(steps, sorted(wanted), side="right") - 1
    kept = {int(steps[place]) for place in at[at >= 0][: most // 2]}
    even = np.linspace(0, len(steps) - 1, most - len(kept)).round().astype(int)
    return sorted(kept | {int(step) for step in steps[even]})


def _frames(
    trace: Trace, measured: NDArray[np.int64], noted: set[int], room: Room
) -> tuple[list[dict[str, Any]], list[str]]:
    sites = data.frame_layers(trace)
    most = room.each(NUMBERS, len(sites) * len(OF_LAYERS), 20, MOST_STEPS)
    found = []
    for step in chosen(measured, noted, most):
        with np.errstate(over="ignore"):
            columns = {**data.frame(trace, sites, step, OF_LAYERS), "backward_time": _backward(trace, sites, step)}
        found.append({"step": step, "metrics": {name: _base64(rounded(column)) for name, column in columns.items()}})
    return found, [trace.canonical(site) for site in sites]


def _backward(trace: Trace, sites: Sequence[Site], step: int) -> NDArray[np.float32]:
    """Seconds that every layer took in the backward pass."""
    rows = trace.at(step, Kind.SPAN)
    mine = rows.phase == PHASE_CODE[Phase.BACKWARD]
    took = dict(zip(rows.site[mine].tolist(), (rows.duration_ns[mine] * 1e-9).tolist(), strict=True))
    return np.array([took.get(site.id, np.nan) for site in sites], np.float32)


def rounded(column: NDArray[np.float32]) -> NDArray[np.float32]:
    """With as many digits as the page shows: the rest does not compress."""
    bits = column.astype("<f4").view(np.uint32)
    drop = np.uint32(23 - DIGITS)
    half = np.where(np.abs(column) < LARGE, np.uint32(1) << (drop - np.uint32(1)), np.uint32(0)).astype(np.uint32)
    return ((bits + half) >> drop << drop).view("<f4")


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _heat(trace: Trace, metric: str, room: Room) -> dict[str, Any]:
    sites = len(data.frame_layers(trace)) * (2 if metric in ("weight_norm", "update_norm") else 1)
    return data.drawn(trace, metric, (None, None), room.each(CELLS // len(HEATMAPS), sites, 40, POINTS))


def _curves(trace: Trace, metric: str, room: Room) -> dict[str, Any]:
    """Smallest and largest value of every layer over the steps; the smallest are left out where both are the same."""
    modules = {trace.canonical(site) for site in data.frame_layers(trace)}
    width = room.each(IN_CURVES // (2 * len(CURVES)), len(modules), 40, POINTS)
    found = rollup.curves(trace, data.metric_of(metric), width)
    assert found.low is not None
    rows = [at for at, layer in enumerate(found.layers) if layer in modules]
    high, low = (_as_floats(each[rows], found.nan[rows]) for each in (found.values, found.low))
    same = bool(np.array_equal(high.view(np.uint32), low.view(np.uint32)))
    steps = (trace.last_step or 0) + 1
    return {
        "layers": [found.layers[at] for at in rows],
        "edges": found.edges.tolist(),
        "max": _base64(high),
        "min": None if same else _base64(low),
        "single": data.measured_steps(trace, metric, (0, steps)) == len(found.edges) - 1,  # a point for every step
        "of": steps,
    }


def _as_floats(values: Any, nan: NDArray[np.bool_]) -> NDArray[np.float32]:
    floats = rounded(data.single(values))
    floats.view(np.uint32)[nan] = IS_NAN
    return floats


def _flames(trace: Trace, noted: set[int], room: Room) -> tuple[list[dict[str, Any]], int]:
    """Of some steps, and how many steps were timed."""
    timed = np.unique(trace.table("spans", ["step"])["step"])
    if not len(timed):
        return [], 0
    most = room.each(SPANS, len(profile.flame(trace, int(timed[-1]))), 2, MOST_FLAMES)
    kept = [{"step": step, "spans": _spans(profile.flame(trace, step))} for step in chosen(timed, noted, most)]
    return kept, len(timed)


def _spans(spans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: round(value, 7) if isinstance(value, float) else value for key, value in one.items()} for one in spans
    ]


def _histograms(
    trace: Trace, layers: Sequence[str], frames: Sequence[dict[str, Any]], room: Room
) -> dict[str, dict[str, Any]]:
    """Of every layer; where it has none, as on a device, the range of its values over the steps that are here."""
    most = room.each(HISTOGRAMS, len(layers) * len(KINDS), 4, data.HISTOGRAMS)
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        of_kind = found[kind] = {}
        for at, layer in enumerate(layers):
            counted = data.histograms(trace, layer, kind, (None, None), most)
            if counted["histograms"]:
                of_kind[layer] = counted
            elif kind in RANGES:
                of_kind[layer] = {"histograms": [], "ranges": _ranges(frames, at, RANGES[kind])}
    return found


def _ranges(frames: Sequence[dict[str, Any]], at: int, form: str) -> dict[str, Any]:
    found = {}
    for name in ("min", "max", "mean", "std"):
        values = [_number(frame["metrics"][form.format(name)], at) for frame in frames]
        known = [(frame["step"], value) for frame, value in zip(frames, values, strict=True) if value == value]
        found[name] = {"steps": [step for step, _ in known], "min": [v for _, v in known], "max": [v for _, v in known]}
    return found


def _number(column: str, at: int) -> float:
    """Of a column in base64, without decoding the others."""
    first = 4 * at // 3 * 4
    piece = base64.b64decode(column[first : first + 12])
    start = 4 * at - first // 4 * 3
    return float(np.frombuffer(piece[start : start + 4], "<f4")[0])
