"""What the histograms of a run add to steps that are measured in full: the same training with and without them.

python benchmarks/histograms.py [--blocks 120] [--layers 20] [--width 256]

One capture watches one training, every step in full. Blocks of as many steps as lie between two histograms of a tensor
alternate in the order ABBA: in A the histograms are due once, in B never. CPU time of the process, one intra-op thread;
the ratio of the sums with a 95 % interval by bootstrap over the pairs, and beside it that of B against B.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.capture.torch.evidence.histograms import LEAST_GAP, Histograms
from neuraldbg.records import RunInfo
from neuraldbg.trace import TraceWriter, create_run

WARM = 400  # updates in which evidence about the data is still collected
NEVER = 2**62


def training(layers: int, width: int) -> Callable[[], None]:
    torch.manual_seed(0)
    parts = [part for _ in range(layers - 1) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*parts, nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(64, width), torch.randint(0, 10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def seconds(step: Callable[[], None], watcher: Histograms, *, due: bool) -> float:
    """CPU time of a block; `due`: every tensor gets one histogram in it."""
    for key in watcher._due:
        watcher._due[key] = 0 if due else NEVER
    start = time.process_time()
    for _ in range(LEAST_GAP):
        step()
    return time.process_time() - start


def interval(a: NDArray[np.float64], b: NDArray[np.float64]) -> str:
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(a), (4000, len(a)))
    ratios = np.sort(a[picks].sum(axis=1) / b[picks].sum(axis=1))
    return f"{a.sum() / b.sum():.4f} ({ratios[100]:.4f} to {ratios[-100]:.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=120)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    step = training(options.layers, options.width)
    with tempfile.TemporaryDirectory() as folder:
        info = RunInfo(id="histograms", command=(), backend="pytorch", versions={}, started="")
        writer = TraceWriter(create_run(info, out=Path(folder) / "run"))
        capture = TorchCapture(lambda: writer, Options(budget=None, strict=True))
        try:
            watcher = next(one for one in capture.watchers if isinstance(one, Histograms))
            for _ in range(WARM):
                step()
            pairs = [_pair(step, watcher, turned=at % 2 == 1) for at in range(options.blocks)]
        finally:
            capture.close(exit_code=0)
    taken, without, again = np.array(pairs).T
    tensors = len(watcher._due)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {options.layers} layers of {options.width}")
    print(f"{tensors} tensors, one histogram each in {LEAST_GAP} full steps: {interval(taken, without)}")
    print(f"none against none: {interval(again, without)}")
    print(f"a histogram takes {(taken.sum() - without.sum()) / len(taken) / tensors * 1e6:.1f} us with its row")


def _pair(step: Callable[[], None], watcher: Histograms, *, turned: bool) -> tuple[float, float, float]:
    if turned:
        again, without = seconds(step, watcher, due=False), seconds(step, watcher, due=False)
        return seconds(step, watcher, due=True), without, again
    taken = seconds(step, watcher, due=True)
    without = seconds(step, watcher, due=False)
    return taken, without, seconds(step, watcher, due=False)


if __name__ == "__main__":
    main()
