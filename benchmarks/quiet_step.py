"""What a step costs that is not measured in full: hooks, ledger and evidence, on a small MLP where it shows most.

python benchmarks/quiet_step.py [--rounds 12] [--steps 200] [--warm 25] [--layers 7] [--profile]

Rounds of watched and bare steps alternate in one process; CPU time of all threads, one intra-op thread. Each watched
round is a capture of its own whose first steps (--warm), of which 20 are measured in full, are not timed. The evidence
about the data is collected in the first few hundred steps: --warm 25 shows it, --warm 600 what is left afterwards.
"""

from __future__ import annotations

import argparse
import cProfile
import platform
import pstats
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.records import RunInfo
from neuraldbg.trace import TraceWriter, create_run

BARE_WARM = 10
ALMOST_NOTHING = 1e-9  # a budget under which no step after the first ones is a full one


def training(layers: int, width: int, batch: int) -> Callable[[int], None]:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(layers - 1):
        parts += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*parts[: layers - 1], nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(64 * batch, width), torch.randint(0, 10, (64 * batch,))

    def run(steps: int) -> None:
        for step in range(steps):
            rows = slice(step % 64 * batch, (step % 64 + 1) * batch)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run


def watched(run: Callable[[int], None], warm: int, steps: int, folder: Path, profile: cProfile.Profile | None) -> float:
    info = RunInfo(id="quiet", command=(), backend="pytorch", versions={}, started="")
    writer = TraceWriter(create_run(info, out=folder / "run"))
    capture = TorchCapture(lambda: writer, Options(budget=ALMOST_NOTHING, strict=True))
    try:
        run(warm)
        if profile is not None:
            profile.enable()
        start = time.process_time()
        run(steps)
        took = time.process_time() - start
        if profile is not None:
            profile.disable()
    finally:
        capture.close(exit_code=0)
    return took / steps


def bare(run: Callable[[int], None], steps: int) -> float:
    run(BARE_WARM)
    start = time.process_time()
    run(steps)
    return (time.process_time() - start) / steps


def interval(values: list[float]) -> str:
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(500))
    return f"{statistics.median(values):.3f} ({medians[12]:.3f}-{medians[-13]:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm", type=int, default=25)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    run = training(chosen.layers, chosen.width, chosen.batch)
    profile = cProfile.Profile() if chosen.profile else None
    ratios, extra, plain = [], [], []
    for _ in range(chosen.rounds):
        with tempfile.TemporaryDirectory() as folder:
            before = bare(run, chosen.steps // 2)
            ours = watched(run, chosen.warm, chosen.steps, Path(folder), profile)
            after = bare(run, chosen.steps // 2)
        base = (before + after) / 2
        ratios.append(ours / base)
        extra.append((ours - base) * 1e6)
        plain.append(base * 1e3)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {chosen.layers} layers")
    print(f"bare {interval(plain)} ms; watched / bare {interval(ratios)}; {interval(extra)} us more a step")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
