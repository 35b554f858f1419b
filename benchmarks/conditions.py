"""What a breakpoint condition costs beside the same expression as raw compiled Python: the ratio, interleaved.

python benchmarks/conditions.py     exit code 0: every median is within the bar; 1: one is above
"""

from __future__ import annotations

import statistics
import sys
import timeit

import numpy as np

from neuraldbg.control.conditions import parse_condition

CONDITIONS = (
    "layer_data['execution_time'] > 0.5",
    "layer_data['memory'] > 1000",
    "layer_data['grad_norm'] < 0.001",
    "layer_data['mean_activation'] == 0",
    "layer_data['grad_norm'] < 0.001 and layer_data['step'] % 100 == 0",
)
DATA = {"execution_time": 0.1, "memory": 12.0, "grad_norm": 0.02, "mean_activation": 0.3, "step": 7}
ROUNDS, CALLS = 41, 20_000
BAR = 1.5  # times raw compiled Python


def main() -> int:
    slow = []
    for text in CONDITIONS:
        ours = parse_condition(text, DATA).holds
        code = compile(text, "<raw>", "eval")
        scope = {"layer_data": DATA, "np": np}
        pairs = []
        for _ in range(ROUNDS):
            raw = min(timeit.repeat(lambda: eval(code, scope), number=CALLS, repeat=1))  # noqa: B023
            own = min(timeit.repeat(lambda: ours(DATA), number=CALLS, repeat=1))  # noqa: B023
            pairs.append((own / raw, own / CALLS * 1e9))
        ratios = sorted(ratio for ratio, _ in pairs)
        low, high = ratios[len(ratios) // 20], ratios[-len(ratios) // 20]
        cost = statistics.median(cost for _, cost in pairs)
        print(f"{statistics.median(ratios):.2f} ({low:.2f}-{high:.2f})  {cost:5.0f} ns  {text}")
        if statistics.median(ratios) > BAR:
            slow.append(text)
    print(f"bar {BAR}x: " + (f"MISSED by {len(slow)} of {len(CONDITIONS)}" if slow else "holds for every condition"))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
