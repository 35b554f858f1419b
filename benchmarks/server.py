"""What a question to the server costs: CPU of its process and the memory it keeps, over 500 layers x 10,000 steps.

python benchmarks/server.py [--layers 500] [--steps 10000] [--kinds 2] [--run DIR]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from neuraldbg.records import Call, Phase, RunInfo, SiteKind
from neuraldbg.trace import TraceWriter, create_run
from neuraldbg.trace.tables import CALL_CODE, CALLS, PHASE_CODE, SCALARS, SPANS, STATS

REPEAT = 7
TIMED_EVERY = 10  # steps: spans are rarer than statistics
QUESTIONS = {
    "heatmap, all steps": "/api/heatmap?metric=grad_norm&width=1000",
    "heatmap, 600 steps": "/api/heatmap?metric=grad_norm&width=600&from=4000&to=4599",
    "series of a layer": "/api/series?metric=grad_norm&layer=layers.250&points=1000",
    "series of the loss": "/api/series?metric=loss&points=1000",
    "layer_inspect": "/api/layer_inspect/layers.250",
    "layer_inspect, step 5000": "/api/layer_inspect/layers.250?step=5000",
    "run": "/api/run",
    "flame": "/api/flame",
    "summary": "/api/summary",
}


def write_run(folder: Path, layers: int, steps: int, kinds: int) -> Path:
    run = create_run(RunInfo("bench", ("bench",), "torch", {}, ""), out=folder)
    rng = np.random.default_rng(0)
    writer = TraceWriter(run, threaded=False, max_disk_bytes=20_000_000_000)
    writer.fact("site", id=0, path="net", kind=SiteKind.MODEL)
    for site in range(1, layers + 1):
        writer.fact("site", id=site, path=f"layers.{site}", kind=SiteKind.MODULE, op="Linear", model=0)
    writer.fact("site", id=layers + 1, path="loss", kind=SiteKind.SERIES)
    rows, spans = np.zeros(layers * kinds, STATS), np.zeros(layers, SPANS)
    scalar, call = np.zeros(1, SCALARS), np.zeros(1, CALLS)
    rows["site"], rows["kind"] = np.tile(np.arange(1, layers + 1), kinds), np.repeat([2, 1, 3, 4][:kinds], layers)
    rows["count"], rows["pass_id"] = 4096, -1
    spans["site"], spans["phase"] = np.arange(1, layers + 1), PHASE_CODE[Phase.FORWARD]
    scalar["site"], call["call"] = layers + 1, CALL_CODE[Call.STEP]
    for step in range(steps):
        for block in (rows, spans, scalar, call):
            block["step"] = step
        for name in ("mean", "std", "min", "max"):
            rows[name] = rng.normal(size=len(rows))
        rows["l2"] = np.exp(rng.normal(size=len(rows)))
        scalar["value"], spans["duration_ns"] = np.exp(-step / steps), rng.integers(1, 10**6, layers)
        writer.append("stats", rows)
        writer.append("scalars", scalar)
        writer.append("calls", call)
        if step % TIMED_EVERY == 0:
            writer.append("spans", spans)
        writer.flush()
    writer.fact("end", exit_code=0, error=None, duration_s=1.0, dropped={}, steps=steps)
    writer.close()
    assert not any(writer.dropped.values()), writer.dropped
    return run


@contextmanager
def served(run: Path) -> Iterator[tuple[psutil.Process, str]]:
    code = "import sys; from neuraldbg.surfaces.cli import main; main(['view', sys.argv[1], '--port', '0'])"
    process = subprocess.Popen([sys.executable, "-c", code, str(run)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found
        yield psutil.Process(process.pid), found[0]
    finally:
        process.terminate()
        process.communicate()


def cpu_s(process: psutil.Process) -> float:
    """To the nanosecond, where the kernel says; its usual clock ticks in hundredths of a second."""
    try:
        threads = list(Path(f"/proc/{process.pid}/task").iterdir())
        return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9
    except (OSError, ValueError, IndexError):
        times = process.cpu_times()
        return float(times.user + times.system)


def ask(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=600) as response:
        return bytes(response.read())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--kinds", type=int, default=2)
    parser.add_argument("--run", type=Path, help="an existing run instead of a made one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or write_run(Path(folder) / "run", given.layers, given.steps, given.kinds)
        size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
        print(f"{given.layers} layers x {given.steps:,} steps x {given.kinds} kinds, {size / 1e6:,.0f} MB on disk")
        with served(run) as (process, address):
            print(f"opened: {cpu_s(process):.2f} s CPU, {process.memory_full_info().uss / 1e6:.0f} MB USS")
            measure(process, address)


def measure(process: psutil.Process, address: str) -> None:
    print(
        "| question | CPU ms, median of 7 | the first | wall ms | answer kB | USS MB after |\n|---|---|---|---|---|---|"
    )
    for name, path in QUESTIONS.items():
        costs, walls, answer = [], [], b""
        for _ in range(REPEAT):
            before, began = cpu_s(process), time.perf_counter()
            answer = ask(address + path)
            walls.append(time.perf_counter() - began)
            costs.append(cpu_s(process) - before)
        cost, wall = (sorted(each)[REPEAT // 2] * 1e3 for each in (costs, walls))
        uss = process.memory_full_info().uss / 1e6
        print(f"| {name} | {cost:.1f} | {costs[0] * 1e3:.1f} | {wall:.1f} | {len(answer) / 1e3:.0f} | {uss:.0f} |")
    assert json.loads(ask(f"{address}/api/runs"))


if __name__ == "__main__":
    main()
