"""The six views of a profile as data: charts of three kinds that any surface draws, and what to do where one is empty.

A view is `{"name", "title", "text", "charts"}`. A chart has `title` and `kind`:
`bars`: `labels`, which are layers of the run, `values`, `spread` (or None), `unit`; `lines`: `x`, `steps` (where each
point is in the run), `lines` of `label` and `values`, the largest and the smallest of each stretch, `unit`; `table`:
`columns` of name and unit, `rows`. Units: ms, s, bytes, share, count, text, or one to be written behind the number.
None is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

Profile = Mapping[str, Any]
Chart = dict[str, Any]
MB: Final = 2**20
MOST_BARS, MOST_ROWS, MOST_POINTS = 24, 200, 400
PANELS: Final = {  # of a GPU: what the driver is asked for, title, unit, its name where it is told by hand, in MB there
    "utilization_percent": ("utilisation", "%", "gpu_utilization_percent", 1),
    "memory_bytes": ("memory", "bytes", "memory_allocated_mb", MB),
    "temperature_celsius": ("temperature", "°C", "temperature_celsius", 1),
    "power_watts": ("power", "W", "power_watts", 1),
}
_PARTS: Final = {
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "activation_bytes": "kept for the backward",
    "peak_rss_bytes": "process, most",
    "peak_device_bytes": "device, most",
    "peak_reserved_bytes": "device, reserved",
}
_LAYER_COLUMNS: Final = (
    *(("layer", "text"), ("type", "text"), ("self", "ms"), ("share", "share"), ("total", "ms"), ("calls", "count")),
    *(("forward", "ms"), ("± std", "ms"), ("p95", "ms"), ("backward", "ms"), ("± std", "ms")),
    *(("output", "bytes"), ("FLOP/s", "count")),
)

_DEVICE_COLUMNS: Final = (("forward, launched ahead", "ms"), ("launched late", "share"))


def views_of(told: Profile, resources: Profile) -> list[dict[str, Any]]:
    """`told`: a profile; `resources`: the curves of its run."""
    made = (
        ("layers", "Layer profiling", _layers(told)),
        ("memory", "Memory profiling", _memory(told, resources.get("memory") or {})),
        ("bottlenecks", "Bottlenecks", _bottlenecks(told)),
        ("gpu", "GPU utilisation", _gpus(resources.get("gpu") or {}, told)),
        ("backends", "Backend comparison", _backends(told["by_hand"].get("backend_comparison") or {})),
        ("ranks", "Distributed training", _ranks(told)),
    )
    return [{"name": name, "title": title, "text": text, "charts": charts} for name, title, (text, charts) in made]


def _bars(title: str, values: Mapping[str, Any], unit: str, spread: Sequence[float | None] | None = None) -> Chart:
    given = {"labels": list(values), "values": list(values.values()), "unit": unit}
    return {"title": title, "kind": "bars", "spread": spread, **given}


def _compared(title: str, column: str, values: Mapping[str, float | None], unit: str) -> Chart:
    """A row each, with its share of them all."""
    whole = sum(value for value in values.values() if value is not None)
    rows = [[name, value, None if value is None or not whole else value / whole] for name, value in values.items()]
    return _table(title, ((column, "text"), ("time", unit), ("share", "share")), rows)


def _table(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> Chart:
    return {"title": title, "kind": "table", "columns": [list(one) for one in columns], "rows": [*map(list, rows)]}


# -- layers ------------------------------------------------------------------------------------------------------------


def _layers(told: Profile) -> tuple[str, list[Chart]]:
    by_hand = told["by_hand"].get("layer_stats") or {}
    charts = list(_phases(told))
    if told["layers"]:
        charts += _layer_charts(told["layers"])
    elif by_hand:
        charts += _layers_by_hand(by_hand)
    else:
        said = "No layer was timed yet. The first steps are; a model whose layers are never called has none."
        return said, charts
    return _said_of_steps(told), charts


def _said_of_steps(told: Profile) -> str:
    step, said = told["step_ms"], []
    if step["mean"] is not None:
        said.append(f"{told['steps']:,} of {told['all_steps']:,} steps were timed: {step['mean']:.3g} ms a step")
        said += [] if step["jitter"] is None else [f"it varies by {step['jitter']:.0%}"]
    if told["phases_ms"]["outside"] is None and told["layers"]:
        said.append(f"loss and what lies outside of layers: `neural profile {_script(told)}` times them")
    return "; ".join(said)


def _script(told: Profile) -> str:
    return str(told["script"] or "train.py").replace("\\", "/").rpartition("/")[2]


def _phases(told: Profile) -> Iterator[Chart]:
    known = {("outside layers" if name == "outside" else name): value for name, value in told["phases_ms"].items()}
    if any(value is not None for value in known.values()):
        step = told["step_ms"]["mean"]
        rows = [[name, value, None if value is None or not step else value / step] for name, value in known.items()]
        yield _table("Phases of a step", (("phase", "text"), ("a step", "ms"), ("share", "share")), rows)


def _layer_charts(layers: Sequence[Profile]) -> list[Chart]:
    timed = [row for row in layers if row["forward_ms"]["mean"] is not None]
    first = sorted(timed, key=lambda row: -row["forward_ms"]["mean"])[:MOST_BARS]
    values = {row["path"]: row["forward_ms"]["mean"] for row in first}
    spread = [row["forward_ms"]["std"] for row in first]
    on_device = any(row["late_share"] is not None for row in layers)
    rows = [
        [
            *(row[name] for name in ("path", "type", "self_ms", "share", "total_ms", "calls")),
            *(row["forward_ms"][name] for name in ("mean", "std", "p95")),
            *(row["backward_ms"][name] for name in ("mean", "std")),
            *(row["memory_bytes"], row["flops_per_s"]),
            *([row["device_ms"], row["late_share"]] if on_device else []),
        ]
        for row in layers[:MOST_ROWS]
    ]
    shown = _bars("Forward of one call", values, "ms", spread)
    title, columns = "Layers: self and total of a step, forward and backward of a call", _LAYER_COLUMNS
    return [shown, _table(title, (*columns, *(_DEVICE_COLUMNS if on_device else ())), rows)]


def _layers_by_hand(stats: Profile) -> list[Chart]:
    ordered = sorted(stats.items(), key=lambda each: -(each[1].get("mean_time") or 0.0))
    names = ("mean_time", "std_time", "min_time", "max_time")
    rows = [[name, one.get("call_count"), *(_times(one.get(key), 1e3) for key in names)] for name, one in ordered]
    columns = (("layer", "text"), ("calls", "count"), *((name, "ms") for name in ("mean", "± std", "min", "max")))
    return [_table("Layers told by hand", columns, rows[:MOST_ROWS])]


# -- memory ------------------------------------------------------------------------------------------------------------


def _memory(told: Profile, curves: Profile) -> tuple[str, list[Chart]]:
    memory, charts = told["memory"], list(_memory_lines(told, curves))
    parts = {label: memory[name] for name, label in _PARTS.items() if memory.get(name) is not None}
    if parts:
        charts.append(_table("What it is used for", (("for", "text"), ("size", "bytes")), list(parts.items())))
    held = {one["layer"]: one["bytes"] for one in memory["held_at_peak"] or ()}
    if held:
        charts.append(_bars("Kept for the backward, by layer", held, "bytes"))
    charts += _leaks(told)
    if memory["out_of_memory"] is not None:
        charts.append(_out_of_memory(memory["out_of_memory"]))
    said = [] if charts else ["No memory was measured yet: it is looked at every second or so."]
    if memory["activation_bytes"] is None and told["layers"]:
        said.append(f"What layers allocate and keep: `neural profile --memory {_script(told)}` measures it.")
    return " ".join(said), charts


def _memory_lines(told: Profile, curves: Profile) -> Iterator[Chart]:
    for name, curve in curves.items():
        label = name.removesuffix("_bytes").replace("rss", "process").replace("_", " ")
        yield _band(f"Memory: {label}", curve["steps"], curve["values"], "bytes")
    taken = told["by_hand"].get("memory_snapshots") or ()
    for name, label in (("cpu_memory_mb", "process"), ("gpu_memory_mb", "device")):
        known = [each for each in taken if each.get(name) is not None]
        if known:
            values = [each[name] * MB for each in known]
            yield _band(f"Memory told by hand: {label}", _at_end(told, known), values, "bytes")


def _leaks(told: Profile) -> Iterator[Chart]:
    columns = (("leak", "text"), ("grew by", "bytes"), ("a step", "bytes"), ("surely", "share"), ("line", "text"))
    names = ("summary", "growth_bytes", "bytes_per_step", "confidence", "source")
    rows = [[one[name] for name in names] for one in told["leaks"]]
    by_hand = (told["by_hand"].get("memory_leak_summary") or {}).get("leaks") or ()
    for one in by_hand:
        around = f"around {', '.join(one['layers_involved'])}"
        grew = (_times(one.get(name), MB) for name in ("increase_mb", "growth_rate_mb_per_step"))
        rows.append([around, *grew, None, None])
    if rows:
        yield _table("Leaks", columns, rows)


def _out_of_memory(fact: Profile) -> Chart:
    rows = [[label, fact.get(name)] for name, label in _PARTS.items() if fact.get(name) is not None]
    rows += [[one["layer"], one["saved_bytes"]] for one in fact["layers"]]
    return _table(f"Memory ran out: {fact['error']}", (("what lived where", "text"), ("bytes", "bytes")), rows)


# -- bottlenecks -------------------------------------------------------------------------------------------------------

ENOUGH: Final = 5  # steps


def _bottlenecks(told: Profile) -> tuple[str, list[Chart]]:
    texts = [(name, "text") for name in ("severity", "type", "what", "what to do", "line")]
    names = ("severity", "type", "summary", "recommendation", "source", "share")
    rows = [[one[name] for name in names] for one in told["bottlenecks"]]
    rows += _bottlenecks_by_hand(told["by_hand"])
    if not rows:
        timed = told["steps"] >= ENOUGH
        return (
            "Nothing stands out: no phase or layer holds the others back."
            if timed
            else f"{told['steps']} steps were timed; {ENOUGH} are needed to tell."
        ), []
    return "", [_table("Bottlenecks", [*texts, ("share of a step", "share")], rows)]


def _bottlenecks_by_hand(told: Profile) -> Iterator[list[Any]]:
    """What was told of a layer beside what to do about it, then the advice that is of none of them."""
    advice = list(told.get("recommendations") or ())
    for one in told.get("bottlenecks") or ():
        over = one.get("overhead_percentage")
        what = one["layer"] if over is None else f"{one['layer']}: {over:.0f} % above the threshold"
        for kind in one["bottleneck_type"] or [None]:
            mine = [each for each in advice if (each.get("layer"), each.get("type")) == (one["layer"], kind)]
            said = mine[0] if mine else {}
            advice = [each for each in advice if each not in mine]
            yield [said.get("priority"), kind, what, said.get("recommendation"), None, None]
    for one in advice:
        what = one.get("layer") or one.get("category")
        yield [one.get("priority"), one.get("type"), what, one["recommendation"], None, None]


# -- devices, backends, ranks ------------------------------------------------------------------------------------------


def _gpus(devices: Profile, told: Profile) -> tuple[str, list[Chart]]:
    """Four panels for each: how busy, how full, how warm, how much power."""
    charts = [
        _band(f"{device}: {title}", curves[name]["steps"], curves[name]["values"], unit)
        for device, curves in devices.items()
        for name, (title, unit, _, _) in PANELS.items()
        if name in curves
    ]
    taken = told["by_hand"].get("gpu_metrics") or ()
    for title, unit, name, factor in PANELS.values():
        known = [each for each in taken if each.get(name) is not None]
        if known:
            values = [each[name] * factor for each in known]
            charts.append(_band(f"Told by hand: {title}", _at_end(told, known), values, unit))
    missing = "No GPU was measured: the process sees none, or nvidia-ml-py is missing (`neural doctor` tells which)."
    return "" if charts else missing, charts


def _backends(comparison: Profile) -> tuple[str, list[Chart]]:
    layers, chosen = comparison.get("layer_comparisons") or {}, comparison.get("backends") or []
    if not layers:
        return (
            "One backend, or none. `neural profile model.neural --compare-backends pytorch,onnx` runs several; "
            "`update_profiling_data` shows here what a ComparativeProfiler was told."
        ), []
    rows = [
        [name, one["fastest_backend"]]
        + [_times(one["backend_data"].get(backend, {}).get("mean_time"), 1e3) for backend in chosen]
        for name, one in layers.items()
    ]
    summary = comparison.get("summary") or {}
    totals = {name: _times(value, 1e3) for name, value in (summary.get("total_times") or {}).items()}
    columns = (("layer", "text"), ("fastest", "text"), *((backend, "ms") for backend in chosen))
    drawn = [_compared("All layers", "backend", totals, "ms")] if totals else []
    return str(summary.get("recommendation") or ""), [*drawn, _table("Layers", columns, rows)]


def _ranks(told: Profile) -> tuple[str, list[Chart]]:
    metrics = told["by_hand"].get("distributed_metrics") or {}
    balance, talking = metrics.get("load_balance") or {}, metrics.get("communication") or {}
    times, charts, said = balance.get("node_times") or {}, [], []
    if len(told["ranks"]) > 1:
        steps = {f"rank {one['rank']}": one["step_ms"] for one in told["ranks"]}
        known = [value for value in steps.values() if value is not None]
        if known:
            said.append(f"the slowest rank takes {max(known) / max(min(known), 1e-9):.2f} times as long as the fastest")
        waits = [[name, one["step_ms"], one["data_ms"]] for name, one in zip(steps, told["ranks"], strict=True)]
        charts.append(_table("Time of a step", (("rank", "text"), ("step", "ms"), ("waiting for data", "ms")), waits))
    if times:
        said += [] if balance["imbalance_factor"] is None else [f"imbalance {balance['imbalance_factor']:.2f}"]
        charts.append(_compared("Nodes", "node", times, "s"))
    kinds = talking.get("by_operation_type") or {}
    if kinds:
        spent = {name: one.get("total_time_ms") for name, one in kinds.items()}
        charts.append(_compared("Communication", "operation", spent, "ms"))
    if talking.get("total_communication_time_ms") is not None:
        said.append(f"communication {talking['total_communication_time_ms']:.3g} ms")
    alone = "One process. `update_profiling_data` shows here what a DistributedTrainingProfiler was told."
    return "; ".join(said) if charts else alone, charts


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _at_end(told: Profile, points: Sequence[Any]) -> list[int]:
    """Told by hand: nobody knows at which step."""
    return [max(told["all_steps"] - 1, 0)] * len(points)


def _band(title: str, steps: Sequence[int], values: Sequence[float], unit: str) -> Chart:
    """A curve in at most `MOST_POINTS` stretches, the largest and the smallest value of each."""
    level = np.asarray([np.nan if value is None else value for value in values], np.float64)
    many = min(MOST_POINTS, len(level))
    starts = np.arange(many) * len(level) // max(many, 1)
    at = [int(steps[start]) for start in starts.tolist()]
    most, least = (_plain(reduce.reduceat(level, starts)) if many else [] for reduce in (np.fmax, np.fmin))
    x = at if len(set(at)) > 1 else list(range(len(at)))
    lines = [{"label": "most", "values": most}, {"label": "least", "values": least}]
    return {"title": title, "kind": "lines", "x": x, "steps": at, "lines": lines, "unit": unit}


def _plain(values: Any) -> list[float | None]:
    return [None if not np.isfinite(value) else float(value) for value in values]
