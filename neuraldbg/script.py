"""A script or module, run as the main program: the same `__main__`, argv, path and tracebacks as under plain Python."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from neuraldbg.errors import AbortedByUser, ScriptNotFound, StoppedOnNaN, nearest

STOPPED = 6  # the exit code of a run that --alert-on-nan stopped
_OURS = str(Path(__file__).resolve().parent) + os.sep


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended: its exit code, the last line of an exception, the signal it should die of, and the line of
    the user's that raised."""

    exit_code: int
    error: str | None = None
    signal: int | None = None
    error_at: str | None = None  # "train.py:42"


@dataclass(frozen=True, slots=True)
class Program:
    """Something that can be run as `__main__`."""

    file: str
    argv: tuple[str, ...]
    first_path: str  # sys.path[0]
    spec: ModuleSpec | None = None  # of `-m`

    def run(self) -> Outcome:
        """Run to the end. Exceptions are printed as Python prints them, without frames of ours."""
        module = self._main_module()
        sys.modules["__main__"] = module
        sys.argv[:] = self.argv
        if sys.path:
            sys.path[0] = self.first_path
        return outcome_of(lambda: exec(self._code(), module.__dict__))

    def _code(self) -> CodeType:
        if self.spec is not None:
            loader: Any = self.spec.loader
            code: CodeType = loader.get_code(self.spec.name)
            return code
        return compile(Path(self.file).read_bytes(), self.file, "exec", dont_inherit=True)

    def _main_module(self) -> ModuleType:
        module = ModuleType("__main__")
        loader = self.spec.loader if self.spec else SourceFileLoader("__main__", self.file)
        module.__dict__.update(
            __file__=self.file,
            __builtins__=sys.modules["builtins"],
            __spec__=self.spec,
            __loader__=loader,
            __package__=self.spec.parent if self.spec else None,
            __cached__=self.spec.cached if self.spec else None,
            __annotations__={},
        )
        return module


def outcome_of(call: Callable[[], object]) -> Outcome:
    """Run what is the user's to its end, as the main program."""
    try:
        call()
    except SystemExit as stop:
        return Outcome(_exit_code(stop.code))
    except BaseException as error:  # noqa: BLE001  the script's own, whatever it is: printed as Python would
        return _uncaught(error)
    return Outcome(0)


def load_script(target: str, args: tuple[str, ...]) -> Program:
    path = Path(target)
    if path.is_dir():
        main = path / "__main__.py"
        if not main.is_file():
            raise ScriptNotFound(f"can't run {target!r}: it is a directory without __main__.py")
        return Program(os.path.join(os.getcwd(), str(main)), (target, *args), str(path.absolute()))
    if not path.is_file():
        raise ScriptNotFound(f"can't open file {target!r}: no such file{_similar(path)}")
    if not os.access(path, os.R_OK):
        raise ScriptNotFound(f"can't open file {target!r}: no permission to read it")
    return Program(os.path.join(os.getcwd(), target), (target, *args), str(path.resolve().parent))


def _similar(path: Path) -> str:
    folder = path.parent
    known = [each.name for ending in ("py", "neural", "nr", "rnr") for each in folder.glob(f"*.{ending}")]
    close = nearest(path.name, known, 1)
    return f"; did you mean {str(folder / close[0]) if str(folder) != '.' else close[0]!r}?" if close else ""


def load_module(name: str, args: tuple[str, ...]) -> Program:
    """`-m name`: a package means its `__main__`."""
    if sys.path:
        sys.path[0] = os.getcwd()
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise ScriptNotFound(f"can't run -m {name}: {error}") from error
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        raise ScriptNotFound(f"can't run -m {name}: no module of that name (searched from {os.getcwd()})")
    return Program(spec.origin, (spec.origin, *args), os.getcwd(), spec)


def _exit_code(code: object) -> int:
    """What `sys.exit(code)` means: None is 0, a number itself, anything else is printed and is 1."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if os.name == "posix" else code
    print(code, file=sys.stderr)
    return 1


def _uncaught(error: BaseException) -> Outcome:
    for one in _chain(error):
        one.__traceback__ = _without_ours(one.__traceback__)
    flush_streams()
    if isinstance(error, StoppedOnNaN):
        print(f"neuraldbg: stopped before the update: {error}", file=sys.stderr)
        return Outcome(STOPPED, f"StoppedOnNaN: {error}", error_at=_last_line(error.__traceback__))
    if isinstance(error, AbortedByUser):
        print("neuraldbg: the training was ended from the debugger", file=sys.stderr)
    else:
        _show(error)
    last = traceback.format_exception_only(type(error), error)[-1].strip()
    if isinstance(error, AbortedByUser):
        return Outcome(130, f"KeyboardInterrupt: {error}", int(signal.SIGINT))
    if isinstance(error, KeyboardInterrupt):
        return Outcome(130, last, int(signal.SIGINT))
    return Outcome(1, last, error_at=_last_line(error.__traceback__))


def _last_line(trace: TracebackType | None) -> str | None:
    """The innermost line outside installed packages and the standard library."""
    library = os.path.dirname(os.__file__) + os.sep
    found = None
    while trace is not None:
        file = os.path.abspath(trace.tb_frame.f_code.co_filename)
        if f"{os.sep}site-packages{os.sep}" not in file and not file.startswith((library, _OURS)):
            here = os.getcwd() + os.sep
            shown = file[len(here) :] if file.startswith(here) else os.path.basename(file)
            found = f"{shown}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    queue: list[BaseException | None] = [error]
    while queue:
        one = queue.pop()
        if one is not None and one not in found:
            found.append(one)
            queue += [one.__cause__, one.__context__]
    return found


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback less the frames of the debugger."""
    entries = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
            entries.append(trace)
        trace = trace.tb_next
    rest = None
    for entry in reversed(entries):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def _show(error: BaseException) -> None:
    """As the interpreter does it, also when the script's own excepthook fails."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as failure:  # noqa: BLE001  the script's own
        failure.__traceback__ = _without_ours(failure.__traceback__)
        if failure.__context__ is error:
            failure.__context__ = None  # we call the hook while handling the error; the interpreter does not
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)


def flush_streams() -> None:
    """Both streams, whatever the script has done to them."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (ValueError, OSError, AttributeError):
            pass  # closed, replaced by None, or its reader is gone


def hide_own_imports() -> None:
    """A user may have a click.py of their own: what we imported for ourselves is not in the way of their import."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "click"]:
        del sys.modules[name]


def wait_for_threads() -> None:
    """Python waits for non-daemon threads before it ends; training may go on in one of them. Those of an executor that
    nobody shut down it tells to stop first, which we leave to it: they may be wanted after us."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread is not threading.current_thread() and not thread.daemon:
            idle = 0  # looks: between two pieces of work one is idle for an instant
            while thread.is_alive() and idle < 3:
                thread.join(0.02)
                idle = idle + 1 if _waits_for_work(thread) else 0


def _waits_for_work(thread: threading.Thread) -> bool:
    """Whether it belongs to an executor that has nothing for it to do."""
    pools = sys.modules.get("concurrent.futures.thread")
    queue = getattr(pools, "_threads_queues", {}).get(thread)
    frame = sys._current_frames().get(thread.ident or -1)
    worker = getattr(getattr(pools, "_worker", None), "__code__", None)
    return queue is not None and frame is not None and frame.f_code is worker and queue.empty()


def die_by_signal(outcome: Outcome) -> None:
    """A script ended by Ctrl-C dies of SIGINT, so that shells see what they expect."""
    if outcome.signal is not None and hasattr(signal, "raise_signal"):
        flush_streams()
        signal.signal(outcome.signal, signal.SIG_DFL)
        signal.raise_signal(signal.Signals(outcome.signal))
