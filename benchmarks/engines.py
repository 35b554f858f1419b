"""The same analyses on every engine, at several sizes: what each takes against `local`, measured in one run.

    python benchmarks/engines.py [--rows 500000 1000000 2000000 5000000 10000000] [--engines local duckdb ray spark]
                                 [--rounds 3] [--dir FOLDER]

Two runs of two ranks have half of the rows each, as Parquet in a folder. Sessions of Ray and Spark are open, and have
answered once, before anything is timed. A round asks every engine for every analysis, one engine after the other,
beginning with another one each time; answers that are not those of `local` end the program. Prints a JSON line per
size: median seconds of the clock and of the processors (this process and all below it: other load does not count), and
of the latter the ratio to `local` in its round (median, smallest, largest); then a table.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "fleet")]
from large_runs import large_run  # noqa: E402

from neuraldbg.fleet.analyses import JOBS  # noqa: E402
from neuraldbg.fleet.engines import answer  # noqa: E402
from neuraldbg.fleet.sources import open_sources  # noqa: E402
from neuraldbg.store.exporting import export_run  # noqa: E402
from neuraldbg.store.places import open_place  # noqa: E402

Answers = dict[str, list[dict[str, Any]]]


@contextmanager
def clusters(engines: list[str]) -> Iterator[None]:
    """Ray and Spark on this machine, with as many workers as it has cores."""
    here = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with ExitStack() as kept:
        if "ray" in engines:
            import ray

            os.environ.setdefault("RAY_worker_niceness", "0")  # as the other engines: else any load starves it
            logging.getLogger("ray.data").setLevel(logging.WARNING)
            ray.init(include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": here}})
            ray.data.DataContext.get_current().enable_progress_bars = False
            kept.callback(ray.shutdown)
        if "spark" in engines:
            from pyspark.sql import SparkSession

            builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
            builder = builder.config("spark.driver.memory", "2g").config("spark.executorEnv.PYTHONPATH", here)
            session = builder.getOrCreate()
            session.sparkContext.setLogLevel("ERROR")
            kept.callback(session.stop)
        yield


def made(folder: Path, rows: int) -> list[Path]:
    runs = []
    for odd in (0, 1):
        run = large_run(folder / f"run-{odd}", rows // 2, odd=odd)
        export_run(run, open_place(folder / f"data-{odd}"))
        shutil.rmtree(run)
        runs.append(folder / f"data-{odd}")
    return runs


def asked(runs: list[Path], engine: str) -> tuple[Answers, dict[str, float]]:
    """What an engine answers, the seconds of each analysis, and those of the processors for all (`cpu`)."""
    answers: Answers = {}
    seconds: dict[str, float] = {}
    before = processor_seconds()
    for name, job in JOBS.items():
        began = time.perf_counter()
        with ExitStack() as kept:
            answers[name] = answer(job, open_sources(runs, kept), engine)
        seconds[name] = time.perf_counter() - began
    return answers, {**seconds, "cpu": processor_seconds() - before}


def processor_seconds() -> float:
    """Of this process and all below it, ended ones too."""
    total = 0.0
    me = psutil.Process()
    for one in [me, *me.children(recursive=True)]:
        try:
            times = one.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def measured(runs: list[Path], engines: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """AssertionError where an engine gives another answer than the first."""
    each: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
    expected: Answers | None = None
    for number in range(rounds):
        for engine in engines[number % len(engines) :] + engines[: number % len(engines)]:
            answers, seconds = asked(runs, engine)
            expected = expected or answers
            assert all(answers.values()), (engine, [name for name in JOBS if not answers[name]])
            assert answers == expected, (engine, [name for name in JOBS if answers[name] != expected[name]])
            each[engine].append(seconds)
    return {engine: _told(each[engine], each["local"]) for engine in engines}


def _told(mine: list[dict[str, float]], local: list[dict[str, float]]) -> dict[str, Any]:
    ratios = [a["cpu"] / b["cpu"] for a, b in zip(mine, local, strict=True)]
    clock = [sum(one[name] for name in JOBS) for one in mine]
    return {
        "clock_s": round(statistics.median(clock), 2),
        "cpu_s": round(statistics.median(one["cpu"] for one in mine), 2),
        "ratio": [round(kind(ratios), 2) for kind in (statistics.median, min, max)],
        "analyses_clock_s": {name: round(statistics.median(one[name] for one in mine), 2) for name in JOBS},
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000])
    parser.add_argument("--engines", nargs="+", default=["local", "duckdb", "ray", "spark"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    table = []
    print(json.dumps({"cores": os.cpu_count(), "processor": processor(), "rounds": options.rounds}), flush=True)
    with clusters(options.engines), tempfile.TemporaryDirectory(dir=options.dir) as folder:
        small = made(Path(folder) / "small", 40_000)
        for engine in options.engines:
            asked(small, engine)
        for rows in options.rows:
            runs = made(Path(folder) / str(rows), rows)
            found = measured(runs, options.engines, options.rounds)
            print(json.dumps({"rows": rows, **found}), flush=True)
            cells = ["{:.2f} ({:.2f} to {:.2f})".format(*one["ratio"]) for one in found.values()]
            table.append(f"| {rows:,} | {found['local']['cpu_s']:.1f} s | " + " | ".join(cells[1:]) + " |")
            shutil.rmtree(Path(folder) / str(rows))
    print("\n".join(table))


if __name__ == "__main__":
    main()
