"""Layer times out of the trace's spans: a flame graph, a summary by layer, a Chrome trace."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraldbg.records import Phase
from neuraldbg.trace import Trace
from neuraldbg.trace.tables import PHASE_CODE

_PHASES = {code: phase.value for phase, code in PHASE_CODE.items()}


def flame(trace: Trace, step: int) -> list[dict[str, Any]]:
    """Spans of one step in the order they began: seconds since the first of them."""
    rows = trace.table("spans", between=(step, step))
    order = np.lexsort((rows["depth"], rows["start_ns"], rows["rank"]))
    if not len(order):
        return []
    began = rows["start_ns"].min()
    found = []
    for at in order.tolist():
        start = int(rows["start_ns"][at] - began) * 1e-9
        duration = int(rows["duration_ns"][at]) * 1e-9
        found.append(
            {
                "name": trace.canonical(int(rows["site"][at])),
                "start": start,
                "end": start + duration,
                "duration": duration,
                "depth": int(rows["depth"][at]),
                "phase": _PHASES.get(int(rows["phase"][at])),
                "rank": int(rows["rank"][at]),
            }
        )
    return found


def layer_times(trace: Trace) -> dict[str, dict[str, float]]:
    """Forward calls of every layer, in seconds."""
    rows = trace.table("spans", ["site", "phase", "duration_ns"])
    keep = rows["phase"] == PHASE_CODE[Phase.FORWARD]
    site, seconds = rows["site"][keep], rows["duration_ns"][keep] * 1e-9
    order = np.argsort(site, kind="stable")
    site, seconds = site[order], seconds[order]
    starts = np.flatnonzero(np.r_[True, site[1:] != site[:-1]]) if len(site) else np.empty(0, np.intp)
    counts = np.diff(np.r_[starts, len(site)])
    found = {}
    for at, start in enumerate(starts.tolist()):
        mine = seconds[start : start + counts[at]]
        found[trace.canonical(int(site[start]))] = {
            "total_time": float(mine.sum()),
            "call_count": int(counts[at]),
            "min_time": float(mine.min()),
            "max_time": float(mine.max()),
            "avg_time": float(mine.mean()),
        }
    return found


def chrome_trace(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The same spans for chrome://tracing and Perfetto: microseconds, one process a rank."""
    events = [
        {
            "name": span["name"],
            "cat": span["phase"],
            "ph": "X",
            "ts": span["start"] * 1e6,
            "dur": span["duration"] * 1e6,
            "pid": span["rank"],
            "tid": 0,
        }
        for span in found
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
