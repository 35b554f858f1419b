"""The dashboard for a loop that reports its layers by hand. Importing it does nothing; the first push opens a run.

`python neural/dashboard/dashboard.py` serves the page for the runs of the current folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: its package is looked for above this folder, whose files are no modules alone
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    __package__ = import_module("neural.dashboard").__name__

from neuraldbg.analysis.anomalies import AnomalyDetector
from neuraldbg.errors import UsageError

from .breakpoints import BreakpointManager
from .debugger_backend import DebuggerBackend
from .entries import plain_entry, shown_profile
from .performance import PerformanceProfiler

if TYPE_CHECKING:
    from neuraldbg.control.channel import ChannelServer

    from .pushed import PushedRun
    from .serving import Serving

__all__ = [
    "TRACE_DATA",
    "AnomalyDetector",
    "BreakpointManager",
    "DebuggerBackend",
    "PerformanceProfiler",
    "anomaly_detector",
    "breakpoint_manager",
    "close_run",
    "get_trace_data",
    "profiler",
    "pushed_run",
    "start_dashboard_server",
    "trace_data",
    "update_dashboard_data",
    "update_profiling_data",
]

PROFILING_KEYS = (
    "layer_stats",
    "memory_snapshots",
    "bottlenecks",
    "recommendations",
    "gpu_metrics",
    "execution_history",
    "memory_leak_summary",
    "distributed_metrics",
    "backend_comparison",
)
USAGE = """usage: python neural/dashboard/dashboard.py [-h]

Serves the page and the API for every run in ./neuraldbg_runs, the newest first, until Ctrl-C. Host and port come from
config.yaml or NEURALDBG_HOST and NEURALDBG_PORT; `neural view RUN --port N` serves one run."""
TRACE_DATA: list[dict[str, Any]] = []
trace_data = TRACE_DATA
MODEL_DATA: dict[str, Any] = {}
PROFILING_DATA: dict[str, Any] = {}

# one of each for the process, made when it is first asked for
anomaly_detector: AnomalyDetector
breakpoint_manager: BreakpointManager
profiler: PerformanceProfiler
pushed_run: PushedRun
serving: Serving
channel: ChannelServer
app: Any
server: Any


def update_dashboard_data(
    new_model_data: Mapping[str, Any] | None = None,
    new_trace_data: Iterable[Mapping[str, Any]] | None = None,
    new_backend: str | None = None,
) -> None:
    """What the page shows from now on. Trace entries replace those before, are one step of the run, and are samples of
    the anomaly detector."""
    if new_model_data is not None and not isinstance(new_model_data, Mapping):
        raise UsageError("new_model_data is a dict; entries of layers go into new_trace_data=[...]")
    run = _the("pushed_run")
    if new_trace_data is not None:
        if isinstance(new_trace_data, Mapping | str):
            raise UsageError("new_trace_data is a list of entries, each a dict with a 'layer'")
        entries = [plain_entry(entry) for entry in new_trace_data]
        TRACE_DATA[:] = entries
        run.push(entries)
        for entry in entries:
            _the("anomaly_detector").add_sample(entry["layer"], _metrics(entry))
    if new_model_data is not None:
        MODEL_DATA.clear()
        MODEL_DATA.update(new_model_data)
        run.about("model_data", data=dict(new_model_data))
    if new_backend is not None:
        run.about("run", backend=str(new_backend), versions={})


def _metrics(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "layer"}


def push_entry(entry: dict[str, Any]) -> None:
    """One execution of one layer, as LayerExecutionWrapper tells it: added to the trace list, of which each layer keeps
    its newest ones (`history.inspector`)."""
    if "inspector_history" not in globals():
        from neuraldbg.config import load_config

        globals()["inspector_history"] = load_config().history.inspector
    TRACE_DATA.append(entry)
    if len(TRACE_DATA) > globals()["inspector_history"]:  # else no layer can have too many
        mine = (at for at, each in enumerate(TRACE_DATA) if each["layer"] == entry["layer"])
        if sum(each["layer"] == entry["layer"] for each in TRACE_DATA) > globals()["inspector_history"]:
            del TRACE_DATA[next(mine)]
    _the("pushed_run").push([entry], growing=True)


def update_profiling_data(data: Mapping[str, Any]) -> None:
    """Takes over what a profiler tells under the names of PROFILING_KEYS; other names are left alone."""
    if not isinstance(data, Mapping):
        raise UsageError(f"profiling data is a dict such as `profiler.get_dashboard_data()`, not {type(data).__name__}")
    told = {key: data[key] for key in PROFILING_KEYS if key in data}
    PROFILING_DATA.update(told)
    _the("pushed_run").about("profiling_data", **shown_profile(told))


def get_trace_data() -> list[dict[str, Any]]:
    """The entries of the last push: the list itself, also as `TRACE_DATA`."""
    return TRACE_DATA


def start_dashboard_server(host: str = "localhost", port: int = 5001) -> Serving:
    """Serves the page for what this process pushes, in a thread; `.url` says where, `.close()` ends it. If the port is
    taken, the next free one, and said so."""
    from .serving import Serving as Made

    with _reachable() as directory:
        made = globals()["serving"] = Made(directory, host, port)
    return made


def close_run() -> None:
    """Ends what pushing and serving began. The next push opens a new run."""
    for name in ("serving", "channel"):
        known = globals().pop(name, None)
        if known is not None:
            known.close()
    globals().pop("server", None)
    page = globals().pop("app", None)
    if page is not None:
        from .serving import close_page

        close_page(page)
    known = globals().get("pushed_run")
    if known is not None:
        known.close()


def _the(name: str) -> Any:
    """A thing of this module, made now if it is not there yet."""
    return globals().get(name) or __getattr__(name)


def __getattr__(name: str) -> Any:
    make = _MAKERS.get(name)
    if make is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = make()
    return made


def _make_detector() -> AnomalyDetector:
    from neuraldbg.config import load_config

    config = load_config()
    return AnomalyDetector(config.anomaly_sensitivity, config.history.anomaly)


def _make_breakpoints() -> BreakpointManager:
    from neuraldbg.config import load_config

    from .hooks import hooks

    given = load_config().breakpoints
    made = BreakpointManager(enabled=given.enabled, pause_on_condition=given.pause_on_condition)
    made.on_hold.append(lambda layer, data: hooks.fire("on_breakpoint", layer_name=layer, data=dict(data)))
    return made


def _make_profiler() -> PerformanceProfiler:
    made = PerformanceProfiler()
    made.on_end.append(lambda *call: _the("pushed_run").span(*call))
    return made


def _make_run() -> PushedRun:
    from .pushed import PushedRun

    return PushedRun()


def _make_app() -> Any:
    """The page of what this process pushes, with its breakpoints."""
    from .serving import page_of

    with _reachable() as directory:
        return page_of([directory])


@contextmanager
def _reachable() -> Iterator[Path]:
    """The directory of the pushed run, whose breakpoints can be set from outside from now on; not where no page comes
    of it: a loop would pause and nobody could continue it."""
    already = can_answer()
    directory: Path | None = _the("pushed_run").open()
    if directory is None:
        raise UsageError("there is nothing to serve: the run directory could not be written")
    channel = _the("channel")
    try:
        yield directory
    except BaseException:
        if not already:
            del globals()["channel"]
            channel.close()
        raise


def _make_channel() -> ChannelServer:
    from neuraldbg.control.channel import ChannelServer as Made

    from .remote import RemoteBreakpoints

    run = _the("pushed_run")
    return Made(RemoteBreakpoints(_the("breakpoint_manager"), lambda: int(run.step)), run.open())


_MAKERS: dict[str, Callable[[], Any]] = {
    "anomaly_detector": _make_detector,
    "breakpoint_manager": _make_breakpoints,
    "profiler": _make_profiler,
    "pushed_run": _make_run,
    "channel": _make_channel,
    "app": _make_app,
    "server": lambda: _the("app"),
}


def say(text: str) -> None:
    print(f"neuraldbg: {text}", file=sys.stderr, flush=True)


def can_answer() -> bool:
    """Whether somebody could continue a paused loop: the page is served, or it was asked for."""
    return "channel" in globals()


def main(words: Sequence[str] = ()) -> int:
    """Serves the runs of the current folder until Ctrl-C."""
    if {"-h", "--help"} & set(words):
        print(USAGE)
        return 0
    if words:
        print(f"neuraldbg: {words[0]!r} is no option of the dashboard; {USAGE}", file=sys.stderr)
        return 2
    from .serving import serve_folder

    return serve_folder(Path.cwd())


if __name__ == "__main__":
    from neural.dashboard.dashboard import main as serve_here

    sys.exit(serve_here(sys.argv[1:]))
