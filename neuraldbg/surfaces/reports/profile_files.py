"""A profile as a file: JSON, CSV, a trace for Chrome and Perfetto, a profile for speedscope, a page of HTML."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.analysis.findings import strict
from neuraldbg.analysis.profile_report import profile_of
from neuraldbg.surfaces.reports.session import dump, write_atomic
from neuraldbg.surfaces.terminal.figures import figure, percent, quantity, size

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

TIMES = ("mean", "std", "min", "max", "p50", "p95", "p99", "total")
PLAIN = ("path", "type", "calls", "self_ms", "self_forward_ms", "self_backward_ms", "total_ms", "share")
COSTS = ("memory_bytes", "saved_bytes", "allocated_bytes", "flops", "flops_per_s", "source")


def text_of(trace: Trace, form: str, *, step: int | None = None, top: int = 10) -> str:
    if form == "chrome":
        from neuraldbg.analysis.profile import chrome_trace

        return json.dumps(strict(chrome_trace(trace, step)), separators=(",", ":"), allow_nan=False)
    if form == "speedscope":
        from neuraldbg.analysis.speedscope import speedscope

        return json.dumps(strict(speedscope(trace, step)), separators=(",", ":"), allow_nan=False)
    told = profile_of(trace)
    if form == "json":
        return dump(strict(told), indent=1)
    if form == "csv":
        return csv_of(told)
    if form == "html":
        return html_of(told)
    from neuraldbg.surfaces.terminal.profile_table import lines_of

    return "\n".join(line for line, _ in lines_of(told, 80, top=top))


def write(text: str, path: Path) -> str:
    """Writes it whole or not at all, and says what was written."""
    data = text.encode()
    write_atomic(path, [data])
    return f"{path} ({size(len(data))})"


def csv_of(told: Mapping[str, Any]) -> str:
    """One line per layer; a field that is not known is empty."""
    page = io.StringIO()
    out = csv.writer(page, lineterminator="\n")
    out.writerow([*PLAIN, *(f"{way}_{name}_ms" for way in ("forward", "backward") for name in TIMES), *COSTS])
    for row in told["layers"]:
        times = [row[f"{way}_ms"][name] for way in ("forward", "backward") for name in TIMES]
        cells = [*(row[name] for name in PLAIN), *times, *(row[name] for name in COSTS)]
        out.writerow(["" if cell is None else cell for cell in cells])
    return page.getvalue()


_STYLE = """body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c2330}
@media(prefers-color-scheme:dark){body{background:#12161d;color:#dfe5ee}}table{border-collapse:collapse;width:100%}
th,td{text-align:right;padding:.2rem .6rem;border-bottom:1px solid #8884}th:first-child,td:first-child,th:nth-child(2),
td:nth-child(2){text-align:left}.bar{display:inline-block;height:.7em;background:#4c8dff}h2{margin-top:2rem}"""


def html_of(told: Mapping[str, Any]) -> str:
    """One file without scripts or anything fetched from elsewhere."""
    head = f"<title>Profile of {html.escape(str(told['run']))}</title>"
    body = "".join(_sections(told))
    top = f'<!doctype html>\n<html lang="en"><meta charset="utf-8">{head}<style>{_STYLE}</style>'
    return f"{top}<body>{body}</body></html>\n"


def _sections(told: Mapping[str, Any]) -> Iterator[str]:
    step = told["step_ms"]
    yield f"<h1>Profile of {html.escape(str(told['run']))}</h1>"
    yield (
        f"<p>{told['steps']:,} steps timed of {told['all_steps']:,}; {figure(step['mean'])} ms a step, median "
        f"{figure(step['p50'])}, p95 {figure(step['p95'])}.</p>"
    )
    yield "<h2>Phases of a step</h2>" + _phases(told)
    if told["bottlenecks"] or told["leaks"]:
        items = [f"<b>{one['type']}</b> {html.escape(one['summary'])}. {html.escape(one['recommendation'])}."
                 for one in told["bottlenecks"]]  # fmt: skip
        items += [f"<b>leak</b> {html.escape(one['summary'])}." for one in told["leaks"]]
        yield "<h2>What holds it back</h2><ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"
    yield "<h2>Layers</h2>" + _layers(told["layers"])
    memory = told["memory"]
    names = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "peak_rss_bytes")
    known = [(name, memory[name]) for name in (*names, "peak_device_bytes") if memory[name] is not None]
    if known:
        rows = [[name.removesuffix("_bytes").replace("_", " "), "", size(value)] for name, value in known]
        yield "<h2>Memory</h2>" + _table(["", "", "bytes"], rows)


def _phases(told: Mapping[str, Any]) -> str:
    step_ms = told["step_ms"]["mean"]
    rows = []
    for name, value in told["phases_ms"].items():
        share = None if value is None or not step_ms else min(value / step_ms, 1.0)
        bar = "" if share is None else f'<span class="bar" style="width:{share * 30:.1f}rem"></span>'
        rows.append(["outside layers" if name == "outside" else name, bar, f"{figure(value)} ms", percent(share)])
    return _table(["phase", "", "a step", "share"], rows, raw=(1,))


def _layers(layers: Sequence[Mapping[str, Any]]) -> str:
    heads = ["layer", "type", "self ms", "share", "total ms", "calls", "forward ms", "± std", "backward ms", "± std"]
    rows = [
        [
            row["path"],
            row["type"] or "-",
            *(figure(row["self_ms"]), percent(row["share"]), figure(row["total_ms"]), f"{row['calls']:,}"),
            *(figure(row[f"{way}_ms"][name]) for way in ("forward", "backward") for name in ("mean", "std")),
            size(row["memory_bytes"]),
            "-" if row["flops_per_s"] is None else quantity(int(row["flops_per_s"])),
        ]
        for row in layers
    ]
    return _table([*heads, "output", "FLOP/s"], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], raw: Sequence[int] = ()) -> str:
    top = "".join(f"<th>{html.escape(head)}</th>" for head in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{c if at in raw else html.escape(c)}</td>" for at, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"
