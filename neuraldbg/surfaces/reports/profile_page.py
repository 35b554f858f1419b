"""A profile as one page of HTML: the phases and the six views, drawn without scripts or anything fetched from
elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from neuraldbg.surfaces.terminal.figures import figure, percent, quantity, size

Profile = Mapping[str, Any]
MB: Final = 2**20
NOTHING: Final = "<p>Nothing was measured.</p>"
_STYLE: Final = """body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;color:#1c2330}
@media(prefers-color-scheme:dark){body{background:#12161d;color:#dfe5ee}}table{border-collapse:collapse;width:100%}
th,td{text-align:right;padding:.2rem .6rem;border-bottom:1px solid #8884}th:first-child,td:first-child,th:nth-child(2),
td:nth-child(2){text-align:left}.bar{display:inline-block;height:.7em;background:#4c8dff}h2{margin-top:2rem}
svg{width:100%;height:8rem;display:block}
polyline{fill:none;stroke:#4c8dff;stroke-width:1.5;vector-effect:non-scaling-stroke}
.four{display:grid;grid-template-columns:1fr 1fr;gap:1rem}.high{color:#d64545}.medium{color:#c98a1a}"""


def html_of(told: Profile, resources: Mapping[str, Any] | None = None) -> str:
    head = f"<title>Profile of {html.escape(str(told['run']))}</title>"
    top = f'<!doctype html>\n<html lang="en"><meta charset="utf-8">{head}<style>{_STYLE}</style>'
    return f"{top}<body>{''.join(_sections(told, resources or {}))}</body></html>\n"


def _sections(told: Profile, resources: Mapping[str, Any]) -> Iterator[str]:
    step, by_hand = told["step_ms"], told["by_hand"]
    yield f"<h1>Profile of {html.escape(str(told['run']))}</h1>"
    yield (
        f"<p>{told['steps']:,} steps timed of {told['all_steps']:,}; {figure(step['mean'])} ms a step, median "
        f"{figure(step['p50'])}, p95 {figure(step['p95'])}.</p>"
    )
    yield "<h2>Phases of a step</h2>" + _phases(told)
    yield "<h2>Layers</h2>" + (_layers(told["layers"]) if told["layers"] else _layers_by_hand(by_hand))
    yield "<h2>Memory</h2>" + _memory(told, resources.get("memory") or {})
    yield "<h2>Bottlenecks</h2>" + _bottlenecks(told, by_hand)
    yield "<h2>GPU</h2>" + _gpus(resources.get("gpu") or {}, by_hand.get("gpu_metrics") or [])
    yield "<h2>Backends</h2>" + _backends(by_hand.get("backend_comparison") or {})
    yield "<h2>Distributed</h2>" + _nodes(by_hand.get("distributed_metrics") or {})


def _phases(told: Profile) -> str:
    step_ms = told["step_ms"]["mean"]
    rows = []
    for name, value in told["phases_ms"].items():
        share = None if value is None or not step_ms else min(value / step_ms, 1.0)
        label = "outside layers" if name == "outside" else name
        rows.append([label, _bar(share), f"{figure(value)} ms", percent(share)])
    return _table(["phase", "", "a step", "share"], rows, raw=(1,))


def _bar(share: float | None) -> str:
    return "" if share is None else f'<span class="bar" style="width:{min(share, 1.0) * 30:.1f}rem"></span>'


def _layers(layers: Sequence[Profile]) -> str:
    """Times of one call with their standard deviations."""
    heads = ["layer", "type", "self ms", "share", "total ms", "calls", "forward ms", "± std", "backward ms", "± std"]
    rows = [
        [
            row["path"],
            row["type"] or "-",
            *(figure(row["self_ms"]), percent(row["share"]), figure(row["total_ms"]), f"{row['calls']:,}"),
            *(figure(row[f"{way}_ms"][name]) for way in ("forward", "backward") for name in ("mean", "std")),
            size(row["memory_bytes"]),
            "-" if row["flops_per_s"] is None else quantity(int(row["flops_per_s"])),
        ]
        for row in layers
    ]
    return _table([*heads, "output", "FLOP/s"], rows)


def _layers_by_hand(by_hand: Profile) -> str:
    stats = by_hand.get("layer_stats") or {}
    slowest = max((one["mean_time"] for one in stats.values()), default=0.0)
    rows = [
        [name, _bar(one["mean_time"] / slowest if slowest else None), f"{one['call_count']:,}"]
        + [figure(one[key] * 1e3) for key in ("mean_time", "std_time", "min_time", "max_time")]
        for name, one in sorted(stats.items(), key=lambda each: -each[1]["mean_time"])
    ]
    heads = ["layer", "", "calls", "mean ms", "± std", "min", "max"]
    return _table(heads, rows, raw=(1,)) if rows else NOTHING


def _memory(told: Profile, curves: Mapping[str, Any]) -> str:
    memory, parts = told["memory"], []
    names = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "peak_rss_bytes")
    known = [(name, memory[name]) for name in (*names, "peak_device_bytes") if memory[name] is not None]
    if known:
        rows = [[name.removesuffix("_bytes").replace("_", " "), "", size(value)] for name, value in known]
        parts.append(_table(["", "", "bytes"], rows))
    parts += [_curve(f"{name} (MB)", curve["time_s"], _scaled(curve["values"], MB)) for name, curve in curves.items()]
    taken = [each for each in told["by_hand"].get("memory_snapshots") or () if each.get("cpu_memory_mb") is not None]
    if taken:
        times, used = [each["timestamp"] for each in taken], [each["cpu_memory_mb"] for each in taken]
        parts.append(_curve("process (MB)", times, used))
    parts += [f"<p><b>leak</b> {html.escape(one['summary'])}</p>" for one in told["leaks"]]
    return "".join(parts) or NOTHING


def _scaled(values: Sequence[float], unit: float) -> list[float]:
    return [value / unit for value in values]


def _bottlenecks(told: Profile, by_hand: Profile) -> str:
    items = [
        f'<li><b class="{one["severity"]}">{one["severity"]} {one["type"]}</b> {html.escape(one["summary"])}. '
        f"{html.escape(one['recommendation'])}.</li>"
        for one in told["bottlenecks"]
    ]
    items += [
        f"<li><b>{html.escape(', '.join(one['bottleneck_type']))}</b> {html.escape(one['layer'])}: "
        f"{one['overhead_percentage']:.0f} % above the threshold.</li>"
        for one in by_hand.get("bottlenecks") or ()
    ]
    return f"<ul>{''.join(items)}</ul>" if items else "<p>Nothing stands out.</p>"


def _gpus(devices: Mapping[str, Any], taken: Sequence[Profile]) -> str:
    """Four panels for each device: how busy, how full, how warm, how much power."""
    panels = {
        "utilization_percent": ("utilisation (%)", 1.0, "gpu_utilization_percent"),
        "memory_bytes": ("memory (MB)", MB, "memory_allocated_mb"),
        "temperature_celsius": ("temperature (C)", 1.0, "temperature_celsius"),
        "power_watts": ("power (W)", 1.0, "power_watts"),
    }
    parts = []
    for device, curves in devices.items():
        drawn = [
            _curve(f"{device} {label}", curves[name]["time_s"], _scaled(curves[name]["values"], unit))
            for name, (label, unit, _) in panels.items()
            if name in curves
        ]
        parts.append(f'<div class="four">{"".join(drawn)}</div>')
    for label, _, name in panels.values() if taken else ():
        known = [(each["timestamp"], each[name]) for each in taken if each.get(name) is not None]
        if known:
            parts.append(_curve(label, *map(list, zip(*known, strict=True))))
    return "".join(parts) or "<p>No GPU was measured.</p>"


def _backends(comparison: Profile) -> str:
    layers, chosen = comparison.get("layer_comparisons") or {}, comparison.get("backends") or []
    if not layers:
        return "<p>One backend, or none: nothing to compare.</p>"
    rows = [
        [name, one["fastest_backend"]]
        + [figure(_times(one["backend_data"].get(backend, {}).get("mean_time"), 1e3)) for backend in chosen]
        for name, one in layers.items()
    ]
    text = html.escape(str((comparison.get("summary") or {}).get("recommendation") or ""))
    return f"<p>{text}</p>" + _table(["layer", "fastest", *(f"{backend} ms" for backend in chosen)], rows)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _nodes(metrics: Profile) -> str:
    balance, talking = metrics.get("load_balance") or {}, metrics.get("communication") or {}
    times = balance.get("node_times") or {}
    if not times:
        return "<p>One process: nothing to balance.</p>"
    longest = max(times.values()) or 1.0
    rows = [[node, _bar(seconds / longest), f"{figure(seconds)} s"] for node, seconds in times.items()]
    talked = figure(talking.get("total_communication_time_ms"))
    said = f"imbalance {balance['imbalance_factor']:.2f}; communication {talked} ms"
    return f"<p>{said}</p>" + _table(["node", "", "time"], rows, raw=(1,))


def _curve(label: str, x: Sequence[float], y: Sequence[float]) -> str:
    known = [(a, b) for a, b in zip(x, y, strict=True) if b is not None and b == b]
    if not known:
        return ""
    low, high = min(b for _, b in known), max(b for _, b in known)
    first, last = known[0][0], known[-1][0]
    wide, tall = (last - first) or 1, (high - low) or 1
    points = " ".join(f"{(a - first) / wide * 100:.2f},{28 - (b - low) / tall * 26:.2f}" for a, b in known)
    drawn = f'<svg viewBox="0 0 100 30" preserveAspectRatio="none"><polyline points="{points}"/></svg>'
    return f"<figure><figcaption>{html.escape(label)}: {figure(low)} to {figure(high)}</figcaption>{drawn}</figure>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], raw: Sequence[int] = ()) -> str:
    top = "".join(f"<th>{html.escape(head)}</th>" for head in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{c if at in raw else html.escape(c)}</td>" for at, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"
