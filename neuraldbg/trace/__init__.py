"""What happened: the trace of a run, written beside the training and read by everybody else."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuraldbg.trace.heatmap import Heatmap
    from neuraldbg.trace.names import Names
    from neuraldbg.trace.opening import open_trace
    from neuraldbg.trace.query import News, Trace
    from neuraldbg.trace.rows import Rows
    from neuraldbg.trace.rundir import create_run
    from neuraldbg.trace.writer import TraceWriter

__all__ = ["Heatmap", "Names", "News", "Rows", "Trace", "TraceWriter", "create_run", "open_trace"]

_HOMES = {
    "Heatmap": "heatmap",
    "Names": "names",
    "News": "query",
    "Rows": "rows",
    "Trace": "query",
    "TraceWriter": "writer",
    "create_run": "rundir",
    "open_trace": "opening",
}


def __getattr__(name: str) -> Any:
    """Fetched when first used: a script under the debugger must not find numpy imported before its own first line."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
