"""The tables of docs/overhead.md and its plots, from the kept results; what is written by hand below them stays."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from pathlib import Path
from typing import Any

from arms import BARE, COVERS, OURS
from pairs import Outcome

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
DOCS = HERE.parent.parent / "docs"
BY_HAND = "## Behind the figures\n"
BARS = {"default": {"mlp": 1.06, "resnet": 1.03, "gpt": 1.03}, "full": {"mlp": 1.35, "resnet": 1.12, "gpt": 1.12}}
SHOWN = {
    "naive": "hooks with `.item()`",
    "detect_anomaly": "torch detect_anomaly",
    "profiler": "torch.profiler, shapes and memory",
    "wandb": "wandb.watch(log='all', log_freq=1)",
    "tensorboard": "tensorboard add_histogram",
    "underflow_overflow": "Hugging Face DebugUnderflowOverflow",
    "neuraldbg_1_3_2": "neuraldbg 1.3.2 of PyPI",
    "control": "control: a second bare process",
}
IN_SHORT = (
    "In short, for steps on a CPU: of 0.1 s and more by default as good as nothing, with `--budget full` 3 to 6 %; of",
    "6 to 10 ms 5 to 8 % and a quarter; of less than a millisecond half of it and more. The first 20 updates cost",
    "more, as everything is measured in them: a twelfth of a long step, a tenth of a second in all of short ones. A",
    "*bar* is what we want to reach, a *pair* a turn of each process and one back, a *start* all processes made anew.",
)
TITLES = {
    "programs": "CPU time of a training step over that of a bare one from update 21 on, with the interval of 95 %.",
    "first": "The same of updates 1 to 20, of which everything is measured (the bar is that of every step in full).",
}
ABOUT = {
    "mlp": "20 linear layers of 256, batch 64",
    "resnet": "ResNet-18-like: 8 blocks of 32 to 256 channels, 32 x 32, batch 16",
    "gpt": "GPT, 6 layers of 256, 4 x 128 tokens, vocabulary 2,048",
}


def machine() -> dict[str, Any]:
    import torch

    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []:
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    return {"cpu": model, "cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()}


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def keep(outcome: Outcome | None, also: dict[str, Any], *, first: bool = False) -> None:
    """Adds to what is there: programs, and arms of a program, may be measured one by one."""
    results = kept()
    results.update(also)
    if "steps" in also:
        results["growth_machine"] = machine()
    if outcome is not None:
        program = results.setdefault("first" if first else "programs", {}).setdefault(outcome.program, {})
        load = round(os.getloadavg()[2], 1)
        for name, ratio in outcome.ratios.items():
            program[name] = {
                "ratio": ratio.value, "low": ratio.low, "high": ratio.high, "pairs": ratio.pairs,
                "counts": outcome.counts(name), "bare_ms": outcome.bare_ms, "load": load,
                "viewer": outcome.viewer_share.get(name), "machine": machine(),
                "date": time.strftime("%Y-%m-%d", time.gmtime()),
            }  # fmt: skip
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def write() -> None:
    results = kept()
    text = [
        "# What watching costs",
        "",
        "Tables and plots are made by `python benchmarks/overhead --write` from `benchmarks/overhead/results.json`.",
        "Its docstring says how: processes that take turns, CPU time with all threads, a bare process that never",
        "imported neuraldbg, a bootstrap over starts and pairs, a second bare process as control.",
        "`make bench` runs a short version of it, some minutes long, and the other benchmarks beside it.",
        "",
        *IN_SHORT,
        "",
        _conditions(results),
        "",
        *_table(results, "programs"),
        *_table(results, "first"),
        *_read(results),
        *_growth(results),
    ]
    page = DOCS / "overhead.md"
    text.append(_by_hand(page.read_text() if page.exists() else ""))
    page.write_text("\n".join(text).rstrip() + "\n")


def _by_hand(page: str) -> str:
    """What follows on the page."""
    _, found, rest = page.partition(BY_HAND)
    return f"{BY_HAND}{rest}" if found else ""


def _conditions(results: dict[str, Any]) -> str:
    programs = [program for key in TITLES for program in results.get(key, {}).values()]
    arms = [arm for program in programs for arm in program.values()]
    loads = [arm["load"] for arm in arms if arm["load"] is not None]
    busy = f" Load of the machine meanwhile: {min(loads)} to {max(loads)}." if loads else ""
    places = sorted({_place(arm["machine"]) for arm in arms})
    return f"Machine: {'; '.join(places)}. CPU, one thread, {min(arm['date'] for arm in arms)} or later.{busy}"


def _place(where: dict[str, Any]) -> str:
    return f"{where['cpu']}, {where['cores']} cores, torch {where['torch']}, Python {where['python']}"


def _table(results: dict[str, Any], key: str) -> list[str]:
    programs = results.get(key, {})
    names = [name for name in ABOUT if name in programs]
    if not names:
        return []
    steps = [f"{ABOUT[name]}{_bare(next(iter(programs[name].values()))['bare_ms'])}" for name in names]
    order = [*(arm.name for arm in OURS), "control", *COVERS]
    lines = [
        TITLES[key],
        "",
        "| | " + " | ".join(steps) + " | what it captures |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    covers = {**{arm.name: arm.covers for arm in OURS}, **COVERS, "control": BARE.covers}
    for arm in order:
        if not any(arm in programs[name] for name in names):
            continue
        shown = SHOWN.get(arm, f"**neuraldbg, `--budget {'1%' if arm == 'default' else arm}`**")
        bars = BARS.get("full" if key == "first" and arm == "default" else arm, {})
        cells = [_cell(programs[name].get(arm), bars.get(name)) for name in names]
        lines.append(f"| {shown} | " + " | ".join(cells) + f" | {covers[arm]} |")
    return [*lines, ""]


def _bare(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f" ({milliseconds:.1f} ms of CPU)"


def _cell(found: dict[str, Any] | None, bar: float | None) -> str:
    if found is None:
        return "-"
    text = f"{found['ratio']:.3f} ({found['low']:.3f}-{found['high']:.3f}, {found['pairs']} pairs)"
    if not found["counts"]:
        text += " *"
    return text + (f"; bar {bar:.2f}" if bar else "")


def _read(results: dict[str, Any]) -> list[str]:
    viewers = [
        arm["viewer"] for program in results.get("programs", {}).values() for arm in program.values() if arm["viewer"]
    ]
    lines = ["\\* does not count: control misses 1.00, or an interval is wider than 1 % to each side.", ""]
    if viewers:
        lines += [f"The viewer beside it took {min(viewers):.1%} to {max(viewers):.1%} of a core (headless).", ""]
    memory = results.get("memory")
    if memory:
        lines += [
            f"Memory at the size of GPT-2 (124 M parameters) under the default budget: {memory['uss_mb']:.0f} MB "
            f"of its own (USS) more between steps, {memory['peak_mb']:.0f} MB more at the peak.",
            "",
        ]
    return lines


def _growth(results: dict[str, Any]) -> list[str]:
    lines = []
    where = f" On {_place(results['growth_machine'])}." if "growth_machine" in results else ""
    if results.get("layers"):
        points = results["layers"]
        plot(DOCS / "overhead-layers.svg", points, "layers", "microseconds added to a step, every step in full")
        each = [f"{value / count:.1f} us at {count:,.0f}" for count, value, *_ in points]
        said = f"Per layer: {', '.join(each)}.{where}"
        lines += ["## With layers", "", "![cost by layers](overhead-layers.svg)", "", said, ""]
    if results.get("steps"):
        points = results["steps"]
        plot(DOCS / "overhead-steps.svg", points, "steps made", "watched over bare, two layers, default budget")
        each = [f"{ratio:.3f} and {mb:.0f} MB after {count:,.0f}" for count, ratio, mb in points]
        lines += ["## With steps", "", "![cost by steps](overhead-steps.svg)", "", f"{'; '.join(each)}.{where}", ""]
    return lines


def plot(file: Path, points: list[list[float]], along: str, up: str) -> None:
    """A line through points, both axes logarithmic where the values span more than a decade."""
    width, height, left, right, top, low = 600, 330, 70, 550, 60, 280
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    across, upward = _axis(xs, left, right), _axis([0.0, *ys] if max(ys) < 10 else ys, low, top)
    dots = [(across(x), upward(y)) for x, y in zip(xs, ys, strict=True)]
    path = " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(dots))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} {top}V{low}H{right}" fill="none" stroke="#888"/>',
        f'<path d="{path}" fill="none" stroke="#1668c7" stroke-width="2"/>',
    ]
    for (x, y), (value, height_of) in zip(dots, zip(xs, ys, strict=True), strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1668c7"/>')
        parts.append(f'<text x="{x:.1f}" y="{low + 16}" text-anchor="middle">{value:,.0f}</text>')
        parts.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{_shown(height_of)}</text>')
    parts.append(f'<text x="{left}" y="24">{up}</text>')
    parts.append(f'<text x="{width / 2}" y="{low + 34}" text-anchor="middle">{along}</text></svg>')
    file.write_text("\n".join(parts) + "\n")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _axis(values: list[float], start: float, end: float) -> Any:
    lowest, highest = min(values), max(values)
    if lowest > 0 and highest / lowest > 10:
        return lambda value: start + (end - start) * math.log(value / lowest) / math.log(highest / lowest)
    return lambda value: start + (end - start) * (value - lowest) / ((highest - lowest) or 1.0)
