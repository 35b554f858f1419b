"""The time of each layer on a device: ours, by marks on its stream, beside the kernels torch.profiler saw inside it.

python benchmarks/gpu/layer_times.py       needs CUDA; also the section `layers` of all.py; writes $OUT/gpu-layers.json

Ours is that of `neural profile`, every step timed. A mark is passed when the device comes to it: where the host is
late, what lies between two of them contains the launching. So there are two arms: the loop as it runs, and the same
with the device held up before each step until the host is far ahead, where nothing but the device's own work can lie
between marks. `launched ahead` is what a profile tells as `device_ms`: of each layer those calls only that were all
launched before the device came to them. The kernels are taken before and after, without us: their time is that of the
device whatever the host does. What is left apart is the room between kernels and the marks themselves, both told. A
small batch shows the host-bound case.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import torch
from programs import GPT2, Results, Size, Training, wait, watched
from torch import nn

from neuraldbg.analysis.profile_report import profile_of
from neuraldbg.trace import open_trace

STEPS, WARM = 6, 3
HOLD_CYCLES = 300_000_000  # about 150 ms: longer than the host takes for a step
CLOSE, CLOSE_US = 0.05, 3.0
Times = dict[str, float]  # microseconds of one forward call, by layer


def layers(size: Size, results: Results) -> None:
    results.add("a pair of marks with nothing between, us", empty := _empty_marks(size))
    _compared(size, results, "", empty)
    small = replace(size, batch=1, length=64)
    _compared(small, results, "small batch, ", empty)


def _compared(size: Size, results: Results, label: str, empty: float) -> None:
    training = Training(size)
    training.run(WARM)
    before, many = _kernels(training, size)
    arms = {name: _profiled(training, size, held=held) for name, held in (("as it runs", False), ("held", True))}
    after, _ = _kernels(training, size)
    theirs = {name: (before[name] + after[name]) / 2 for name in before if name in after}
    drift = [abs(after[name] / before[name] - 1) for name in theirs if before[name]]
    results.add(f"{label}kernels before and after: median difference", statistics.median(drift) if drift else None)
    for name, told in arms.items():
        rows = {row["path"]: row for row in told["layers"]}
        ahead = [1 - row["late_share"] for row in rows.values() if row["late_share"] is not None]
        results.add(f"{label}{name}: share of calls launched ahead", statistics.mean(ahead) if ahead else None)
        results.add(f"{label}{name}: bottlenecks", [one["summary"] for one in told["bottlenecks"]])
        spans = {path: row["forward_ms"]["p50"] * 1e3 for path, row in rows.items() if row["forward_ms"]["p50"]}
        only = {path: row["device_ms"] * 1e3 for path, row in rows.items() if row["device_ms"] is not None}
        for what, ours in ((name, spans), (f"{name}, launched ahead", only)):
            _told(results, f"{label}{what}", ours, theirs)
            _told(results, f"{label}{what}, less the marks", {path: ours[path] - empty for path in ours}, theirs)
        _explained(results, f"{label}{name}", only or spans, theirs, many)


def _profiled(training: Training, size: Size, *, held: bool) -> dict[str, Any]:
    with watched(None, profile=True) as (_, run):
        for _ in range(WARM + STEPS):
            if held and size.device == "cuda":
                torch.cuda._sleep(HOLD_CYCLES)
            training.step()
        wait(size)
    with open_trace(run) as trace:
        return profile_of(trace)


def _empty_marks(size: Size) -> float:
    if size.device != "cuda":
        return 0.0  # a dry run
    torch.cuda._sleep(HOLD_CYCLES // 10)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(65)]
    for mark in marks:
        mark.record()
    marks[-1].synchronize()
    return statistics.median(one.elapsed_time(other) * 1e3 for one, other in pairwise(marks))


# -- the kernels -------------------------------------------------------------------------------------------------------


def _kernels(training: Training, size: Size) -> tuple[Times, dict[str, int]]:
    """Microseconds of the kernels inside each layer's forward, and how many there are."""
    from torch.profiler import ProfilerActivity, profile, record_function

    ranges: list[Any] = []

    def before(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            ranges.append(record_function(f"layer:{name}"))
            ranges[-1].__enter__()

        return hook

    def after(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    handles = [handle for name, one in _layers(training.model) for handle in _both(one, before(name), after)]
    on_device = [ProfilerActivity.CUDA] if size.device == "cuda" else []
    with profile(activities=[*on_device, ProfilerActivity.CPU]) as seen:
        training.run(STEPS // 2)
        wait(size)
    for handle in handles:
        handle.remove()
    times: dict[str, list[float]] = {}
    many: dict[str, int] = {}
    for event in seen.events():
        if event.name.startswith("layer:") and "CPU" in str(event.device_type):
            times.setdefault(event.name[6:], []).append(float(event.device_time_total))
            many[event.name[6:]] = _launched(event)
    return {name: statistics.median(found) for name, found in times.items()}, many


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Leaves, and the blocks around them."""
    return [(name, one) for name, one in model.named_modules() if name and type(one) is not nn.ModuleList]


def _both(module: nn.Module, before: Any, after: Any) -> tuple[Any, Any]:
    return module.register_forward_pre_hook(before), module.register_forward_hook(after)


def _launched(event: Any) -> int:
    return len(event.kernels) + sum(_launched(child) for child in event.cpu_children)


# -- side by side ------------------------------------------------------------------------------------------------------


def _told(results: Results, label: str, ours: Mapping[str, float], theirs: Times) -> None:
    apart = {name: ours[name] / theirs[name] - 1 for name in theirs if name in ours and theirs[name] > 0}
    if not apart:
        results.add(f"{label}: layers compared", 0)
        return
    total = sum(theirs[name] for name in apart)
    close = [name for name, value in apart.items() if abs(value) <= CLOSE]
    nearly = [name for name in apart if name in close or abs(ours[name] - theirs[name]) <= CLOSE_US]
    results.add(
        label,
        {
            "layers": len(apart),
            "within 5 %": round(len(close) / len(apart), 3),
            f"within 5 % or {CLOSE_US:.0f} us": round(len(nearly) / len(apart), 3),
            "of their time within 5 %": round(sum(theirs[name] for name in close) / total, 3),
            "median difference": round(statistics.median(map(abs, apart.values())), 4),
            "ours / theirs in all": round(sum(ours[name] for name in apart) / total, 4),
        },
    )


def _explained(results: Results, label: str, ours: Times, theirs: Times, many: Mapping[str, int]) -> None:
    """Whether what is apart goes with the number of kernels, and where it is most."""
    more = {name: ours[name] - theirs[name] for name in theirs if name in ours}
    by_count: dict[int, list[float]] = {}
    for name, value in more.items():
        by_count.setdefault(many.get(name, 0), []).append(value)
    told = {count: (len(found), round(statistics.median(found), 2)) for count, found in sorted(by_count.items())}
    results.add(f"{label}: us more by number of kernels (layers, median)", told)
    worst = sorted(more, key=lambda name: -abs(more[name] / max(theirs[name], 1e-9)))[:8]
    results.add(f"{label}: furthest, us", {name: (round(ours[name], 1), round(theirs[name], 1)) for name in worst})


if __name__ == "__main__":
    layers(GPT2, Results("layers"))
