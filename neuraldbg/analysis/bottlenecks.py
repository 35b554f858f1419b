"""What holds a training back, and what to do: each with the measured numbers it rests on.

Types: `compute` (a layer, the optimizer), `memory`, `io` (waiting for data), `underutilization` (the machine idles:
small calls, fetched values, code outside of layers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from neuraldbg.analysis.layer_costs import Costs, LayerCost
from neuraldbg.analysis.phases import Phases

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

WAITING, FETCHING, OUTSIDE, OPTIMIZING, ONE_LAYER = 0.15, 0.10, 0.25, 0.30, 0.25  # shares of a step worth a word
GRAVITY: Final = ("high", "medium", "low")
HIGH, MEDIUM = 0.40, 0.20  # share of a step: severity
LAUNCHING: Final = 0.5  # share of the layers' time in calls that the device waited in
MANY_FETCHES: Final = 16  # in a step, at a line that is worth a word where much of the time lies outside of layers
SMALL_CALL_MS: Final = 0.10  # a layer's call that is mostly the calling
SMALL_CALLS: Final = 0.6  # share of the layers' time that such calls must have
SMALL_BATCH: Final = 16
FEW_LAYERS: Final = 4  # of so few one always takes most of the time
UNEVEN: Final = 1.6  # 95th percentile of the step time over its median
ENOUGH: Final = 5  # timed steps
FULL_MEMORY: Final = 0.90  # of the device
_ATTENTION: Final = ("attention", "attn")


@dataclass(frozen=True, slots=True)
class Bottleneck:
    layer: str | None
    type: str
    severity: str  # high, medium, low
    share: float | None  # of a step
    summary: str
    recommendation: str
    source: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the rules read."""

    costs: Costs
    phases: Phases
    facts: Mapping[str, Any]  # machine, loader, host_fetches: the last of each, None where there is none
    memory: Mapping[str, Any]

    @property
    def step_ms(self) -> float | None:
        return self.phases.step_ms.mean


def facts_of(trace: Trace) -> dict[str, Any]:
    names = ("machine", "loader", "host_fetches", "on_device")
    return {name: next(iter(trace.told(name)[-1:]), None) for name in names}


def bottlenecks(told: Measured) -> list[Bottleneck]:
    """The gravest first. Where too few steps were timed to tell, only that memory ran out."""
    rules = [_ran_out]
    if told.phases.steps >= ENOUGH and told.step_ms:
        rules += (_waiting, _fetching, _launching, _small_calls, _outside, _optimizer, _layers, _memory, _uneven)
    found = [one for rule in rules for one in rule(told)]
    return sorted(found, key=lambda one: (GRAVITY.index(one.severity), -(one.share or 0.0)))


def _severity(share: float) -> str:
    return "high" if share >= HIGH else "medium" if share >= MEDIUM else "low"


def _waiting(told: Measured) -> Iterator[Bottleneck]:
    share, wait_ms = told.phases.share("data"), told.phases.mean_ms.get("data")
    if share is None or wait_ms is None or share < WAITING or not told.step_ms:
        return
    loader, machine = told.facts.get("loader") or {}, told.facts.get("machine") or {}
    workers, cores = loader.get("workers"), machine.get("cores")
    compute_ms = max(told.step_ms - wait_ms, 1e-3)
    batch_ms = wait_ms if not workers else workers * told.step_ms  # of one worker, for one batch
    needed = math.ceil(batch_ms / compute_ms)
    yield Bottleneck(
        None,
        "io",
        _severity(share),
        share,
        f"{share:.0%} of a step ({wait_ms:.1f} of {told.step_ms:.1f} ms) is waiting for the next batch",
        _workers_advice(workers, needed, cores, batch_ms, compute_ms),
        details={"workers": workers, "workers_needed": needed, "cores": cores, "batch_ms": batch_ms},
    )


def _workers_advice(workers: int | None, needed: int, cores: int | None, batch_ms: float, compute_ms: float) -> str:
    now = "" if workers is None else f" (now {workers})"
    made = f"a batch takes {batch_ms:.1f} ms to make and {compute_ms:.1f} ms to train on"
    if cores is not None and needed > cores:
        return (
            f"{made}: even num_workers={cores}, one per core{now}, leaves the training waiting. Make __getitem__ "
            "cheaper: decode and augment ahead of time, cache, or read larger pieces"
        )
    return f"{made}: num_workers={needed}, persistent_workers=True{now} hides it"


def _fetching(told: Measured) -> Iterator[Bottleneck]:
    share, each, lines = _fetches(told)
    if share < FETCHING or each < 1:
        return
    where = lines[0][0] if lines else None
    yield Bottleneck(
        None,
        "underutilization",
        _severity(share),
        share,
        f"{_many(each)} in a step ({share:.0%} of it)" + (f", at {where}" if where else ""),
        "keep them as tensors and fetch them once every few steps: .item(), .tolist(), .cpu() and print wait for the "
        "device each time",
        source=where,
        details={"fetches_a_step": each, "lines": lines},
    )


def _fetches(told: Measured) -> tuple[float, float, list[tuple[str, int]]]:
    """Share of the time, how many in a step, and the lines with most of them."""
    fact, every = told.facts.get("host_fetches"), told.phases.every_step_ms
    if not fact or not every.total:
        return 0.0, 0.0, []
    steps = every.count + 1  # the first one, whose time nobody saw begin, fetches too
    return min(fact["seconds"] / (every.total / 1e3), 1.0), fact["calls"] / steps, fact.get("lines") or []


def _many(fetches: float) -> str:
    return "a value is fetched" if fetches < 1.5 else f"{fetches:,.0f} values are fetched one by one"


def _launching(told: Measured) -> Iterator[Bottleneck]:
    """The device is faster than the host that gives it work."""
    leaves = [one for one in _leaves(told.costs) if one.late_share is not None]
    total = sum(one.forward.total for one in leaves)
    late = sum(one.forward.total * (one.late_share or 0.0) for one in leaves)
    if not total or late / total < LAUNCHING or not told.step_ms:
        return
    share = min(late / max(len(told.costs.steps), 1) / 1e6 / told.step_ms, 1.0)
    many = sum(1 for one in leaves if (one.late_share or 0.0) > 0.5)
    yield Bottleneck(
        None,
        "underutilization",
        _severity(share),
        share,
        f"the device waits for the host: it came to {many} of {len(leaves)} layers before all of their work was "
        "launched, and what they are said to take contains that",
        "torch.compile (with mode='reduce-overhead' it replays CUDA graphs), or larger batches: more work per launch",
        details={"late_layers": many, "layers": len(leaves), "late_share": late / total},
    )


def _leaves(costs: Costs) -> list[LayerCost]:
    return [one for one in costs.layers if not one.holds_others and one.forward.count]


def _small_calls(told: Measured) -> Iterator[Bottleneck]:
    leaves = _leaves(told.costs)
    total = sum(one.own_ns for one in leaves)
    small = [one for one in leaves if (one.forward.percentile(50) or 0.0) < SMALL_CALL_MS * 1e6]
    spent = sum(one.own_ns for one in small)
    if not total or spent / total < SMALL_CALLS or not told.step_ms:
        return
    batch = _batch(leaves)
    each_us = float(np.median([one.forward.percentile(50) or 0.0 for one in small])) / 1e3
    share = min(spent / max(len(told.costs.steps), 1) / 1e6 / told.step_ms, 1.0)
    larger = batch is not None and batch <= SMALL_BATCH
    headroom = _headroom(told, batch)
    advice = [f"use larger batches than {batch}{headroom}"] if larger else []
    advice.append("torch.compile merges small operations into few")
    yield Bottleneck(
        None,
        "underutilization",
        _severity(share),
        share,
        f"a call of a layer takes {each_us:.0f} us, most of it for being called: "
        + (f"the batch has {batch} row{'s' if batch != 1 else ''}" if larger else "the layers are small"),
        "; ".join(advice),
        details={"microseconds_a_call": each_us, "layers": len(small), "batch": batch},
    )


def _batch(leaves: list[LayerCost]) -> int | None:
    sizes = [one.shape[0] for one in leaves if one.shape]
    return int(np.median(sizes)) if sizes else None


def _headroom(told: Measured, batch: int | None) -> str:
    """How much larger a batch could be, where the memory of the device, or the machine, was measured."""
    kept, free = told.memory.get("activation_bytes"), told.memory.get("free_bytes")
    if not kept or not free or not batch:
        return ""
    fits = int(free / (kept / batch)) + batch
    return f" (memory has room for about {fits:,})" if fits > batch else ""


def _outside(told: Measured) -> Iterator[Bottleneck]:
    share, outside_ms = told.phases.share("outside"), told.phases.mean_ms.get("outside")
    if share is None or outside_ms is None or share < OUTSIDE:
        return
    taken, each, lines = _fetches(told)
    fetching = bool(lines) and each >= MANY_FETCHES and taken < FETCHING
    begin = f"begin with {lines[0][0]}, which fetches {each:,.0f} values a step; " if fetching else ""
    yield Bottleneck(
        None,
        "underutilization",
        _severity(share),
        share,
        f"{share:.0%} of a step ({outside_ms:.1f} ms) is spent outside of layers",
        f"{begin}look at the loop and the model's own forward: batches made by hand, logging, checkpoints, zero_grad, "
        "clipping, functional code. Give functional code a module of its own to see it by name",
        source=lines[0][0] if fetching else None,
    )


def _optimizer(told: Measured) -> Iterator[Bottleneck]:
    share, taken_ms = told.phases.share("optimizer"), told.phases.mean_ms.get("optimizer")
    if share is None or taken_ms is None or share < OPTIMIZING:
        return
    yield Bottleneck(
        None,
        "compute",
        _severity(share),
        share,
        f"{share:.0%} of a step ({taken_ms:.1f} ms) is the optimizer",
        "pass fused=True or foreach=True to it, or accumulate gradients over more batches per update",
    )


def _layers(told: Measured) -> Iterator[Bottleneck]:
    if not told.step_ms or len(_leaves(told.costs)) < FEW_LAYERS:
        return
    for one in told.costs.layers[:3]:
        own_ms = one.own_ns / max(len(told.costs.steps), 1) / 1e6
        share = own_ms / told.step_ms
        if share < ONE_LAYER:
            break
        rate = one.flops_per_s
        yield Bottleneck(
            one.path,
            "compute",
            _severity(share),
            share,
            f"{one.path} takes {share:.0%} of a step ({own_ms:.1f} ms)"
            + (f" at {rate / 1e9:.3g} GFLOP/s forward" if rate else ""),
            _layer_advice(one),
            source=one.source,
            details={"self_ms": own_ms, "flops_per_s": rate},
        )


def _layer_advice(one: LayerCost) -> str:
    on_device = bool(one.device) and not str(one.device).startswith("cpu")
    kind = (one.type or "").lower()
    if one.holds_others and any(word in kind for word in _ATTENTION):
        return "its own code is the time: scaled_dot_product_attention does attention in one pass over memory"
    if on_device and one.dtype == "float32":
        return "autocast to bfloat16 lets tensor cores do it"
    if kind.startswith("conv"):
        return "channels_last memory format, and fewer channels or a larger stride before it"
    if kind in ("lstm", "gru", "rnn"):
        return "one call over the whole sequence instead of one per step, or a layer that is parallel in time"
    if kind == "embedding":
        return "sparse=True touches only the rows that are used"
    return "it is what the model is made of: a smaller width here, lower precision, or torch.compile"


def _ran_out(told: Measured) -> Iterator[Bottleneck]:
    fact = told.memory.get("out_of_memory")
    if fact is None:
        return
    most = fact["layers"][0]["layer"] if fact["layers"] else None
    where = f" in the {fact['phase']}" if fact["phase"] else ""
    cure = f"checkpoint {most}, which keeps most for the backward, " if most else ""
    yield Bottleneck(
        most,
        "memory",
        "high",
        None,
        f"memory ran out{where}: {fact['error']}",
        f"take smaller batches, {cure}or autocast to half precision",
    )


def _memory(told: Measured) -> Iterator[Bottleneck]:
    used, room = told.memory.get("peak_device_bytes"), told.memory.get("device_total_bytes")
    if not used or not room or used / room < FULL_MEMORY:
        return
    held = told.memory.get("held_at_peak") or []
    most = held[0]["layer"] if held else None
    yield Bottleneck(
        most,
        "memory",
        "high",
        None,
        f"memory of the device is {used / room:.0%} full at the peak"
        + (f", most of it held by {most}" if most else ""),
        "checkpoint the layers that hold most of it, autocast to half precision, or take smaller batches",
        details={"peak_bytes": used, "total_bytes": room},
    )


def _uneven(told: Measured) -> Iterator[Bottleneck]:
    every = told.phases.every_step_ms
    middle, late = every.percentile(50), every.percentile(95)
    if every.count < 20 or not middle or not late or late / middle < UNEVEN:
        return
    share = min((every.total - middle * every.count) / every.total, 1.0) if every.total else 0.0
    if share < 0.1:
        return
    yield Bottleneck(
        None,
        "underutilization",
        "low",
        share,
        f"step times are uneven: median {middle:.1f} ms, one in twenty above {late:.1f} ms",
        "look for what happens now and then: evaluation, checkpoints, logging, batches of very different length",
        details={"p50_ms": middle, "p95_ms": late},
    )
