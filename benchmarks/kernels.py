"""The C kernel beside copying the same bytes and beside the same statistics by torch: GB/s of input, interleaved.

python benchmarks/kernels.py [--rounds 21] [--dtypes float32 bfloat16] [--largest-mb 64]

CPU time of this thread, one thread, warm data: what fits into a cache comes from there. A ratio is that of two
neighbours in the same round; its interval is a bootstrap over the rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from neuraldbg.capture.kernels import host
from neuraldbg.capture.kernels.elements import WITH_HASH
from neuraldbg.capture.torch.stats import composed, plain

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int64")
SIZES_KB = (1, 16, 256, 4096, 65536)
SLICE_S = 0.0004  # each contestant runs this long in a round, at least once


def contestants(tensor: Tensor) -> dict[str, Callable[[], object]]:
    span = host.span_of(tensor)
    assert span is not None
    fused, to = host.fused, torch.empty_like(tensor)
    size, source, target = tensor.numel() * tensor.element_size(), tensor.data_ptr(), to.data_ptr()
    octaves = torch.zeros(64, dtype=torch.int64).numpy()
    return {
        "kernel": lambda: fused.measure(*span),
        "and hash": lambda: fused.measure(*span, WITH_HASH),
        "and 1/8 histogram": lambda: fused.measure(*span, 0, octaves, 8),
        "through torch": lambda: host.measured(tensor),
        "memcpy": lambda: ctypes.memmove(target, source, size) and to,
        "torch": lambda: composed(plain(tensor)),
    }


def seconds(call: Callable[[], object], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - start) / calls


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median and the 95 % interval of it, resampled."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(500))
    return statistics.median(ratios), medians[12], medians[-13]


def measure(tensor: Tensor, rounds: int) -> dict[str, list[float]]:
    calls = contestants(tensor)
    often = {
        name: max(1, int(SLICE_S / max(min(seconds(call, 1) for _ in range(3)), 1e-7))) for name, call in calls.items()
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(seconds(calls[name], often[name]))
    return times


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    parser.add_argument("--largest-mb", type=float, default=64)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if host.fused is None:
        raise SystemExit("the C kernel is not built: pip install -e . with a compiler")
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{processor()}, {host.fused.INSTRUCTION_SETS[-1]}, {versions}; GB/s of input")
    heads = ("type", "KB", "us", "kernel", "+hash", "+hist/8", "memcpy", "torch", "kernel/memcpy", "kernel/torch")
    print("{:>14} {:>6} {:>8}  {:>7} {:>7} {:>7} {:>7} {:>7}   {:<21}  {}".format(*heads))
    for name in chosen.dtypes:
        for size_kb in SIZES_KB:
            if size_kb > chosen.largest_mb * 1024:
                continue
            dtype = getattr(torch, name)
            tensor = (torch.randn(size_kb * 1024 // dtype.itemsize) * 10).to(dtype)
            times = measure(tensor, chosen.rounds)
            speed = {key: size_kb * 1.024e-6 / statistics.median(value) for key, value in times.items()}
            told = " ".join(
                f"{speed[key]:7.2f}" for key in ("kernel", "and hash", "and 1/8 histogram", "memcpy", "torch")
            )
            against = [
                "{:.2f} ({:.2f}-{:.2f})".format(
                    *interval([other / ours for ours, other in zip(times["kernel"], times[key], strict=True)])
                )
                for key in ("memcpy", "torch")
            ]
            us = statistics.median(times["through torch"]) * 1e6
            print(f"{name:>14} {size_kb:>6} {us:8.2f}  {told}   {against[0]:<21}  {against[1]}", flush=True)


if __name__ == "__main__":
    main()
