"""The report as plain text, for files, logs and mail."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from neuraldbg.surfaces.terminal.console import make_console
from neuraldbg.surfaces.terminal.report import render_report

if TYPE_CHECKING:
    from neuraldbg.analysis.summary import RunSummary


def text_report(summary: RunSummary, *, run_dir: Path, width: int = 80) -> str:
    """What `neural report` prints, without colour, no line longer than `width` but for paths."""
    page = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")
    render_report(summary, make_console(page, width=width), run_dir=run_dir)
    page.seek(0)
    return "".join(f"{line.rstrip()}\n" for line in page.read().splitlines())
