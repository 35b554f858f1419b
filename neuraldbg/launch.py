"""Running somebody's script as Python itself would, with the debugger beside it.

This process *is* the trainer: same pid, argv, working directory, stdin, stdout, signals and exit code.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from neuraldbg.capture.attachment import Attachment, Plan, package_parent
from neuraldbg.config import parse_budget
from neuraldbg.config.installation import namesake_notes, refuse_namesake
from neuraldbg.control.breakpoints import split_break
from neuraldbg.control.channel import ChannelServer
from neuraldbg.control.gate import Gate
from neuraldbg.control.reach import open_line
from neuraldbg.control.server_file import STAY
from neuraldbg.errors import RunDirectoryError
from neuraldbg.script import Outcome, Program, flush_streams, load_module, load_script, outcome_of
from neuraldbg.session.past import look_back
from neuraldbg.trace.rundir import create_run, new_run_info

VIEWER_PATIENCE_S = 60.0
PAGE_OPTIONS = ("--push-every", "--history", "--points", "--theme", "--charts")


@dataclass(frozen=True, slots=True)
class Request:
    """What `neural debug` was asked to do."""

    target: str
    args: tuple[str, ...] = ()
    module: bool = False
    out: Path | None = None
    budget: str = "1%"
    layers: tuple[str, ...] = ()
    max_disk_bytes: int = 2_000_000_000
    record_bytes: int = 0  # that a recording of every step may take; 0: none is made
    export: Path | None = None
    json: bool = False
    live: bool = True
    fail_on: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the analysis: thresholds, focus
    alert_on_nan: bool = False
    breakpoints: tuple[str, ...] = ()  # LAYER, or LAYER if CONDITION
    break_on: tuple[str, ...] = ()  # kinds of finding
    step: bool = False  # stop at the first layer
    breaking: bool = True  # breakpoints.enabled
    pausing: bool = True  # breakpoints.pause_on_condition
    serve: bool = True  # open the line over which a run can be asked to go on
    prompt: Any = None  # somebody at this terminal
    host: str = "127.0.0.1"
    port: int | None = None  # of the page; None: none is served
    # seconds between frames; executions, points kept in view; colours; charts, separated by commas (none given: all)
    page: tuple[float, int, int, str, str] = (1.0, 100, 1000, "dark", "")
    browser: bool = False  # open the page in the user's
    model: Any = None  # the target is a .neural file: read, checked, and what is run instead of a script
    arm_nan: int | None = None  # look at every operation from this update on, until a NaN or Inf is born


def run(request: Request) -> int:
    """Run the target to its end, have the verdict printed, and return the script's own exit code."""
    refuse_namesake()
    for note in namesake_notes():
        print(f"neuraldbg: {note}", file=sys.stderr)
    own_path = list(sys.path)
    program = _program(request)
    budget = parse_budget(request.budget)
    gate = _gate(request)
    run_dir = _run_directory(request)
    viewer = Viewer(run_dir, request, own_path)
    share = None if budget.full else float(budget.ratio)
    control = Control(run_dir, request, gate)
    attachment = Attachment(_plan(run_dir, share, request, resources=viewer.running), gate=gate)
    if gate is not None and request.record_bytes:
        look_back(gate, attachment)
    attachment.start()
    _hide_own_imports()
    began = time.monotonic()
    outcome = program.run()
    if gate is not None and outcome.signal is not None:
        gate.retire()  # a thread that is held would be waited for
    _wait_for_threads()
    _tell(request, attachment)
    attachment.close(
        exit_code=outcome.exit_code,
        error=outcome.error,
        error_at=outcome.error_at,
        duration_s=time.monotonic() - began,
        signal=outcome.signal,
    )
    control.close()
    verdict = viewer.finish(stay=control.somebody_is_here and outcome.signal is None)
    _die_by_signal(outcome)
    if outcome.exit_code == 0 and request.fail_on is not None:
        return verdict
    return outcome.exit_code


def profile(request: Request, *, memory: bool) -> tuple[Outcome, Path]:
    """Run the target to its end with its layers and phases timed and nothing else: no viewer, no page, no gate."""
    refuse_namesake()
    program = _program(request)
    budget = parse_budget(request.budget)
    run_dir = _run_directory(request)
    share = None if budget.full else float(budget.ratio)
    attachment = Attachment(replace(_plan(run_dir, share, request, resources=True), profile=True, memory=memory))
    attachment.start()
    _hide_own_imports()
    began = time.monotonic()
    outcome = program.run()
    _wait_for_threads()
    _tell(request, attachment)
    end = {"exit_code": outcome.exit_code, "error": outcome.error, "error_at": outcome.error_at}
    attachment.close(**end, duration_s=time.monotonic() - began, signal=outcome.signal)
    flush_streams()
    return outcome, run_dir


def fresh_process(words: Sequence[str], path: Sequence[str]) -> int:
    """One command of ours in a process of its own: what the script did to this one is not in its way."""
    search = [*(entry for entry in path if entry not in ("", os.getcwd())), package_parent()]
    code = f"import sys; sys.path[:] = {search!r}; from neuraldbg.surfaces.cli import main; main(sys.argv[1:])"
    return subprocess.run([sys.executable, "-c", code, *words], check=False).returncode


def die_as_it_did(outcome: Outcome) -> int:
    """The script's own exit code; a script that Ctrl-C ended takes us with it."""
    _die_by_signal(outcome)
    return outcome.exit_code


def _plan(run_dir: Path, share: float | None, request: Request, *, resources: bool) -> Plan:
    return Plan(
        str(run_dir),
        share,
        request.layers,
        request.max_disk_bytes,
        stop_on_nan=request.alert_on_nan,
        arm_step=request.arm_nan,
        focus=tuple(request.settings.get("focus", ())),
        resources=resources,
        record_bytes=request.record_bytes,
    )


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """A `.neural` file in the place of a script: its frames name its own lines."""

    model: Any

    def run(self) -> Outcome:
        return outcome_of(self.model.run)


def _tell(request: Request, attachment: Attachment) -> None:
    """What the reading of a `.neural` file found belongs to the run."""
    for finding in () if request.model is None else request.model.findings():
        attachment.fact("left_out", **finding)


def _program(request: Request) -> Program | ModelProgram:
    if request.model is not None:
        return ModelProgram(request.model)
    if request.module:
        return load_module(request.target, request.args)
    return load_script(request.target, request.args)


def _hide_own_imports() -> None:
    """A user may have a click.py of their own: what we imported for ourselves is not in the way of their import."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "click"]:
        del sys.modules[name]


def _wait_for_threads() -> None:
    """Python waits for non-daemon threads before it ends; training may go on in one of them."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _die_by_signal(outcome: Outcome) -> None:
    """A script ended by Ctrl-C dies of SIGINT, so that shells see what they expect."""
    if outcome.signal is not None and hasattr(signal, "raise_signal"):
        flush_streams()
        signal.signal(outcome.signal, signal.SIG_DFL)
        signal.raise_signal(signal.Signals(outcome.signal))


# -- control -----------------------------------------------------------------------------------------------------------


def _gate(request: Request) -> Gate | None:
    """With its first breakpoints: a mistake in one is told before anything is begun."""
    if not request.breaking:
        return None
    gate = Gate(pausing=request.pausing, say=_say)
    for text in request.breakpoints:
        layer, phase, condition = split_break(text)
        gate.breakpoints.add(layer, condition, phase=phase)
    for kind in request.break_on:
        gate.break_on(kind)
    gate.prompt = request.prompt
    return gate


class Control:
    """The gate of this process in a run, and the line over which a server reaches it."""

    def __init__(self, run_dir: Path, request: Request, gate: Gate | None) -> None:
        self._run_dir, self._gate = run_dir, gate
        self._served, self._at_terminal = request.port is not None, request.prompt is not None
        self._line: ChannelServer | None = None
        if gate is None:
            return
        gate.run_dir = run_dir
        if request.step:
            gate.stop_each("layer")
        if request.serve:
            self._open_line(gate)

    def _open_line(self, gate: Gate) -> None:
        try:
            self._line = open_line(gate, self._run_dir, served=self._served)
        except OSError as error:
            _say(f"nobody can reach this run from outside: {error}")

    @property
    def somebody_is_here(self) -> bool:
        """At a terminal, and may look at the page."""
        return self._served and self._at_terminal and (self._gate is None or not self._gate.left)

    def close(self) -> None:
        for one in self._gate.breakpoints if self._gate is not None else ():
            if one.hit_count > one.trigger_count:
                times = f"{one.hit_count} times" if one.hit_count > 1 else "once"
                _say(f"breakpoint {one.id} ({one.spec.layer}) was hit {times} and stopped {one.trigger_count}")
        if self._line is not None:
            self._line.close()


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # the terminal is gone, or the script has closed it
        print(f"neuraldbg: {text}", file=sys.stderr, flush=True)


# -- the run directory -------------------------------------------------------------------------------------------------


def _run_directory(request: Request) -> Path:
    """Where the run is recorded. A place that cannot be written must not stop a training: a temporary one is taken,
    and said."""
    command = ("-m", request.target, *request.args) if request.module else (request.target, *request.args)
    info = new_run_info(command, script=request.target, budget=request.budget, settings=request.settings)
    try:
        return create_run(info, out=request.out)
    except RunDirectoryError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        place = Path(tempfile.mkdtemp(prefix="neuraldbg-")) / info.id
        print(
            f"neuraldbg: {error.__cause__.strerror}: {error.__cause__.filename}; recording to {place}", file=sys.stderr
        )
        return create_run(info, out=place)


def _page_options(request: Request) -> list[str]:
    own = ["--host", request.host, "--port", str(request.port), *(["--browser"] if request.browser else [])]
    return [*own, *(f"{name}={value}" for name, value in zip(PAGE_OPTIONS, request.page, strict=True))]


# -- the viewer --------------------------------------------------------------------------------------------------------


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """The viewer inherits the block: a Ctrl-C while it is still starting does not end it. Ours comes a moment later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Viewer:
    """The child that reports. It learns of our end, however we end, from a pipe that only we hold open."""

    def __init__(self, run_dir: Path, request: Request, path: list[str]) -> None:
        reading, self._writing = os.pipe()
        options = ["--parent-fd", str(reading), "--max-disk", str(request.max_disk_bytes)]
        options += ["--live"] if request.live else []
        options += ["--eager"] if request.break_on else []
        options += ["--export", str(request.export)] if request.export else []
        options += ["--json"] if request.json else []
        options += ["--fail-on", request.fail_on] if request.fail_on else []
        options += _page_options(request) if request.port is not None else []
        search = [*(entry for entry in path if entry not in ("", os.getcwd())), package_parent()]
        code = f"import sys; sys.path[:] = {search!r}; from neuraldbg.surfaces.viewer import main; sys.exit(main())"
        self._command = [sys.executable, "-c", code, str(run_dir), *options]
        self._process: subprocess.Popen[bytes] | None = None
        self._start(self._command, reading)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._let_go)

    def _start(self, command: list[str], reading: int) -> None:
        try:
            with _interrupts_held():
                self._process = subprocess.Popen(command, pass_fds=(reading,), stdin=subprocess.DEVNULL)
        except OSError as error:
            print(f"neuraldbg: no verdict will be printed, the viewer did not start: {error}", file=sys.stderr)
        finally:
            os.close(reading)

    @property
    def running(self) -> bool:
        return self._process is not None

    def _second(self, by: int) -> int:
        """Somebody has killed the viewer: another one has the last word. The first could not give the bottom row
        back."""
        if sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty():
            sys.stderr.write("\x1b7\x1b[r\x1b8\x1b[J")
        _say(f"the viewer was killed ({signal.Signals(-by).name}); the verdict comes from another one")
        reading, writing = os.pipe()
        at = self._command.index("--parent-fd") + 1
        kept = [word for word in self._command if word != "--live"]
        self._start([*kept[:at], str(reading), *kept[at + 1 :]], reading)
        os.close(writing)
        assert self._process is not None
        return self._process.wait(VIEWER_PATIENCE_S)

    def _farewell(self) -> int:
        """Wait for Ctrl-C, whatever the script has made of it."""
        assert self._process is not None
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self._process.wait()
        except KeyboardInterrupt:
            self._process.terminate()
            return self._process.wait(VIEWER_PATIENCE_S)
        finally:
            signal.signal(signal.SIGINT, handler)

    def _let_go(self) -> None:
        """A forked worker must not keep the pipe open after us."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1

    def finish(self, *, stay: bool = False) -> int:
        """Close our end, wait for the report, and return the viewer's exit code (0, or 6 and 7 by --fail-on). With
        `stay`, somebody is at this terminal: the page stays until Ctrl-C."""
        flush_streams()
        if self._process is None:
            self._let_go()
            return 0
        if stay and self._process.poll() is None:
            with suppress(OSError):  # it went in this very moment
                os.write(self._writing, STAY)
        self._let_go()
        try:
            code = self._farewell() if stay else self._process.wait(VIEWER_PATIENCE_S)
            return max(code if code >= 0 else self._second(code), 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            print("neuraldbg: the viewer did not finish in time; `neural report` prints the verdict", file=sys.stderr)
            return 0
