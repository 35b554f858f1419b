"""A run as one file: the portable session, a table of every number, a graph of causes, a page, or the run directory."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.control.channel import CONTROL_FILE
from neuraldbg.control.server_file import SERVER_FILE
from neuraldbg.records import Phase
from neuraldbg.surfaces.reports.session import dump, session_object, write_atomic

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

CSV_COLUMNS = ("step", "seq", "site", "kind", "phase", "slot", "value", "count", "mean", "std", "min", "max", "l2")
CSV_COUNTS = ("zero_count", "nan_count", "inf_count")
_ROWS_AT_A_TIME = 20_000
_REACHED_BY = (CONTROL_FILE, SERVER_FILE)


def write(trace: Trace, run_dir: Path, form: str, path: Path) -> int:
    """Writes `path` whole or not at all and gives its size in bytes."""
    write_atomic(path, parts(trace, run_dir, form))
    return path.stat().st_size


def parts(trace: Trace, run_dir: Path, form: str) -> Iterator[bytes]:
    if form == "json":
        return iter([dump(session_object(trace), indent=1).encode(), b"\n"])
    if form == "mermaid":
        return mermaid_parts(trace)
    if form == "html":
        from neuraldbg.surfaces.reports.page import html_parts

        return html_parts(run_dir)
    if form == "tensorboard":
        from neuraldbg.surfaces.reports.tensorboard import event_parts

        return event_parts(trace)
    if form in ("chrome", "speedscope"):
        from neuraldbg.surfaces.reports.profile_files import text_of

        return iter([text_of(trace, form).encode()])
    return csv_parts(trace) if form == "csv" else zip_parts(run_dir)


def mermaid_parts(trace: Trace) -> Iterator[bytes]:
    """Causes and what they led to, in Mermaid's language."""
    from neuraldbg.analysis.evidence import thresholds_of
    from neuraldbg.analysis.why import Why

    yield Why(trace, thresholds_of(trace.run)).mermaid().encode()


def csv_parts(trace: Trace) -> Iterator[bytes]:
    """One line per statistic and per scalar; a field that does not apply is empty, NaN and infinities are words."""
    yield _lines([[*CSV_COLUMNS, *CSV_COUNTS]])
    yield from _stat_lines(trace)
    yield from _scalar_lines(trace)


def _stat_lines(trace: Trace) -> Iterator[bytes]:
    from neuraldbg.analysis.layers import KIND_OF
    from neuraldbg.trace.tables import PHASE_CODE

    names = {site.id: trace.canonical(site) for site in trace.sites}
    phases: dict[int, Phase] = {code: phase for phase, code in PHASE_CODE.items()}
    table = trace.table("stats")
    for start in range(0, len(table["step"]), _ROWS_AT_A_TIME):
        part = {name: column[start : start + _ROWS_AT_A_TIME].tolist() for name, column in table.items()}
        yield _lines(
            [
                part["step"][i],
                part["seq"][i],
                names.get(part["site"][i], ""),
                KIND_OF[part["kind"][i]].value,
                phases[part["phase"][i]].value if part["phase"][i] in phases else "",
                part["slot"][i],
                "",
                *(part[name][i] for name in ("count", "mean", "std", "min", "max", "l2", *CSV_COUNTS)),
            ]
            for i in range(len(part["step"]))
        )


def _scalar_lines(trace: Trace) -> Iterator[bytes]:
    names = {site.id: site.path for site in trace.sites}
    table = trace.table("scalars")
    empty = [""] * (len(CSV_COLUMNS) + len(CSV_COUNTS) - 7)
    for start in range(0, len(table["step"]), _ROWS_AT_A_TIME):
        part = {name: column[start : start + _ROWS_AT_A_TIME].tolist() for name, column in table.items()}
        rows = zip(part["step"], part["seq"], part["site"], part["value"], strict=True)
        yield _lines(
            [step, seq, names.get(site, ""), "scalar", "", "", value, *empty] for step, seq, site, value in rows
        )


def _lines(rows: Any) -> bytes:
    page = io.StringIO()
    csv.writer(page, lineterminator="\n").writerows(rows)
    return page.getvalue().encode()


class _Pipe(io.RawIOBase):
    """Collects what the zip writer produces so that it can be handed on piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        taken, self.pieces = b"".join(self.pieces), []
        return taken


def zip_parts(run_dir: Path) -> Iterator[bytes]:
    """The run directory as a zip, one file in memory at a time at most. How to reach its processes stays here."""
    run_dir = run_dir.resolve()
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED, compresslevel=3, strict_timestamps=False) as archive:
        kept = (path for path in run_dir.rglob("*") if path.is_file() and path.name not in _REACHED_BY)
        for file in sorted(kept):
            with archive.open(f"{run_dir.name}/{file.relative_to(run_dir).as_posix()}", "w", force_zip64=True) as entry:
                with file.open("rb") as source:
                    while block := source.read(1 << 20):
                        entry.write(block)
                        yield pipe.take()
    yield pipe.take()
