"""The tensor inspector beside reading the array once, and beside sorting it: CPU time, interleaved.

python benchmarks/inspector.py [--elements 10_000_000] [--rounds 15] [--dtypes float32 float64]

`moments` is everything but what the values must be put in order for: moments, norms, counts, histogram; `all` has also
median, percentiles, outliers, skewness and kurtosis. Each round takes another one of several arrays, more of them than
any cache holds, so that all contestants read from memory (`--warm`: one array, the same every time). A ratio is that of
two neighbours in the same round; its interval is a bootstrap of the median over the rounds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.debug.tensors import look_at

TOGETHER_BYTES = 600_000_000
Contestants = dict[str, Callable[[NDArray[Any]], object]]
CONTESTANTS: Contestants = {
    "read (max)": lambda x: x.max(),
    "read (sum)": lambda x: x.sum(),
    "moments": lambda x: look_at(x, distribution=False),
    "sort": lambda x: np.sort(x),
    "all": lambda x: look_at(x, distribution=True),
    "numpy": lambda x: (x.mean(), x.std(), x.min(), x.max(), np.abs(x).sum(), np.histogram(x, 50)),
}
BARS = (
    ("moments", "read (max)", 3.0),
    ("moments", "read (sum)", 3.0),
    ("all", "sort", 1.5),
    ("numpy", "moments", None),
)


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median and the 95 % interval of it, resampled."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(500))
    return statistics.median(ratios), medians[12], medians[-13]


def measure(arrays: list[NDArray[Any]], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    names, turn = list(CONTESTANTS), 0
    for number in range(rounds + 1):
        random.shuffle(names)
        for name in names:
            array = arrays[turn % len(arrays)]
            turn += 1
            start = time.thread_time()
            CONTESTANTS[name](array)
            if number:  # the first round warms up
                taken[name].append(time.thread_time() - start)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--warm", action="store_true")
    chosen = parser.parse_args()
    draw = np.random.default_rng(0)
    for dtype in chosen.dtypes:
        size = chosen.elements * np.dtype(dtype).itemsize
        count = 1 if chosen.warm else max(TOGETHER_BYTES // size, 2)
        arrays = [draw.standard_normal(chosen.elements).astype(dtype) for _ in range(count)]
        taken = measure(arrays, chosen.rounds)
        told = ", ".join(f"{name} {statistics.median(times) * 1e3:.1f}" for name, times in taken.items())
        print(f"{dtype}, {chosen.elements} elements, {count} arrays, ms of CPU: {told}", flush=True)
        for ours, theirs, bar in BARS:
            ratio = interval([a / b for a, b in zip(taken[ours], taken[theirs], strict=True)])
            print("  {} / {}: {:.2f} ({:.2f}-{:.2f})".format(ours, theirs, *ratio), f"bar {bar}" if bar else "")


if __name__ == "__main__":
    main()
