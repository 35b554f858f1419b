"""The page about the format tells the truth."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from trace_making import describe_net, new_run, stats

from neuraldbg.trace import TraceWriter
from neuraldbg.trace import format as ndt
from neuraldbg.trace.tables import TABLES
from neuraldbg.trace.writer import CONSOLIDATE_ROWS, JOURNAL_BELOW_ROWS, SEGMENT_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "trace-format.md").read_text(encoding="utf-8")


def test_the_code_that_reads_a_file_by_hand_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with TraceWriter(new_run(tmp_path), threaded=False) as writer:
        describe_net(writer)
        writer.append("stats", stats(0, 5000))
    script = tmp_path / "by_hand.py"
    script.write_text(code)
    printed = {}
    for name in ("facts-000000.ndt", "segment-000000.ndt"):
        command = [sys.executable, "-W", "ignore", str(script), str(writer.directory / name)]
        printed[name] = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert '"path":"0.weight"' in printed["facts-000000.ndt"]
    assert "stats rows 0 to 4999 step [0 1 2 3 4]" in printed["segment-000000.ndt"]


def test_the_page_names_the_version_the_tables_and_the_limits() -> None:
    assert f"version {ndt.MAJOR}.{ndt.MINOR}" in PAGE
    for table in TABLES:
        assert f"`{table}`" in PAGE
    for number in (JOURNAL_BELOW_ROWS, CONSOLIDATE_ROWS):
        assert f"{number:,}" in PAGE
    assert f"{SEGMENT_BYTES // 1_000_000} MB" in PAGE
    assert (ndt.FILE_HEADER.size, ndt.CHUNK_HEADER.size) == (24, 64)
