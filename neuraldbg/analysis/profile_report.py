"""A profile as one plain object: what `neural profile --json` prints and every other form is made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuraldbg.analysis.bottlenecks import Measured, bottlenecks, facts_of
from neuraldbg.analysis.by_hand import by_hand
from neuraldbg.analysis.devices import devices_of
from neuraldbg.analysis.layer_costs import Costs, LayerCost, layer_costs
from neuraldbg.analysis.leaks import leaks
from neuraldbg.analysis.memory import memory_of
from neuraldbg.analysis.phases import EVAL, PHASES, Phases, phases, rank_times
from neuraldbg.analysis.ranks import main_rank

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

SCHEMA = "neuraldbg.profile/1"


def profile_of(trace: Trace) -> dict[str, Any]:
    """Times in milliseconds, sizes in bytes; None is not known. Of `trace.between(...)`: what was known by then."""
    costs = layer_costs(trace, main_rank(trace))
    spent = phases(trace, costs.steps)
    memory = memory_of(trace)
    found = bottlenecks(Measured(costs, spent, facts_of(trace), memory))
    return {
        "schema": SCHEMA,
        "run": trace.run.id,
        "script": trace.run.script,
        "steps": len(costs.steps) or spent.steps,
        "all_steps": spent.every_step_ms.count + bool(spent.every_step_ms.count),
        "step_ms": {**spent.step_ms.told(), "jitter": spent.jitter, "covered": spent.covered},
        "phases_ms": {name: spent.mean_ms.get(name) for name in PHASES} | _eval(spent),
        "input_wait_share": spent.share("data"),
        "layers": _with_memory([layer_row(one, costs, spent) for one in costs.layers], memory),
        "bottlenecks": [one.told() for one in found],
        "leaks": [one.told() for one in leaks(trace)],
        "memory": memory,
        "gpu": devices_of(trace),
        "ranks": rank_times(trace),
        "by_hand": by_hand(trace),
        "overhead": next(iter(trace.told("overhead")[-1:]), None),
    }


def _with_memory(rows: list[dict[str, Any]], memory: dict[str, Any]) -> list[dict[str, Any]]:
    of_layer = {one["layer"]: one for one in memory["layers"] or ()}
    for row in rows:
        known = of_layer.get(row["path"], {})
        row |= {name: known.get(name) for name in ("saved_bytes", "allocated_bytes")}
    return rows


def _eval(spent: Phases) -> dict[str, float]:
    value = spent.mean_ms.get(EVAL)
    return {} if value is None else {EVAL: value}


def layer_row(one: LayerCost, costs: Costs, spent: Phases) -> dict[str, Any]:
    """`self_ms` and `total_ms` are of one step, forward and backward together, without and with the layers inside."""
    steps = max(len(costs.steps), 1)
    step_ms = spent.step_ms.mean
    own_ms = one.own_ns / steps / 1e6
    return {
        "path": one.path,
        "type": one.type,
        "calls": one.calls,
        "forward_ms": one.forward.told(1e-6),
        "backward_ms": one.backward.told(1e-6),
        "self_ms": own_ms,
        "self_forward_ms": one.own_forward_ns / steps / 1e6,
        "self_backward_ms": one.own_backward_ns / steps / 1e6,
        "total_ms": one.whole_ns / steps / 1e6,
        "share": own_ms / step_ms if step_ms else None,
        "memory_bytes": one.memory_bytes,
        "flops": one.flops,
        "flops_per_s": one.flops_per_s,
        "device_ms": None if one.device_ns is None else one.device_ns / 1e6,
        "late_share": one.late_share,
        "source": one.source,
    }
