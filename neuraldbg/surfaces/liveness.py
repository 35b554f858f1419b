"""Whether the process of a run still lives."""

from __future__ import annotations

import socket
import time
from datetime import datetime
from typing import TYPE_CHECKING

from neuraldbg.records import RunInfo
from neuraldbg.store.heard import heard_of

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

RANKS_PATIENCE_S = 10.0


def is_alive(run: RunInfo) -> bool | None:
    """True when the process of a run without an end still runs here; None where that cannot be known.

    Never False: the run may have been recorded on another machine, and process numbers are used again.
    """
    if run.ended or run.pid is None:
        return None
    try:
        import psutil

        process_started = psutil.Process(run.pid).create_time()
        run_started = datetime.fromisoformat(run.started.replace("Z", "+00:00")).timestamp()
    except (ImportError, ValueError, OverflowError):
        return None
    except psutil.Error:
        return None
    return True if abs(run_started - process_started) < 600 and process_started <= run_started + 1 else None


def goes_on(trace: Trace) -> bool | None:
    """True of a run that goes on here, or that was heard of elsewhere a moment ago; None where that cannot be known."""
    if trace.run.ended:
        return None
    heard = heard_of(trace.path)
    return is_alive(trace.run) if heard is None else heard.recently or None


def wait_for_ranks(trace: Trace, patience_s: float = RANKS_PATIENCE_S) -> None:
    """The first rank of several is over, and the verdict is for all: the others of this machine may say their end."""
    from neuraldbg.analysis.ranks import processes

    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        ended = {fact["rank"] for fact in trace.facts("end")}
        open_ones = [one for one in processes(trace).values() if one.folder not in ended]
        if not any(one.host == socket.gethostname() and one.pid is not None and _lives(one.pid) for one in open_ones):
            return
        time.sleep(0.1)
        trace.refresh()


def _lives(pid: int) -> bool:
    """One that has ended and that nobody has asked after yet does not."""
    try:
        import psutil

        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except ImportError:
        return False
    except psutil.Error:
        return False
