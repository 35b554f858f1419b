"""What a question of the page costs on a long run: 500 layers x 10,000 steps, statistics of outputs and gradients.

python benchmarks/queries.py [--layers 500] [--steps 10000] [--dir FOLDER]

The run is written and rolled up first; then a fresh process, as the viewer is one, opens it and answers. CPU time is
that of the whole process (median of 7), private memory (USS) the largest while it answers. Last, `neural view` serves
the run and the same is asked of it over HTTP, several times each: the median CPU time of the server, and its memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

from neuraldbg.analysis.profile import flame, layer_times
from neuraldbg.control.gate import Gate
from neuraldbg.control.reach import open_line
from neuraldbg.records import Call, Kind, Phase, RunInfo, SiteKind
from neuraldbg.trace import TraceWriter, create_run, open_trace
from neuraldbg.trace.rollup import heatmap, series
from neuraldbg.trace.tables import CALL_CODE, CALLS, KIND_CODE, PHASE_CODE, SCALARS, SPANS, STATS

KINDS = (Kind.ACTIVATION, Kind.GRADIENT)
STEPS_AT_ONCE = 32
REPEAT = 7
CPU_BAR_MS, USS_BAR_MB = 50, 150


def name_sites(writer: TraceWriter, layers: int) -> None:
    writer.fact("site", id=0, path="net", kind=SiteKind.MODEL)
    for site in range(1, layers + 1):
        writer.fact("site", id=site, path=f"layers.{site}", kind=SiteKind.MODULE, op="Linear", model=0)
    writer.fact("site", id=layers + 1, path="loss", kind=SiteKind.SERIES)


def write(run: Path, layers: int, steps: int) -> None:
    rng = np.random.default_rng(0)
    with TraceWriter(run, max_disk_bytes=50_000_000_000, ring_rows=262_144, threaded=False) as writer:
        name_sites(writer, layers)
        per_step = layers * len(KINDS)
        rows = np.zeros(per_step * STEPS_AT_ONCE, STATS)
        rows["site"] = np.tile(np.repeat(np.arange(1, layers + 1), len(KINDS)), STEPS_AT_ONCE)
        rows["kind"] = np.tile([KIND_CODE[kind] for kind in KINDS], layers * STEPS_AT_ONCE)
        rows["count"] = 4096
        spans = np.zeros(layers * STEPS_AT_ONCE, SPANS)
        spans["site"], spans["phase"] = np.tile(np.arange(1, layers + 1), STEPS_AT_ONCE), PHASE_CODE[Phase.FORWARD]
        loss, calls = np.zeros(STEPS_AT_ONCE, SCALARS), np.zeros(STEPS_AT_ONCE, CALLS)
        loss["site"], calls["call"] = layers + 1, CALL_CODE[Call.STEP]
        for first in range(0, steps, STEPS_AT_ONCE):
            numbers = np.arange(first, first + STEPS_AT_ONCE)
            rows["step"], loss["step"], calls["step"] = np.repeat(numbers, per_step), numbers, numbers
            rows["seq"] = np.arange(first * per_step, (first + STEPS_AT_ONCE) * per_step)
            rows["l2"] = rng.random(len(rows))
            rows["mean"] = rows["l2"] - 0.5
            loss["value"] = np.exp(-numbers / steps)
            spans["step"] = np.repeat(numbers, layers)
            spans["seq"] = np.arange(first * layers, (first + STEPS_AT_ONCE) * layers)
            spans["start_ns"], spans["duration_ns"] = spans["seq"] * 1000, 900 + rng.integers(0, 99, len(spans))
            for table, block in (("stats", rows), ("spans", spans), ("scalars", loss), ("calls", calls)):
                writer.append(table, block)
            writer.flush()
        writer.fact("end", exit_code=0, error=None, duration_s=1.0, dropped={}, steps=steps)


def train(run: Path, layers: int, pause_s: float) -> None:
    """The same rows as a training writes them, a step at a time, with a line to who watches; until it is ended."""
    gate = Gate()
    open_line(gate, run, served=True)
    with TraceWriter(run) as writer:
        gate.watched_every = writer.watched
        name_sites(writer, layers)
        rows, loss = np.zeros(layers * len(KINDS), STATS), np.zeros(1, SCALARS)
        rows["site"] = np.repeat(np.arange(1, layers + 1), len(KINDS))
        rows["kind"], rows["count"] = np.tile([KIND_CODE[kind] for kind in KINDS], layers), 4096
        loss["site"], rng = layers + 1, np.random.default_rng(0)
        for step in itertools.count():
            rows["step"] = loss["step"] = step
            rows["l2"], loss["value"] = rng.random(len(rows)), np.exp(-step / 1000)
            writer.append("stats", rows)
            writer.append("scalars", loss)
            time.sleep(pause_s)


def answer(run: Path) -> None:
    """In a process of its own: opens the run and prints what each question costs."""
    own = psutil.Process()
    began = time.process_time()
    trace = open_trace(run)
    print(f"{'open, every checksum':44} {(time.process_time() - began) * 1e3:8.0f} ms {_uss(own):8.0f} MB", flush=True)
    last = int(trace.table("scalars", ["step"])["step"].max())
    middle, zoom = f"layers.{last % 400 + 1}", (last // 2, last // 2 + 599)
    questions: list[tuple[str, Callable[[], object]]] = [
        ("heatmap of all steps", lambda: heatmap(trace, "l2", "gradient", 1000)),
        ("heatmap of 600 steps", lambda: heatmap(trace, "l2", "gradient", 1000, zoom)),
        ("heatmap of an odd half", lambda: heatmap(trace, "mean", "activation", 100, (last // 4 + 1, last * 3 // 4))),
        ("a layer's gradient norm, all steps", lambda: series(trace, "grad_norm", middle)),
        ("a layer's gradient norm, 600 steps", lambda: series(trace, "grad_norm", middle, zoom)),
        ("the loss", lambda: series(trace, "loss")),
        ("a layer's rows, all steps, every column", lambda: trace.history(middle, "gradient")),
        ("a step, every layer", lambda: trace.at(last // 2)),
        ("times of all layers, all steps", lambda: layer_times(trace)),
        ("flame graph of a step", lambda: flame(trace, last // 2)),
    ]
    worst = 0.0
    for name, question in questions:
        times = []
        for _ in range(REPEAT):
            start = time.process_time()
            found = question()
            times.append(time.process_time() - start)
            trace.release()
        largest = largest_uss(own, question)
        worst = max(worst, largest)
        shape = getattr(getattr(found, "values", None), "shape", None)
        told = f"{name} {shape[0]} x {shape[1]}" if shape else name
        print(f"{told:44} {sorted(times)[REPEAT // 2] * 1e3:8.1f} ms {largest:8.0f} MB   bar {CPU_BAR_MS} ms")
    print(f"{'largest private memory':44} {'':11} {worst:8.0f} MB   bar {USS_BAR_MB} MB")


def served(run: Path) -> None:
    """The same over HTTP, of a real server."""
    command = [sys.executable, "-m", "neuraldbg", "view", str(run), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = next(word for word in server.stderr.readline().split() if word.startswith("http"))
            _ask(url, psutil.Process(server.pid))
        finally:
            server.terminate()


def _ask(url: str, process: psutil.Process) -> None:
    with urllib.request.urlopen(f"{url}/api/run") as answer:
        last = json.load(answer)["last_step"]
    print(f"\n{'over HTTP: after the first question':44} {'':11} {_uss(process):8.0f} MB")
    largest = 0.0
    for path in (
        "heatmap?metric=grad_norm&width=1000",
        f"heatmap?metric=grad_norm&width=1000&from={last // 2}&to={last // 2 + 599}",
        "series?metric=grad_norm&layer=layers.250",
        "series?metric=loss",
        "layer_inspect/layers.250",
        "summary",
        f"flame?step={last // 2}",
    ):
        times = []
        for _ in range(REPEAT):
            before = sum(process.cpu_times()[:2])
            for _ in range(5):  # the kernel counts CPU time in hundredths of a second
                with urllib.request.urlopen(f"{url}/api/{path}") as answer:
                    answer.read()
            times.append((sum(process.cpu_times()[:2]) - before) / 5)
            largest = max(largest, _uss(process))
        print(f"{path[:44]:44} {sorted(times)[REPEAT // 2] * 1e3:8.1f} ms {largest:8.0f} MB   bar {CPU_BAR_MS} ms")
    print(f"{'largest private memory of the server':44} {'':11} {largest:8.0f} MB   bar {USS_BAR_MB} MB")


def largest_uss(own: psutil.Process, question: Callable[[], object]) -> float:
    """While the question is answered once more, looked at from a second thread as often as it can."""
    done, seen = threading.Event(), [_uss(own)]

    def look() -> None:
        while not done.is_set():
            seen.append(_uss(own))

    thread = threading.Thread(target=look)
    thread.start()
    question()
    done.set()
    thread.join()
    return max(*seen, _uss(own))


def _uss(process: psutil.Process) -> float:
    return float(process.memory_full_info().uss) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--dir", default=None, help="where to write (default: the temporary folder)")
    parser.add_argument("--answer", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(Path(options.answer))
        return
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {platform.system()}", flush=True)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        run = create_run(RunInfo("bench", ("bench",), None, {}, ""), out=Path(folder) / "run")
        write(run, options.layers, options.steps)
        began = time.process_time()
        with open_trace(run) as trace:
            opened = time.process_time()
            rows = trace.rollups.update()
        spent = time.process_time() - opened
        sizes = [sum(f.stat().st_size for f in run.rglob(f"{kind}-*.ndt")) / 1e6 for kind in ("segment", "rollup")]
        print(f"{rows:,} rows ({sizes[0]:.0f} MB) rolled up into {sizes[1]:.0f} MB: {spent / rows * 1e6:.2f} us a row")
        print(f"opened in {opened - began:.1f} s\n", flush=True)
        subprocess.run([sys.executable, __file__, "--answer", str(run)], check=True)
        served(run)


if __name__ == "__main__":
    main()
