"""A profile as a file: JSON, CSV, a trace for Chrome and Perfetto, a profile for speedscope, a page of HTML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.analysis.findings import strict
from neuraldbg.analysis.profile_report import profile_of
from neuraldbg.errors import UsageError
from neuraldbg.surfaces.reports.profile_page import html_of
from neuraldbg.surfaces.reports.session import dump, write_atomic
from neuraldbg.surfaces.terminal.figures import size

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

TIMES = ("mean", "std", "min", "max", "p50", "p95", "p99", "total")
PLAIN = ("path", "type", "calls", "self_ms", "self_forward_ms", "self_backward_ms", "total_ms", "share")
COSTS = (
    *("memory_bytes", "saved_bytes", "allocated_bytes", "flops", "flops_per_s"),
    *("device_ms", "late_share", "source"),
)


CALLS = ("chrome", "speedscope")  # files of single calls


def text_of(trace: Trace, form: str, *, step: int | None = None, top: int = 10) -> str:
    if form in CALLS:
        _check_timed(trace, step)
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
        from neuraldbg.analysis.profile import resources

        return html_of(told, resources(trace))
    from neuraldbg.surfaces.terminal.profile_table import lines_of

    return "\n".join(line for line, _ in lines_of(told, 80, top=top))


def _check_timed(trace: Trace, step: int | None) -> None:
    """A file without a single call cannot be opened by those who read it."""
    spans = trace.table("spans", ("step", "start_ns"))
    timed = set(spans["step"][spans["start_ns"] >= 0].tolist())  # of a time that was only told nobody knows when it was
    if not timed:
        raise UsageError("no call was timed in this run: neural profile train.py times them")
    if step is not None and step not in timed:
        near = min(timed, key=lambda one: (abs(one - step), one))
        raise UsageError(f"step {step} was not timed, the nearest one was {near}; --budget full times every one")


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
