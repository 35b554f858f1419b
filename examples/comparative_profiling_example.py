"""One network on two backends: the times of its layers side by side.

NumPy and plain Python stand in for the backends here, so that the example runs anywhere; every number is measured.
"""

from __future__ import annotations

import numpy as np

from neural.profiling import ComparativeProfiler, LayerProfiler

ROWS, WIDTH = 8, 48
rng = np.random.default_rng(0)
X, W = rng.normal(size=(ROWS, WIDTH)), rng.normal(size=(WIDTH, WIDTH))


def dense_numpy(x: np.ndarray) -> np.ndarray:
    return np.asarray(x @ W)


def dense_python(x: np.ndarray) -> np.ndarray:
    rows, weights = x.tolist(), W.T.tolist()
    return np.array([[sum(a * b for a, b in zip(row, unit, strict=True)) for unit in weights] for row in rows])


comparative = ComparativeProfiler()
for backend, dense in {"numpy": dense_numpy, "python": dense_python}.items():
    profiler = LayerProfiler()
    for _ in range(20):
        x = X
        for layer in ("Dense_1", "Dense_2"):
            profiler.start_layer(layer)
            x = np.tanh(dense(x))
            profiler.end_layer(layer, {"rows": ROWS})
    comparative.add_backend_profile(backend, profiler.export_to_dict())

comparison = comparative.compare_backends()
print(f"Fastest: {comparison['summary']['fastest_backend']}")
print(f"Recommendation: {comparison['summary']['recommendation']}")
for name, seconds in comparative.get_backend_ranking():
    print(f"  {name:<10}{seconds * 1e3:8.2f} ms")
