"""What a breakpoint condition costs beside the same expression as raw compiled Python: the ratio, interleaved.

python benchmarks/conditions.py
"""

from __future__ import annotations

import statistics
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


def main() -> None:
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


if __name__ == "__main__":
    main()
