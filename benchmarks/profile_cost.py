"""What profiling costs a GPT: times only, and times with memory, against a process that never imported neuraldbg.

python benchmarks/profile_cost.py [--restarts 6] [--pairs 10] [--layers 6] [--width 256] [--batch 4]
python benchmarks/profile_cost.py --calls      # time of one more call after 10^2 and after 10^6

Long-lived processes, one per arm, each step on command: bare, times, memory, and bare once more as the control. A pair
is A B B A of single steps; CPU time of the process with all its threads, one intra-op thread. The ratio is told with
its bootstrap 95 % interval over restarts of all processes; it counts only where control against bare covers 1.00.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
ARMS = ("bare", "times", "memory", "control")
WARM = 25


def model_and_step(given: argparse.Namespace) -> Any:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, heads = given.width, 8

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = (p.view(b, t, heads, -1).transpose(1, 2) for p in self.qkv(x).split(c, dim=2))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(mixed.transpose(1, 2).reshape(b, t, c))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), Attention()
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(512, width), nn.Embedding(given.length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(given.layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 512, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    ids = torch.randint(0, 512, (given.batch, given.length))

    def step() -> None:
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def work(arm: str, given: argparse.Namespace) -> None:
    """One arm: a step per line that comes, answered with its CPU seconds."""
    capture = None
    if arm in ("times", "memory"):
        capture = _attached(memory=arm == "memory")
    step = model_and_step(given)
    for _ in range(WARM):
        step()
    print("ready", flush=True)
    for _line in sys.stdin:
        start = time.process_time()
        for _ in range(given.steps):
            step()
        print((time.process_time() - start) / given.steps, flush=True)
    if capture is not None:
        told = capture.overhead()
        capture.close(exit_code=0)
        print(json.dumps({"timed": told["sampled_steps"], "of": told["total_steps"]}), flush=True)


def _attached(*, memory: bool) -> Any:
    import tempfile

    from neuraldbg.capture.torch.attach import Options, TorchCapture
    from neuraldbg.records import RunInfo
    from neuraldbg.trace import TraceWriter, create_run

    info = RunInfo(id="cost", command=(), backend="pytorch", versions={}, started="")
    writer = TraceWriter(create_run(info, out=Path(tempfile.mkdtemp()) / "run"))
    share = 0.04 if memory else 0.015  # the budgets of `neural profile`
    return TorchCapture(lambda: writer, Options(budget=share, profile=True, memory=memory, strict=True))


class Arm:
    def __init__(self, name: str, words: list[str]) -> None:
        command = [sys.executable, __file__, "--arm", name, *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._out.readline().strip() == "ready"

    @property
    def _out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def step(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._out.readline())

    def end(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.close()
        rest = self._out.read().strip()
        self.process.wait()
        return rest


def interval(values: list[float]) -> tuple[float, float, float]:
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[-51]


def compare(given: argparse.Namespace, words: list[str]) -> None:
    """Every restart has four fresh processes: two that do the same differ by a few percent for as long as they live
    (where their memory lies), so the interval is drawn over restarts."""
    ratios: dict[str, list[float]] = {name: [] for name in ARMS[1:]}
    bare_s: list[float] = []
    told: dict[str, str] = {}
    for _ in range(given.restarts):
        arms = {name: Arm(name, words) for name in ARMS}
        for name in ARMS[1:]:
            of_pairs = []
            for _ in range(given.pairs):
                a1, b1, b2, a2 = (arms[each].step() for each in ("bare", name, name, "bare"))
                of_pairs.append((b1 + b2) / (a1 + a2))
                bare_s += [a1, a2]
            ratios[name].append(statistics.median(of_pairs))
        told = {name: arm.end() for name, arm in arms.items()}
    print(f"{platform.processor() or platform.machine()}, one thread, {given.layers} blocks of width {given.width}")
    step_ms = statistics.median(bare_s) * 1e3
    print(f"batch {given.batch} x {given.length}: {step_ms:.1f} ms CPU a step; {given.restarts} x {given.pairs} pairs")
    for name, values in ratios.items():
        middle, low, high = interval(values)
        print(f"{name:<8} / bare  {middle:.4f}  ({low:.4f} to {high:.4f})  {told[name]}")


def calls() -> None:
    """Microseconds of one more call of a layer, after a hundred and after a million before it."""
    from neural.profiling import LayerProfiler

    profiler = LayerProfiler()
    made = 0
    for wanted in (10**2, 10**4, 10**6):
        while made < wanted:
            profiler.start_layer("fc")
            profiler.end_layer("fc")
            made += 1
        rounds = []
        for _ in range(30):
            start = time.process_time_ns()
            for _ in range(1000):
                profiler.start_layer("fc")
                profiler.end_layer("fc")
            rounds.append((time.process_time_ns() - start) / 1e6)
            made += 1000
        middle, low, high = interval(rounds)
        print(f"after {wanted:>9,} calls: {middle:.2f} us a call ({low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--calls", action="store_true")
    sizes = {"layers": 6, "width": 256, "batch": 4, "length": 128, "steps": 1}
    for name, default in {"restarts": 6, "pairs": 10, **sizes}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if given.arm:
        return work(given.arm, given)
    if given.calls:
        return calls()
    words = [word for name in sizes for word in (f"--{name}", str(getattr(given, name)))]
    return compare(given, words)


if __name__ == "__main__":
    main()
