"""What the trace costs: CPU per written row, and CPU of a question to ten million rows.

python benchmarks/trace.py [--rows 10000000] [--dir FOLDER]
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraldbg.capture.staging import Staging
from neuraldbg.records import Call, RunInfo, SiteKind
from neuraldbg.trace import Trace, TraceWriter, create_run, open_trace
from neuraldbg.trace.tables import CALL_CODE, CALLS, STATS

T = TypeVar("T")
SITES = 50
WRITER_RUNS = 7
KINDS = 3  # activation, gradient, parameter
BLOCK_ROWS = SITES * KINDS  # one step
PAUSE_STEPS, PAUSE_S = 100, 0.02  # a training loop leaves the flush thread time to run; so do we


def cpu_seconds(question: Callable[[], T], repeat: int = 5) -> tuple[float, T]:
    """The median CPU time of this process, all threads, and the last answer."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        answer = question()
        times.append(time.process_time() - start)
    return sorted(times)[len(times) // 2], answer


def step_rows(rng: np.random.Generator) -> NDArray[np.void]:
    rows = np.zeros(BLOCK_ROWS, STATS)
    rows["site"] = np.repeat(np.arange(1, SITES + 1), KINDS)
    rows["kind"] = np.tile(np.arange(1, KINDS + 1), SITES)
    rows["count"] = 4096
    for name in ("mean", "std", "min", "max", "l2"):
        rows[name] = rng.normal(size=BLOCK_ROWS)
    return rows


def write_run(folder: Path, total_rows: int) -> tuple[Path, float, dict[str, int]]:
    """A run of `total_rows` statistics; returns it, the CPU seconds of writing, and what was dropped."""
    run = create_run(RunInfo("bench", ("bench",), None, {}, ""), out=folder / "run")
    rows = step_rows(np.random.default_rng(0))
    call = np.zeros(1, CALLS)
    call["call"] = CALL_CODE[Call.STEP]
    writer = TraceWriter(run, max_disk_bytes=10_000_000_000)
    writer.fact("site", id=0, path="net", kind=SiteKind.MODEL)
    for site in range(1, SITES + 1):
        writer.fact("site", id=site, path=f"layers.{site}", kind=SiteKind.MODULE, op="Linear", model=0)
    spent = 0.0
    for step in range(total_rows // BLOCK_ROWS):
        rows["step"] = step
        rows["seq"] = np.arange(step * BLOCK_ROWS, (step + 1) * BLOCK_ROWS)
        if step % PAUSE_STEPS == 0:
            time.sleep(PAUSE_S)
        start = time.process_time()
        writer.append("stats", rows)
        writer.append("calls", call)
        spent += time.process_time() - start
    start = time.process_time()
    writer.close()
    return run, spent + time.process_time() - start, writer.dropped


def writer_cpu_per_row(folder: Path, total_rows: int) -> float:
    """Process CPU of append and flush thread together, less that of making the rows, per row."""
    run = create_run(RunInfo("bench", ("bench",), None, {}, ""), out=folder / "writer")
    rows = step_rows(np.random.default_rng(0))
    with TraceWriter(run, max_disk_bytes=10_000_000_000) as writer:
        start = time.process_time()
        for step in range(total_rows // BLOCK_ROWS):
            if step % PAUSE_STEPS == 0:
                time.sleep(PAUSE_S)
            writer.append("stats", rows)
        writer.close()
        spent = time.process_time() - start
    accepted = writer.written["stats"]
    assert accepted + writer.dropped["stats"] == total_rows // BLOCK_ROWS * BLOCK_ROWS
    if writer.dropped["stats"]:
        print(f"note: {writer.dropped['stats']:,} of {total_rows:,} rows were dropped")
    return spent / accepted


def slow_writer_cpu_per_row(folder: Path, seconds: float = 3.0) -> float:
    """The same at 100 steps a second, where every row goes through the journal."""
    run = create_run(RunInfo("bench", ("bench",), None, {}, ""), out=folder / "slow")
    rows = step_rows(np.random.default_rng(0))
    with TraceWriter(run) as writer:
        end = time.monotonic() + seconds
        start = time.process_time()
        while time.monotonic() < end:
            writer.append("stats", rows)
            time.sleep(0.01)
        writer.close()
        spent = time.process_time() - start
    loops = writer.written["stats"] // BLOCK_ROWS
    start = time.process_time()
    for _ in range(loops):  # what sleeping itself costs is not the writer's
        time.sleep(0.01)
    return (spent - (time.process_time() - start)) / writer.written["stats"]


def hook_row_cpu(folder: Path, total_rows: int = 200_000) -> float:
    """One row as a hook leaves it: a tuple from the training thread, made into columns and written by the other."""
    run = create_run(RunInfo("bench", ("bench",), None, {}, ""), out=folder / "hooks")
    row = tuple(step_rows(np.random.default_rng(0))[0].tolist())
    staging = Staging()
    with TraceWriter(run) as writer:
        writer.add_source(staging.drain)
        start = time.process_time()
        for number in range(total_rows):
            staging.stats(row)
            if number % 5_000 == 0:
                time.sleep(PAUSE_S)
        writer.close()
        spent = time.process_time() - start
    return spent / (writer.written["stats"] or 1)


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def spread(measured: list[float]) -> str:
    """Median and range: what the kernel takes for a write differs twofold from one run to the next."""
    low, middle, high = (sorted(measured)[i] * 1e6 for i in (0, len(measured) // 2, -1))
    return f"{middle:.2f} ({low:.2f}-{high:.2f}) us"


def measure(folder: Path, total_rows: int) -> list[tuple[str, str, str]]:
    fast = [writer_cpu_per_row(folder / f"fast{n}", total_rows // 5) for n in range(WRITER_RUNS)]
    slow = [slow_writer_cpu_per_row(folder / f"slow{n}") for n in range(WRITER_RUNS)]
    hooks = [hook_row_cpu(folder / f"hooks{n}") for n in range(WRITER_RUNS)]
    lines = [
        ("writer, CPU per row, fast run", spread(fast), "0.3 us"),
        ("one row from a hook, staging and all", spread(hooks), ""),
        ("writer, CPU per row, 100 steps/s", spread(slow), ""),
    ]
    run, _, _ = write_run(folder, total_rows)
    seconds, trace = cpu_seconds(lambda: open_trace(run), repeat=3)
    assert isinstance(trace, Trace)
    count = f"{len(trace.table('stats', ['site'])['site']):,}"
    lines.append((f"open {count} rows (all checksums)", f"{seconds * 1e3:.0f} ms", ""))
    seconds, rows = cpu_seconds(lambda: trace.history("layers.7", "gradient"))
    lines.append((f"one layer, all columns ({len(rows):,} rows)", f"{seconds * 1e3:.1f} ms", "50 ms"))
    seconds, _ = cpu_seconds(lambda: trace.history("layers.7", "gradient", field="l2"))
    lines.append(("one layer, one field", f"{seconds * 1e3:.1f} ms", "50 ms"))
    seconds, _ = cpu_seconds(lambda: trace.at(1000))
    lines.append(("one step", f"{seconds * 1e3:.1f} ms", ""))
    seconds, heatmap = cpu_seconds(lambda: trace.heatmap("l2", "gradient"))
    shape = " x ".join(map(str, heatmap.values.shape))
    lines.append((f"heatmap {shape}", f"{seconds * 1e3:.0f} ms", ""))
    seconds, _ = cpu_seconds(lambda: trace.top("l2", "gradient"), repeat=1)
    lines.append(("top 10 layers", f"{seconds * 1e3:.0f} ms", ""))
    trace.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dir", default=None, help="where to write (default: the temporary folder)")
    options = parser.parse_args()
    print(f"{cpu_model()}, Python {platform.python_version()}, numpy {np.__version__}, {platform.system()}\n")
    print(f"{'':44} {'measured':>22} {'bar':>10}")
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        for what, value, bar in measure(Path(folder), options.rows):
            print(f"{what:44} {value:>22} {bar:>10}")


if __name__ == "__main__":
    main()
