"""A run's calls in the file format of speedscope: one evented profile per rank, times in microseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from neuraldbg.analysis.profile import nested_calls

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
MOST_CALLS: Final = 200_000  # a page that shows more is no longer moved by hand


def speedscope(trace: Trace, step: int | None = None) -> dict[str, Any]:
    """Every call opens and closes once, inside the one around it; those that would overlap (as on a device) follow
    each other."""
    frames: dict[str, int] = {}
    profiles = []
    for rank, calls in nested_calls(trace, step, most=MOST_CALLS).items():
        events = list(_events(calls, frames))
        end = events[-1]["at"] if events else 0
        profiles.append(
            {
                "type": "evented",
                "name": f"rank {rank}",
                "unit": "microseconds",
                "startValue": 0,
                "endValue": end,
                "events": events,
            }
        )
    return {
        "$schema": SCHEMA,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
        "name": trace.run.id,
        "activeProfileIndex": 0 if profiles else None,
        "exporter": "neural-debugger",
    }


def _events(calls: Sequence[Mapping[str, Any]], frames: dict[str, int]) -> Iterator[dict[str, Any]]:
    """`calls` in the order they begin, each with `depth`. A call never outlives the one around it, nor begins before
    the one in front of it has ended."""
    open_calls: list[tuple[int, float]] = []
    at = 0.0
    for call in calls:
        while len(open_calls) > call["depth"]:
            frame, end = open_calls.pop()
            at = max(at, min([end, *(outer for _, outer in open_calls)]))
            yield {"type": "C", "frame": frame, "at": at}
        at = max(at, call["start_us"])
        name = f"{call['name']} ({call['phase']})" if call["phase"] else call["name"]
        frame = frames.setdefault(name, len(frames))
        open_calls.append((frame, at + call["duration_us"]))
        yield {"type": "O", "frame": frame, "at": at}
    while open_calls:
        frame, end = open_calls.pop()
        at = max(at, min([end, *(outer for _, outer in open_calls)]))
        yield {"type": "C", "frame": frame, "at": at}
