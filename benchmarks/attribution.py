"""Whether time is charged to whom it belongs: programs that sleep where they say, against their profiles.

python benchmarks/attribution.py [--rounds 5]

The programs are those of tests/profiling/sleeping.py; they keep their own books of how long each sleep really took.
Every line is the median over the rounds, and the smallest and largest of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "profiling"))

import test_attribution as programs
from sleeping import Books, Net


def phases() -> dict[str, float]:
    books = Books()
    told = programs.profiled(_folder(), books, Net(books), data_s=0.009, loss_s=0.007)
    found = told["phases_ms"]
    layers = ("block.first", "block.second", "block", "head")
    truth = {
        "data": programs.ms(books, "data"),
        "loss": programs.ms(books, "loss"),
        "forward": programs.ms(books, *layers),
        "backward": programs.ms(books, *(f"{name} backward" for name in layers)),
    }
    summed = {"all phases over the step timed apart": sum(found.values()) / programs.step_ms(books)}
    return summed | {f"{name} over what was slept there": found[name] / true for name, true in truth.items()}


def glue() -> dict[str, float]:
    books = Books()
    told = programs.profiled(_folder(), books, Net(books, glue_s=0.013))
    steps = range(programs.WARM + 1, programs.WARM + programs.STEPS)
    whole = [books.told["step_time_s"][step] for step in steps]
    outside = [books.told["time.outside"][step] for step in steps]
    slept = [row["glue"] + row["glue backward"] for row in books.rows[1:]]
    shares = [
        statistics.median(one / step for one, step in zip(each, whole, strict=True)) * 100 for each in (slept, outside)
    ]
    rows = programs.layers(told)
    grown = [rows[path]["forward_ms"]["p50"] / programs.typical_ms(books, path) for path in ("block.first", "head")]
    return {
        "glue slept, % of the step": shares[0],
        "outside layers, % of the step": shares[1],
        "a layer beside the glue over what it slept": max(grown),
    }


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="attribution-"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    for measure in (phases, glue):
        rounds = [measure() for _ in range(chosen.rounds)]
        for name in rounds[0]:
            values = [one[name] for one in rounds]
            print(f"{name:<46}{statistics.median(values):8.3f}  ({min(values):.3f} to {max(values):.3f})", flush=True)


if __name__ == "__main__":
    main()
