"""What watching a step costs on a small MLP, where it shows most: one that is not measured in full (hooks, ledger and
evidence), or with --full one that is, with the C kernel and, in turn, without it. --timed times or --timed memory: what
`neural profile` without and with --memory costs instead; --gpt: on the GPT of benchmarks/overhead.

python benchmarks/step_cost.py [--full] [--timed times|memory] [--gpt] [--rounds 12] [--steps 200] [--warm 25]
                               [--layers 7] [--profile]

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
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from neuraldbg.capture.kernels import host
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


def training_gpt() -> Callable[[int], None]:
    sys.path.insert(0, str(Path(__file__).parent / "overhead"))
    import programs

    step = programs.step_of(programs.gpt())

    def run(steps: int) -> None:
        for _ in range(steps):
            step()

    return run


def watched(run: Callable[[int], None], chosen: argparse.Namespace, profile: cProfile.Profile | None) -> float:
    with tempfile.TemporaryDirectory() as folder:
        took = _watched(run, chosen, Path(folder), profile)
    return took / float(chosen.steps)


def _watched(
    run: Callable[[int], None], chosen: argparse.Namespace, folder: Path, profile: cProfile.Profile | None
) -> float:
    info = RunInfo(id="quiet", command=(), backend="pytorch", versions={}, started="")
    writer = TraceWriter(create_run(info, out=folder / "run"))
    budget = None if chosen.full else ALMOST_NOTHING
    timed = {"profile": chosen.timed is not None, "memory": chosen.timed == "memory"}
    capture = TorchCapture(lambda: writer, Options(budget=budget, strict=True, **timed))
    try:
        run(chosen.warm)
        if profile is not None:
            profile.enable()
        start = time.process_time()
        run(chosen.steps)
        took = time.process_time() - start
        if profile is not None:
            profile.disable()
    finally:
        capture.close(exit_code=0)
    return took


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
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--timed", choices=("times", "memory"))
    parser.add_argument("--gpt", action="store_true")
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    run = training_gpt() if chosen.gpt else training(chosen.layers, chosen.width, chosen.batch)
    profile = cProfile.Profile() if chosen.profile else None
    program = "GPT, 6 layers" if chosen.gpt else f"{chosen.layers} layers"
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {program}")
    kernel = host.fused
    arms = {"with the kernel": kernel, **({"without it": None} if chosen.full and not chosen.timed else {})}
    ratios: dict[str, list[float]] = {name: [] for name in arms}
    extra: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(chosen.rounds):
        for name, host.fused in arms.items():
            before = bare(run, chosen.steps // 2)
            ours = watched(run, chosen, profile)
            base = (before + bare(run, chosen.steps // 2)) / 2
            ratios[name].append(ours / base)
            extra[name].append((ours - base) * 1e6)
    host.fused = kernel
    for name in arms:
        print(f"{name}: watched / bare {interval(ratios[name])}; {interval(extra[name])} us more a step")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
