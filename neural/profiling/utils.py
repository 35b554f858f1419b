"""Small tools around a profiler and its reports."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from neural.profiling.profiler_manager import ProfilerManager

F = TypeVar("F", bound=Callable[..., Any])


def profile_function(
    profiler_manager: ProfilerManager, layer_name: str | None = None, metadata: dict[str, Any] | None = None
) -> Callable[[F], F]:
    """A decorator: each call is one of the layer; without a name, the function's own."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with profiler_manager.profile_layer(layer_name or function.__name__, metadata):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


@contextmanager
def timed_execution(label: str = "block") -> Iterator[dict[str, Any]]:
    """Gives a dict whose `seconds` is there at the end, and prints it."""
    told: dict[str, Any] = {"label": label, "seconds": None}
    start = time.perf_counter()
    try:
        yield told
    finally:
        told["seconds"] = time.perf_counter() - start
        print(f"{label}: {told['seconds'] * 1e3:.3f} ms")


def format_profiling_report(report: Mapping[str, Any]) -> str:
    """A comprehensive report as text."""
    lines = ["Profiling report"]
    session = report.get("profiling_session") or {}
    if session.get("duration_seconds") is not None:
        lines.append(f"  {session['duration_seconds']:.2f} s")
    summary = (report.get("layer_profiling") or {}).get("summary")
    if summary:
        lines += [
            "",
            f"Layers: {summary['total_layers']}, {summary['total_calls']} calls, {summary['total_time']:.3f} s",
        ]
        lines += [f"  {name:<40}{seconds * 1e3:>10.3f} ms" for name, seconds in summary["slowest_layers"]]
    memory = (report.get("memory_profiling") or {}).get("summary")
    if memory and memory["peak_memory_mb"] is not None:
        grown = memory["memory_growth"]
        lines += [
            "",
            f"Memory: peak {memory['peak_memory_mb']:.1f} MB" + (f", grew by {grown:.1f} MB" if grown else ""),
        ]
    leaks = report.get("memory_leaks")
    if leaks:
        told = (
            f"{leaks['total_memory_leaked_mb']:.1f} MB in {leaks['leak_count']} leaks" if leaks["has_leaks"] else "none"
        )
        lines.append(f"Leaks: {told}")
    lines += _advice(report)
    return "\n".join(lines) + "\n"


def _advice(report: Mapping[str, Any]) -> list[str]:
    judged = report.get("bottlenecks") or {}
    advice = [*(judged.get("recommendations") or ()), *(report.get("gpu_recommendations") or ())]
    if not advice:
        return []
    return ["", "Recommendations:", *(f"  [{each['priority']}] {each['recommendation']}" for each in advice)]


def export_profiling_data_to_json(data: Mapping[str, Any], filepath: str | Path) -> None:
    from neural.profiling.profiler_manager import _plain

    text = json.dumps(data, indent=2, allow_nan=False, default=_plain)
    Path(filepath).write_text(text + "\n", encoding="utf-8")


def compare_profiling_sessions(session1: Mapping[str, Any], session2: Mapping[str, Any]) -> dict[str, Any]:
    """Two comprehensive reports: positive is better in the second. What one of them lacks is not compared."""
    improvements: dict[str, Any] = {}
    first, second = (_in(each, "layer_profiling", "total_time") for each in (session1, session2))
    if first is not None and second is not None:
        faster = (first - second) / first * 100 if first else None
        told = {"session1_ms": first * 1e3, "session2_ms": second * 1e3, "speedup_percent": faster}
        improvements["total_time"] = told
    first, second = (_in(each, "memory_profiling", "peak_memory_mb") for each in (session1, session2))
    if first is not None and second is not None:
        less = (first - second) / first * 100 if first else None
        improvements["memory"] = {"session1_mb": first, "session2_mb": second, "reduction_percent": less}
    sessions = [each.get("profiling_session") for each in (session1, session2)]
    return {"session1": sessions[0], "session2": sessions[1], "improvements": improvements}


def _in(report: Mapping[str, Any], part: str, name: str) -> float | None:
    value = ((report.get(part) or {}).get("summary") or {}).get(name)
    return None if value is None else float(value)
