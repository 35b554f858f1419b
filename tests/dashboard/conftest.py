from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from neural.dashboard import dashboard, profiler_utils
from neural.dashboard.hooks import hooks

MADE = ("anomaly_detector", "breakpoint_manager", "profiler", "pushed_run", "app", "server", "inspector_history")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, and a module as it is after the first import."""
    monkeypatch.chdir(tmp_path)
    yield
    dashboard.close_run()
    hooks.clear()
    profiler_utils.initialize_helpers()
    profiler_utils.breakpoint_helper.__init__()  # type: ignore[misc]
    profiler_utils.anomaly_monitor.set_alert_callback(None)
    profiler_utils.layer_profiler.enable()
    for name in MADE:
        vars(dashboard).pop(name, None)
    for data in (dashboard.MODEL_DATA, dashboard.PROFILING_DATA, dashboard.TRACE_DATA):
        data.clear()
