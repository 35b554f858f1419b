"""The sections of `all.py` but `eager`: compiled models, the kernel, the time of layers."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from layer_times import layers  # noqa: F401  one of the sections
from programs import IN_FULL, Results, Size, Training, equal, name_of, rows_of, steps, wait, watched
from torch import Tensor
from turns import STRETCH, in_turns

from neuraldbg.capture.torch.attach import TorchCapture
from neuraldbg.trace import open_trace

SETTINGS = ((512, 4, 64), (1024, 4, 32), (2048, 8, 32), (2048, 4, 16), (1024, 8, 64))  # block, warps, blocks a piece


# -- compiled -------------------------------------------------------------------------------------------------------


def compiled(size: Size, results: Results, *, inexact: bool = False) -> None:
    """One session for all arms, since what is compiled under it is watched by it: switched off it runs the graph
    without taps. With the algorithms that torch takes by itself, as most people train."""
    results.add("machine", f"{name_of(size)}, torch {torch.__version__}")
    with watched(None, inexact_taps=inexact) as (capture, run):
        training = Training(size, compiled=True)
        training.run(3)
        wait(size)
        results.add("graphs", _state(capture))
        _arms(size, results, training, capture)
    _told_of(run, results)


def exact(size: Size, results: Results) -> None:
    """The losses of a compiled model under deterministic algorithms: where taps change a last bit there are none."""
    results.add("machine", f"{name_of(size)}, torch {torch.__version__}")
    torch.use_deterministic_algorithms(True)
    with watched(None) as (capture, run):
        training = Training(size, compiled=True)
        training.run(3)
        wait(size)
        results.add("graphs", _state(capture))
        ours = _from_the_start(size, training)
        capture.core.on = False
        bare = _from_the_start(size, training)
        again = _from_the_start(size, training)
        results.add("control repeats its losses", equal(bare, again))
        results.add("losses identical to the bare graph", equal(bare, ours))
    _told_of(run, results)


def _told_of(run: Path, results: Results) -> None:
    results.add("rows of one full step", rows_of(run))
    with open_trace(run) as trace:
        results.add("notes", [note["text"] for note in trace.facts("note")])
        results.add("compiled", [{k: v for k, v in fact.items() if k != "wall_ns"} for fact in trace.facts("compiled")])


def inexact(size: Size, results: Results) -> None:
    """The same with taps on every output, also where they change last bits: what seeing everything costs."""
    compiled(size, results, inexact=True)


def _state(capture: TorchCapture) -> dict[str, Any]:
    regions = capture.compiled.regions
    return {
        "graphs": capture.compiled.graphs,
        "values": sum(sum(tap.ways) for one in regions for tap in one.observed.taps),
        "left out": sum(one.observed.left_out for one in regions),
        "same bits": [one.exact for one in regions],
        "rows so far": capture.compiled.rows,
        "seconds for taps": round(capture.compiled.taps_ns / 1e9, 1),
    }


def _from_the_start(size: Size, training: Training) -> list[Tensor]:
    """The losses of a few steps from weights and an optimizer that are always the same."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, device=parameter.device) * 0.02)
    training.optimizer.state.clear()
    training.done = 0
    return training.run(steps(size, 6))


def _arms(size: Size, results: Results, training: Training, capture: TorchCapture) -> None:
    def watching(share: float | None) -> Callable[[], float]:
        def arm() -> float:
            capture.core.on, capture.core.budget.share, capture.core.budget.full = True, share, share is None
            training.run(steps(size, IN_FULL))
            took = training.timed(steps(size, STRETCH))
            capture.core.on = False
            return took

        return arm

    capture.core.on = False
    training.run(2)
    in_turns(size, results, training, {"default": watching(0.01), "full": watching(None)})
    capture.core.on = True
    capture.core.budget.share, capture.core.budget.full = None, True
    training.run(2)


# -- the kernel -----------------------------------------------------------------------------------------------------


def kernels(size: Size, results: Results) -> None:
    """TB/s of the pass for several settings; the bar is 3."""
    from neuraldbg.capture.kernels.device import DevicePass

    device = torch.device(size.device)
    on_gpu = size.device == "cuda"
    best: dict[str, tuple[float, Any]] = {}
    for name in ("bfloat16", "float16", "float32"):
        dtype = getattr(torch, name)
        large = torch.randn(2**30 // dtype.itemsize if on_gpu else 4096, device=device, dtype=torch.float32).to(dtype)
        for block, warps, pieces in SETTINGS[: 2 if name == "float32" else None] if on_gpu else SETTINGS[1:2]:
            passes = DevicePass(device, block=block, piece=block * pieces, warps=warps)
            found = []
            for share in (20, 4, 1):
                tensor = large[: large.numel() // share]
                found.append(tensor.numel() * dtype.itemsize / _milliseconds(passes, tensor, on_gpu) / 1e9)
            results.add(f"{name} block {block} warps {warps} piece {pieces}: TB/s at 51 MB, 256 MB, 1 GB", found)
            if found[-1] > best.get(name, (0.0, None))[0]:
                best[name] = (found[-1], (block, warps, pieces))
        summed = _milliseconds(None, large, on_gpu)
        results.add(f"{name} torch.sum: TB/s at 1 GB", large.numel() * dtype.itemsize / summed / 1e9)
        results.add(f"{name} best", best[name])
        del large
    if on_gpu:
        results.add("us of the host per launch", _launch_us(device))


def _milliseconds(passes: Any, tensor: Tensor, on_gpu: bool) -> float:
    def call() -> None:
        if passes is None:
            torch.sum(tensor)
            return
        passes.measure(tensor, 0)
        passes._jobs.clear()
        passes._used = 0

    call()
    if not on_gpu:
        return 1.0
    times = []
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(4):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 4)
    return statistics.median(times)


def _launch_us(device: torch.device) -> dict[str, float]:
    import time

    from neuraldbg.capture.torch.device import DeviceQueue

    queue, tensor, took = DeviceQueue(), torch.randn(4096, device=device), {}
    others = [torch.randn(4096, device=device) for _ in range(64)]
    queue.stats(tensor, lambda _: None)
    queue.stats_of_all([(one, lambda _: None) for one in others])
    for name, call, many in (
        ("one", lambda: [queue.stats(one, lambda _: None) for one in others], 64),
        ("64 at once", lambda: queue.stats_of_all([(one, lambda _: None) for one in others]), 64),
        ("mark", lambda: [queue.mark() for _ in range(64)], 64),
    ):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(8):
            call()
        took[name] = (time.perf_counter() - start) / 8 / many * 1e6
    queue.finish_sync()
    return took
