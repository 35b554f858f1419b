"""What happened: the trace of a run, written beside the training and read by everybody else."""

from __future__ import annotations

from neuraldbg.trace.heatmap import Heatmap
from neuraldbg.trace.names import Names
from neuraldbg.trace.opening import open_trace
from neuraldbg.trace.query import News, Trace
from neuraldbg.trace.rows import Rows
from neuraldbg.trace.rundir import create_run
from neuraldbg.trace.writer import TraceWriter

__all__ = ["Heatmap", "Names", "News", "Rows", "Trace", "TraceWriter", "create_run", "open_trace"]
