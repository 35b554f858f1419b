"""Small tools around a profiler and its reports."""

from __future__ import annotations

import functools
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from neuraldbg.surfaces.terminal.figures import ending

from .profiler_manager import ProfilerManager, write_json

WIDTH: Final = 80
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
    """A comprehensive report as text of at most 80 columns. What it has not is not told."""
    lines = ["Profiling report"]
    seconds = _part(report, "profiling_session").get("duration_seconds")
    if seconds is not None:
        lines.append(f"  {seconds:.2f} s")
    for part in (_layers, _memory, _nodes_and_backends, _advice):
        lines += part(report)
    return "\n".join(lines) + "\n"


def _part(report: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        found = report.get(name)
        report = found if isinstance(found, Mapping) else {}
    return report


def _layers(report: Mapping[str, Any]) -> Iterator[str]:
    told = _part(report, "layer_profiling", "summary")
    if not told:
        return
    yield from ("", f"Layers: {told['total_layers']}, {told['total_calls']} calls, {told['total_time']:.3f} s")
    if told["slowest_layers"]:
        yield f"  {'slowest':<58}{'mean of a call':>17}"
    for name, seconds in told["slowest_layers"]:
        yield f"  {ending(str(name), 56):<58}{seconds * 1e3:>14.3f} ms"


def _memory(report: Mapping[str, Any]) -> Iterator[str]:
    told, leaks = _part(report, "memory_profiling", "summary"), _part(report, "memory_leaks")
    if told or leaks:
        yield ""
    if told.get("peak_memory_mb") is not None:
        grown = told.get("memory_growth")
        yield f"Memory: peak {told['peak_memory_mb']:.1f} MB" + (f", grew by {grown:.1f} MB" if grown else "")
    if told.get("peak_gpu_memory_mb") is not None:
        yield f"GPU memory: peak {told['peak_gpu_memory_mb']:.1f} MB"
    if leaks:
        found = f"{leaks['total_memory_leaked_mb']:.1f} MB in {leaks['leak_count']}" if leaks["has_leaks"] else "none"
        yield f"Leaks: {found}"


def _nodes_and_backends(report: Mapping[str, Any]) -> Iterator[str]:
    said = [
        f"{one['severity']} {one['type']}: {one['details']}; {one['recommendation']}"
        for one in _part(report, "distributed_training", "bottleneck_analysis").get("bottlenecks") or ()
    ]
    backends = _part(report, "backend_comparison", "summary").get("recommendation")
    if said or backends:
        yield ""
    yield from (line for each in said for line in _wrapped(f"Nodes: {each}"))
    if backends:
        yield from _wrapped(f"Backends: {backends}")


def _advice(report: Mapping[str, Any]) -> Iterator[str]:
    advice = [
        *(_part(report, "bottlenecks").get("recommendations") or ()),
        *(report.get("gpu_recommendations") or ()),
    ]
    if advice:
        yield from ("", "Recommendations:")
    for each in advice:
        details = f" ({each['details']})" if each.get("details") else ""
        yield from _wrapped(f"  [{each['priority']}] {each['recommendation']}{details}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ")


def export_profiling_data_to_json(data: Mapping[str, Any], filepath: str | Path) -> None:
    """As strict JSON."""
    write_json(data, filepath)


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
