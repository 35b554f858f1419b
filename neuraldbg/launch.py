"""Running somebody's script as Python itself would, with the debugger beside it.

This process *is* the trainer: same pid, argv, working directory, stdin, stdout, signals and exit code.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from neuraldbg.capture.attachment import NO_RECORDING, Attachment, Plan, package_parent
from neuraldbg.capture.place import Place, place_of
from neuraldbg.capture.torch.repeatable import fix_workspace
from neuraldbg.config import parse_budget
from neuraldbg.config.installation import namesake_notes, refuse_namesake
from neuraldbg.control.channel import ChannelServer
from neuraldbg.control.gate import Gate
from neuraldbg.control.reach import open_line, with_breakpoints
from neuraldbg.control.together import Leader
from neuraldbg.errors import RunDirectoryError, UsageError
from neuraldbg.ranks.launchers import Launcher, is_launcher, launcher_program, script_of
from neuraldbg.ranks.meeting import Note, find_run, launch_key, of_this_node
from neuraldbg.ranks.member import plan_of, run_member
from neuraldbg.ranks.nodes import run_of_another_node
from neuraldbg.ranks.orders import Orders
from neuraldbg.script import (
    Outcome,
    Program,
    die_by_signal,
    flush_streams,
    hide_own_imports,
    load_module,
    load_script,
    outcome_of,
    wait_for_threads,
)
from neuraldbg.trace.rundir import create_run, new_run_info
from neuraldbg.viewing import Viewer, say

SHIP_TO = "ship_to"  # among the settings of a run
_NODE_RANK = re.compile(r"--node[-_]rank(=|$)|\d+$")  # or any number: its value may stand apart
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
    record_share: float | None = None  # of the time: of more, steps are left out; None: every step is recorded
    deterministic: bool = False  # repeatable kernels
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
    if request.deterministic:
        fix_workspace()
    if is_launcher(request.target, module=request.module):
        return _run_launcher(request, own_path)
    program, place = _program(request), place_of(os.environ)
    if place is not None and not _leads(request, place):
        return run_member(program, find_run(_launched(request), request.out))
    share, gate = _share(request), _gate(request)
    run_dir = _run_directory(request)
    viewer = Viewer(run_dir, _viewing(request), own_path, apart=place is not None)
    control = Control(run_dir, request, gate)
    plan = _plan(run_dir, share, request, resources=viewer.running)
    if place is not None:
        plan = control.lead(_orders(request, plan), place)
    attachment = Attachment(plan, gate=gate, place=place)
    if gate is not None and plan.record_bytes:
        gate.past = partial(_look_back, attachment)
    attachment.start()
    hide_own_imports()
    began = time.monotonic()
    outcome = program.run()
    if gate is not None and outcome.signal is not None:
        gate.retire()  # a thread that is held would be waited for
    wait_for_threads()
    _tell(request, attachment)
    attachment.close(**_end(outcome, began))
    control.close()
    verdict = viewer.finish(stay=control.somebody_is_here and outcome.signal is None)
    return _code(request, outcome, verdict)


def _leads(request: Request, place: Place) -> bool:
    """The first rank makes the run. Of a run that is shipped every node has its own, and all go to one place: the nodes
    need see nothing of each other."""
    return place.rank == 0 or (SHIP_TO in request.settings and place.local_rank in (None, 0))


def _launched(request: Request) -> Mapping[str, str]:
    """The variables by which the processes of one run know each other."""
    return of_this_node(os.environ) if SHIP_TO in request.settings else os.environ


def _run_launcher(request: Request, own_path: list[str]) -> int:
    """The launcher in this process, the ranks that it starts watched in theirs, one viewer for all."""
    program = launcher_program(request.target, request.args, module=request.module)
    share = _share(request)
    joined = run_of_another_node(request.args, os.environ, request.out)
    if joined is not None:
        return _join_run(program, joined)
    run_dir = _run_directory(request)
    viewer = Viewer(run_dir, _viewing(request), own_path)
    _orders(request, _plan(run_dir, share, request, resources=viewer.running)).write(run_dir)
    launcher = Launcher(run_dir)
    outcome = _ran(launcher, program)
    at_terminal = request.port is not None and request.prompt is not None
    verdict = viewer.finish(stay=at_terminal and outcome.signal is None)
    return _code(request, outcome, verdict)


def _join_run(program: Program, joined: tuple[Path, int]) -> int:
    """Another node has the viewer and the verdict."""
    say(f"the ranks of this node join {joined[0]}")
    launcher = Launcher(joined[0], node=joined[1])
    outcome = _ran(launcher, program)
    flush_streams()
    return die_as_it_did(outcome)


def _ran(launcher: Launcher, program: Program) -> Outcome:
    launcher.start()
    hide_own_imports()
    began = time.monotonic()
    outcome = program.run()
    wait_for_threads()
    launcher.close(**_end(outcome, began))
    return outcome


def _end(outcome: Outcome, began: float) -> dict[str, Any]:
    told = {"exit_code": outcome.exit_code, "error": outcome.error, "error_at": outcome.error_at}
    return {**told, "duration_s": time.monotonic() - began, "signal": outcome.signal}


def _code(request: Request, outcome: Outcome, verdict: int) -> int:
    die_by_signal(outcome)
    return verdict if outcome.exit_code == 0 and request.fail_on is not None else outcome.exit_code


def _share(request: Request) -> float | None:
    budget = parse_budget(request.budget)
    return None if budget.full else float(budget.ratio)


def _orders(request: Request, plan: Plan) -> Orders:
    """For the other processes of a run that has several."""
    if plan.record_bytes and plan.record_share is None:
        say(NO_RECORDING)
    return Orders(
        replace(plan, record_bytes=0),
        key=launch_key(_launched(request)),
        breaking=request.breaking,
        pausing=request.pausing,
        breakpoints=request.breakpoints,
        break_on=request.break_on,
        step=request.step,
        serve=request.serve,
        served=request.port is not None,
    )


def _look_back(attachment: Attachment, *asked: Any) -> dict[str, Any]:
    from neuraldbg.session.past import look_back  # not before somebody asks: it brings numpy with it

    return look_back(attachment, *asked)


def profile(request: Request, *, memory: bool) -> tuple[Outcome, Path]:
    """Run the target to its end with its layers and phases timed and nothing else: no viewer, no page, no gate."""
    refuse_namesake()
    if is_launcher(request.target, module=request.module):
        raise UsageError(
            f"neural profile runs one process; neural debug {request.target} ... records every rank, and "
            "neural profile RUN shows what was timed in it"
        )
    program = _program(request)
    share = _share(request)
    run_dir = _run_directory(request)
    attachment = Attachment(replace(_plan(run_dir, share, request, resources=True), profile=True, memory=memory))
    attachment.start()
    hide_own_imports()
    began = time.monotonic()
    outcome = program.run()
    wait_for_threads()
    _tell(request, attachment)
    attachment.close(**_end(outcome, began))
    flush_streams()
    return outcome, run_dir


def fresh_process(words: Sequence[str], path: Sequence[str]) -> int:
    """One command of ours in a process of its own: what the script did to this one is not in its way."""
    search = [*(entry for entry in path if entry not in ("", os.getcwd())), package_parent()]
    code = f"import sys; sys.path[:] = {search!r}; from neuraldbg.surfaces.cli import main; main(sys.argv[1:])"
    return subprocess.run([sys.executable, "-c", code, *words], check=False).returncode


def die_as_it_did(outcome: Outcome) -> int:
    """The script's own exit code; a script that Ctrl-C ended takes us with it."""
    die_by_signal(outcome)
    return outcome.exit_code


def _plan(run_dir: Path, share: float | None, request: Request, *, resources: bool) -> Plan:
    own = request.record_share or 0.0  # both together stay within the budget
    return Plan(
        str(run_dir),
        share and max(share - own, 0.0),
        request.layers,
        request.max_disk_bytes,
        stop_on_nan=request.alert_on_nan,
        arm_step=request.arm_nan,
        focus=tuple(request.settings.get("focus", ())),
        resources=resources,
        record_bytes=request.record_bytes,
        record_share=request.record_share,
        deterministic=request.deterministic,
        pausable=_pausable(request),
    )


def _pausable(request: Request) -> str | None:
    """How ranks that the script spawns can be held, where somebody could let them go again."""
    if not (request.breaking and request.serve and request.port is not None):
        return None
    return json.dumps({name: getattr(request, name) for name in ("pausing", "breakpoints", "break_on", "step")})


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


# -- control -----------------------------------------------------------------------------------------------------------


def _gate(request: Request) -> Gate | None:
    """With its first breakpoints: a mistake in one is told before anything is begun."""
    if not request.breaking:
        return None
    gate = with_breakpoints(Gate(pausing=request.pausing, say=say), request.breakpoints, request.break_on)
    gate.prompt = request.prompt
    return gate


class Control:
    """The gate of this process in a run, and the line over which a server reaches it."""

    def __init__(self, run_dir: Path, request: Request, gate: Gate | None) -> None:
        self._run_dir, self._gate, self._launched = run_dir, gate, _launched(request)
        self._served, self._at_terminal = request.port is not None, request.prompt is not None
        self._parts: list[Note | Leader | ChannelServer] = []  # closed in reverse
        if gate is None:
            return
        gate.run_dir = run_dir
        if request.step:
            gate.stop_each("layer")
        if request.serve:
            self._open_line(gate)

    def _open_line(self, gate: Gate) -> None:
        try:
            self._parts.append(open_line(gate, self._run_dir, served=self._served))
        except OSError as error:
            say(f"nobody can reach this run from outside: {error}")

    def lead(self, orders: Orders, place: Place) -> Plan:
        """This process is the first of several that somebody else launched: the others find the run through it."""
        orders.write(self._run_dir)
        self._parts.append(Note(self._run_dir, self._launched))
        if self._gate is not None and orders.may_pause and place.world_size > 1:
            self._parts.append(Leader(self._gate, self._run_dir))
        return plan_of(orders, place, leads=True)

    @property
    def somebody_is_here(self) -> bool:
        """At a terminal, and may look at the page."""
        return self._served and self._at_terminal and (self._gate is None or not self._gate.left)

    def close(self) -> None:
        for one in self._gate.breakpoints if self._gate is not None else ():
            if one.hit_count > one.trigger_count:
                times = f"{one.hit_count} times" if one.hit_count > 1 else "once"
                say(f"breakpoint {one.id} ({one.spec.layer}) was hit {times} and stopped {one.trigger_count}")
        while self._parts:
            self._parts.pop().close()


# -- the run directory -------------------------------------------------------------------------------------------------


def _shipped_with(request: Request, *, launched: bool) -> dict[str, Any]:
    """What nodes that ship to one place together have in common, so that none takes the others for another run."""
    place = place_of(os.environ)
    if SHIP_TO not in request.settings or not (launched or place):
        return {}
    words = " ".join(word for word in request.args if not _NODE_RANK.match(word)) if launched else ""
    key = f"{launch_key(os.environ)} {words}".strip()
    return {"ship_launch": key, "ship_first": place is None or place.rank == 0}


def _run_directory(request: Request) -> Path:
    """Where the run is recorded. A place that cannot be written must not stop a training: a temporary one is taken,
    and said."""
    command = ("-m", request.target, *request.args) if request.module else (request.target, *request.args)
    launched = is_launcher(request.target, module=request.module)
    script = (script_of(request.args) if launched else None) or request.target
    settings = {**request.settings, **_shipped_with(request, launched=launched)}
    given: dict[str, Any] = {"settings": settings, "deterministic": request.deterministic}
    info = new_run_info(command, script=script, budget=request.budget, **given)
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


def _viewing(request: Request) -> list[str]:
    """The words for the viewer."""
    words = ["--max-disk", str(request.max_disk_bytes)]
    words += ["--live"] if request.live else []
    words += ["--eager"] if request.break_on else []
    words += ["--export", str(request.export)] if request.export else []
    words += ["--json"] if request.json else []
    words += ["--fail-on", request.fail_on] if request.fail_on else []
    return [*words, *(_page_options(request) if request.port is not None else [])]


def _page_options(request: Request) -> list[str]:
    own = ["--host", request.host, "--port", str(request.port), *(["--browser"] if request.browser else [])]
    return [*own, *(f"{name}={value}" for name, value in zip(PAGE_OPTIONS, request.page, strict=True))]
