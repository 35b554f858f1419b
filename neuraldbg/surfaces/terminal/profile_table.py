"""A profile on a terminal: the phases of a step, the most expensive layers, what holds it back, what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from neuraldbg.surfaces.terminal.console import ascii_only
from neuraldbg.surfaces.terminal.figures import DASH, ending, figure, percent, quantity, shortened, size

if TYPE_CHECKING:
    from rich.console import Console

Profile = Mapping[str, Any]
ENOUGH = 5  # timed steps
_BAR = 24
_HEADS = ("Layer", "Type", "self", "%", "total", "calls", "fwd", "p95", "bwd", "out", "FLOP/s")
_WIDTHS = (0, 11, 7, 5, 7, 6, 7, 7, 7, 8, 7)  # the first takes what is left
_NARROW = ("total", "p95", "FLOP/s")  # left out where there is no room


def render_profile(told: Profile, console: Console, *, top: int = 10) -> None:
    for line, style in lines_of(told, console.width, top=top, plain=ascii_only(console.file)):
        console.print(line, style=style, soft_wrap=True)


def lines_of(told: Profile, width: int, *, top: int = 10, plain: bool = False) -> Iterator[tuple[str, str | None]]:
    """The lines and their styles; none is longer than `width`."""
    yield _headline(told), "bold"
    if not told["layers"] and all(value is None for value in told["phases_ms"].values()):
        yield from _by_hand(told["by_hand"].get("layer_stats") or {}, width, top)
        yield from _advice_lines(told, width)
        return
    if any(value is not None for value in told["phases_ms"].values()):
        yield "", None
        yield from ((line, None) for line in _phase_lines(told, plain))
    yield "", None
    yield from _layer_lines(told, width, top)
    more = len(told["layers"]) - top
    if more > 0:
        yield f"... and {more} more (--top {len(told['layers'])}, or --json)", "dim"
    yield from _advice_lines(told, width)
    yield from _memory_lines(told)


def _by_hand(stats: Profile, width: int, top: int) -> Iterator[tuple[str, str | None]]:
    """A run that was only told of layers (`update_profiling_data`)."""
    if not stats:
        yield "Nothing was timed: no forward pass of a model was seen in a measured step.", None
        return
    names = {"mean_time": "mean", "std_time": "std", "max_time": "max"}
    room = max(width - 8 - 10 * len(names), 12)
    yield "", None
    yield f"{'Layer, told by hand':<{room}}{'calls':>8}" + "".join(f"{name:>10}" for name in names.values()), "bold"
    for layer, one in sorted(stats.items(), key=lambda each: -(each[1].get("mean_time") or 0.0))[:top]:
        times = [one.get(name) for name in names]
        cells = "".join(f"{figure(None if time is None else time * 1e3):>10}" for time in times)
        calls = one.get("call_count")
        yield f"{ending(layer, room - 1):<{room}}{DASH if calls is None else f'{calls:,.0f}':>8}{cells}", None
    yield "ms of one call", "dim"


def _headline(told: Profile) -> str:
    step = told["step_ms"]
    if not told["all_steps"]:
        return "No update of a model was seen: there are no steps and no phases"
    timed = f"{told['steps']:,} steps timed of {told['all_steps']:,}"
    if step["mean"] is None:
        return f"{timed}; the time of a step is not known"
    return f"{timed}, {figure(step['mean'])} ms a step (median {figure(step['p50'])}, p95 {figure(step['p95'])})"


def _phase_lines(told: Profile, plain: bool) -> Iterator[str]:
    phases, step_ms = told["phases_ms"], told["step_ms"]["mean"]
    for name, value in phases.items():
        share = None if value is None or not step_ms else value / step_ms
        bar = "" if share is None else ("#" if plain else "█") * max(round(_BAR * min(share, 1.0)), share > 0.005)
        label = "outside layers" if name == "outside" else name
        yield f"{label:<15}{figure(value):>8} ms {percent(share):>8}  {bar}".rstrip()


def _layer_lines(told: Profile, width: int, top: int) -> Iterator[tuple[str, str | None]]:
    rows, stepped = told["layers"][:top], told["step_ms"]["mean"] is not None
    if not rows:
        yield "No layers: what the model does is its forward itself.", None
        return
    shown = [name for name in _HEADS if width >= 96 or name not in _NARROW]
    widths = {name: given for name, given in zip(_HEADS, _WIDTHS, strict=True) if name in shown}
    widths["Layer"] = max(width - sum(widths.values()) - len(shown) + 1, 12)
    yield _line({name: name for name in shown}, widths), "bold"
    for row in rows:
        yield _line(_cells(row), widths), None
    whole = "self and total are" if "total" in shown else "self is"
    yield f"ms: {whole} of {'one step' if stepped else 'all calls'}, fwd and bwd of one call", "dim"
    late = sum(1 for row in rows if (row["late_share"] or 0.0) > 0.5)
    if late:
        yield f"{late} of these waited for the host to launch them, and take less: device_ms in --json", "dim"


def _cells(row: Profile) -> dict[str, str]:
    share = row["share"]
    return {
        "Layer": row["path"],
        "Type": row["type"] or DASH,
        "self": figure(row["self_ms"]),
        "%": DASH if share is None else f"{share * 100:.1f}",
        "total": figure(row["total_ms"]),
        "calls": f"{row['calls']}",
        "fwd": figure(row["forward_ms"]["mean"]),
        "p95": figure(row["forward_ms"]["p95"]),
        "bwd": figure(row["backward_ms"]["mean"]),
        "out": size(row["memory_bytes"]),
        "FLOP/s": DASH if row["flops_per_s"] is None else quantity(int(row["flops_per_s"])),
    }


def _line(cells: Mapping[str, str], widths: Mapping[str, int]) -> str:
    parts = []
    for name, width in widths.items():
        text = (ending if name == "Layer" else shortened)(cells[name], width)
        parts.append(f"{text:<{width}}" if name in ("Layer", "Type") else f"{text:>{width}}")
    return " ".join(parts).rstrip()


def _advice_lines(told: Profile, width: int) -> Iterator[tuple[str, str | None]]:
    for line, style in _advice(told):
        parts = textwrap.wrap(line, width, subsequent_indent=" " * 7, drop_whitespace=True) or [""]
        yield from ((part, style) for part in parts)


def _advice(told: Profile) -> Iterator[tuple[str, str | None]]:
    if told["bottlenecks"] or told["leaks"]:
        yield "", None
    for one in told["bottlenecks"]:
        yield f"{one['severity']:<7}{one['type']}: {one['summary']}", "bold"
        yield f"       {one['recommendation']}", None
    for leak in told["leaks"]:
        yield f"leak   {leak['summary']}", "bold"
    if not told["bottlenecks"] and not told["leaks"] and (told["layers"] or told["all_steps"]):
        yield "", None
        yield _nothing(told), None


def _nothing(told: Profile) -> str:
    if told["step_ms"]["mean"] is None or told["steps"] < ENOUGH:
        return f"What holds a training back is told of {ENOUGH} timed steps or more."
    return "Nothing stands out: no phase or layer holds the others back."


def _memory_lines(told: Profile) -> Iterator[tuple[str, str | None]]:
    memory = told["memory"]
    if memory["activation_bytes"] is None:
        return
    yield "", None
    yield "Memory of a step", "bold"
    for name, label in (
        ("parameter_bytes", "parameters"),
        ("gradient_bytes", "gradients"),
        ("optimizer_bytes", "optimizer"),
        ("activation_bytes", "kept for backward"),
        ("peak_rss_bytes", "process, most"),
        ("peak_device_bytes", "device, most"),
        ("peak_reserved_bytes", "device, reserved"),
    ):
        if memory[name] is not None:
            yield f"{label:<18}{size(memory[name]):>10}", None
    for held in (memory["held_at_peak"] or [])[:5]:
        yield f"  {ending(held['layer'], 40):<40}{size(held['bytes']):>10}", None
