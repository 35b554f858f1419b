"""What reading a `.neural` file of 10,000 lines costs, beside `ast.parse` of as many lines of Python: interleaved, in
CPU time of the one thread that does it, so that other programs of the machine do not count.

python benchmarks/dsl_reading.py     exit code 0: it is read in under a second; 1: it is not
"""

from __future__ import annotations

import ast
import statistics
import sys
import time

from neuraldbg.dsl import parse
from neuraldbg.dsl.check import check
from neuraldbg.dsl.formatting import format_text

LINES, ROUNDS = 10_000, 15
BAR_S = 1.0
NEURAL = (
    "network Long {\n    input: (64,)\n    layers:\n"
    + '        Dense(64, activation="relu", use_bias=true, kernel_initializer="he_normal")  # a comment\n' * LINES
    + "    loss: mse\n    optimizer: adam\n}\n"
)
PYTHON = (
    'layers.append(Dense(64, activation="relu", use_bias=True, kernel_initializer="he_normal"))  # a comment\n' * LINES
)


def seconds(action: object, *args: object) -> float:
    start = time.process_time()
    action(*args)  # type: ignore[operator]
    return time.process_time() - start


def main() -> int:
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(seconds(ast.parse, PYTHON))
        ours.append(seconds(parse, NEURAL))
    ratios = sorted(own / raw for own, raw in zip(ours, theirs, strict=True))
    low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
    median = statistics.median(ours)
    print(f"parse        {median:.2f} s of CPU, slowest of {ROUNDS} {max(ours):.2f} s")
    print(f"beside ast.parse of Python: {statistics.median(ratios):.1f} ({low:.1f}-{high:.1f}) times as long")
    print(f"with shapes  {statistics.median(seconds(lambda: check(parse(NEURAL))) for _ in range(5)):.2f} s")
    print(f"neural fmt   {statistics.median(seconds(format_text, NEURAL) for _ in range(5)):.2f} s")
    print(f"bar {BAR_S:g} s: " + ("holds" if max(ours) < BAR_S else "MISSED"))
    return 0 if max(ours) < BAR_S else 1


if __name__ == "__main__":
    sys.exit(main())
