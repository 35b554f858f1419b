"""A condition tried on what was recorded: where it would have held, before anybody waits for it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from neuraldbg.control.breakpoints import KEYS, STEP_KEYS
from neuraldbg.control.conditions import Condition, parse_condition
from neuraldbg.errors import UnknownLayer
from neuraldbg.records import Kind, Site
from neuraldbg.surfaces.web import data, inspector
from neuraldbg.trace import Trace

MOST_ENTRIES = 100_000  # layers times steps that one question may look at; then only the last steps are


def rehearse(trace: Trace, text: str | None, pattern: str | None) -> dict[str, Any]:
    """ConditionError and UnknownLayer say what is wrong; without a condition every execution is a hit."""
    condition = parse_condition(text, KEYS) if text and text.strip() else None
    sites = _meant(trace, pattern) if pattern else []
    steps = _last_steps(trace, len(sites))
    looked_at, hits, last = 0, 0, None
    series = _of_the_run(trace, steps) if condition and condition.keys & set(STEP_KEYS) else {}
    for site in sites:
        for entry in inspector.executions_between(trace, site, steps, nan=True):
            looked_at += 1
            if condition is None or _holds(condition, {**series.get(entry["step"], {}), **entry}):
                hits += 1
                if last is None or entry["step"] >= last["step"]:
                    last = {"step": entry["step"], "layer": trace.canonical(site)}
    return {
        "condition": text or "",
        "keys": sorted(condition.keys) if condition else [],
        "would_hit": hits,
        "looked_at": looked_at,
        "layers": [trace.canonical(site) for site in sites],
        "steps": list(steps) if sites else None,
        "last": last,
    }


def _holds(condition: Condition, entry: dict[str, Any]) -> bool:
    known = {**entry, "zero_ratio": entry.get("dead_ratio")}
    try:
        return bool(condition({name: value for name, value in known.items() if value is not None}))
    except ArithmeticError:
        return False


def _meant(trace: Trace, pattern: str) -> list[Site]:
    """By name, alias or glob, as a breakpoint means them."""
    layers = data.frame_layers(trace)
    found = [
        site
        for site in layers
        if any(fnmatchcase(name, pattern) for name in (trace.canonical(site), *trace.aliases(site)))
    ]
    if not found:
        raise UnknownLayer(pattern, [trace.canonical(site) for site in layers])
    return found


def _last_steps(trace: Trace, layers: int) -> tuple[int, int]:
    last = trace.last_step or 0
    return max(0, last - MOST_ENTRIES // max(1, layers) + 1), last


def _of_the_run(trace: Trace, steps: tuple[int, int]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for name in STEP_KEYS:
        if name in data.series_names(trace):
            rows = trace.history(name, Kind.SCALAR, between=steps)
            for step, value in zip(rows.steps.tolist(), rows.value.tolist(), strict=True):
                found.setdefault(step, {})[name] = value
    return found
