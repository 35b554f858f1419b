"""Whether the process of a run still lives."""

from __future__ import annotations

from datetime import datetime

from neuraldbg.records import RunInfo


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
