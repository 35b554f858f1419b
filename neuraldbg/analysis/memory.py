"""Where the memory of a training goes: what lives how long, which layers hold it at the peak, how it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from neuraldbg.analysis.leaks import curve_of, trend

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

MOST_HOLDERS: Final = 10


def memory_of(trace: Trace) -> dict[str, Any]:
    """Bytes; None is not measured. `layers` has what the last measured step's layers allocated and keep for their
    backward, `held_at_peak` who holds it where most is held."""
    fact = next(iter(trace.told("layer_memory")[-1:]), None)
    machine = next(iter(trace.facts("machine")[-1:]), {})
    names = ("rss_bytes", "host_allocated_bytes", "device_allocated_bytes", "device_bytes")
    rss, allocated, exactly, sampled = (curve_of(trace, name) for name in names)
    device = exactly if len(exactly[0]) else sampled
    peak, reserved = (curve_of(trace, f"device_{name}_bytes")[1] for name in ("peak", "reserved"))
    told: dict[str, Any] = {
        "rss_bytes": _last(rss[1]),
        "peak_rss_bytes": _most(rss[1]),
        "host_allocated_bytes": _last(allocated[1]),
        "device_bytes": _last(device[1]),
        "peak_device_bytes": _most(peak) or _most(device[1]),
        "reserved_device_bytes": _last(reserved),
        "peak_reserved_bytes": _most(reserved),
        "device_total_bytes": machine.get("device_bytes"),
        "growth": _growth(allocated if len(allocated[0]) else rss),
        **_of_step(fact, trace),
    }
    told["free_bytes"] = _free(told, machine)
    oom = trace.told("out_of_memory")
    return {**told, "out_of_memory": _oom(oom[-1], trace) if oom else None}


def _oom(fact: dict[str, Any], trace: Trace) -> dict[str, Any]:
    names = ("error", "phase", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "device_bytes", "rss_bytes")
    return {**{name: fact.get(name) for name in names}, "layers": _named(fact["layers"], trace)}


def _last(values: Any) -> int | None:
    return int(values[-1]) if len(values) else None


def _most(values: Any) -> int | None:
    return int(np.max(values)) if len(values) else None


def _growth(curve: tuple[Any, Any]) -> dict[str, Any] | None:
    found = trend(curve[0].tolist(), curve[1].tolist())
    if found is None:
        return None
    return {"bytes": found.growth, "bytes_per_step": found.per_step, "confidence": found.confidence}


def _named(rows: list[dict[str, Any]], trace: Trace) -> list[dict[str, Any]]:
    return [{"layer": trace.canonical(one["site"]), **one} for one in rows]


def _peak_after(fact: dict[str, Any], trace: Trace) -> dict[str, Any] | None:
    peak = fact.get("peak_after")
    if peak is None or not peak["bytes"]:
        return None
    layer = None if peak["site"] < 0 else trace.canonical(peak["site"])
    return {"layer": layer, "phase": peak["phase"], "bytes": peak["bytes"]}


def _of_step(fact: dict[str, Any] | None, trace: Trace) -> dict[str, Any]:
    if fact is None:
        names = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "layers", "held_at_peak")
        return dict.fromkeys((*names, "peak_after"))
    layers = _named(fact["layers"], trace)
    held = sorted((one for one in layers if one["saved_bytes"]), key=lambda one: -one["saved_bytes"])
    return {
        "parameter_bytes": fact["parameter_bytes"],
        "gradient_bytes": fact["gradient_bytes"],
        "optimizer_bytes": fact["optimizer_bytes"],
        "activation_bytes": sum(one["saved_bytes"] or 0 for one in layers) + fact["outside_bytes"],
        "layers": layers,
        "held_at_peak": [{"layer": one["layer"], "bytes": one["saved_bytes"]} for one in held[:MOST_HOLDERS]],
        "peak_after": _peak_after(fact, trace),
    }


def _free(told: dict[str, Any], machine: dict[str, Any]) -> int | None:
    """Left on the device, or where none is used on the machine."""
    if told["device_total_bytes"] and told["peak_device_bytes"]:
        return max(int(told["device_total_bytes"]) - int(told["peak_device_bytes"]), 0)
    whole, used = machine.get("memory_bytes"), told["peak_rss_bytes"]
    return max(int(whole) - int(used), 0) if whole and used else None
