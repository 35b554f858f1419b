"""The gate in the trainer: decides whether to stop here, holds the training thread, and lets it go.

Whoever answers (a prompt, a page, a curl line) never touches the training thread: it hands in jobs, and the held thread
does them itself, where device, autocast and frame are the right ones. The wait is a timed one so that Ctrl-C works.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from neuraldbg.control.breakpoints import Breakpoints, Watched
from neuraldbg.errors import AbortedByUser, NotPaused, UnknownBreakpoint, UsageError
from neuraldbg.records import Phase, Stop

TICK_S = 0.25
UNITS = ("layer", "step")
Job = Callable[[Stop], Any]
on_hit: list[Callable[[Stop], None]] = []  # told of every breakpoint that is hit in this process


class Prompt(Protocol):
    """Somebody at the trainer's own terminal."""

    def __call__(self, gate: Gate, stop: Stop, reasons: list[str]) -> None:
        """Talks until the gate is open again."""


def _nobody_hears(_: str) -> None:
    pass


def _nobody_writes(_: float) -> None:
    pass


@dataclass(eq=False)
class _Order:
    job: Job
    answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = field(default_factory=queue.SimpleQueue)


class Gate:
    """`active` is False while nothing could stop the run, `at_layers` while nothing could in the middle of a step: the
    trainer then looks at nothing else."""

    def __init__(self, *, pausing: bool = True, say: Callable[[str], None] = _nobody_hears) -> None:
        self.breakpoints = Breakpoints(changed=self._changed)
        self.pausing = pausing  # False: hits are counted and logged, nothing stops
        self.active = self.at_layers = False
        self.run_dir: Path | None = None  # of the run that it holds
        self.prompt: Prompt | None = None
        self.remote = False  # somebody can answer over the channel
        self.left = False  # who sat at the terminal is gone: nobody is waited for until somebody asks over the channel
        self.say = say
        self.how_to_answer: Callable[[], str | None] = lambda: None  # where no prompt is: said with a pause
        self.watched_every: Callable[[float], None] = _nobody_writes  # seconds: what is recorded is written so often
        self.past: Callable[..., dict[str, Any]] | None = None  # (step, kind, layer, slice): of a run that is recorded
        self.on_event: list[Callable[[dict[str, Any]], None]] = []
        self.kinds: dict[str, int] = {}  # of findings that stop the run -> how often they did
        self.when: list[tuple[str, Callable[[Stop], Any]]] = []  # the user's own functions
        self._unit: str | None = None  # stop at the next layer or step
        self._wanted: str | None = None  # a pause that somebody asked for, and why
        self._told: list[str] = []  # findings to stop for after the next update
        self.together: Any = None  # who sees to it that other ranks are held with this one
        self.pace: Callable[[], tuple[int, float | None]] = lambda: (0, None)  # update under way, seconds of the last
        self._at: tuple[int, str, bool] | None = None  # stop after this update: why, and whether to leave there
        self._holder: int | None = None  # the thread that is held
        self._here: Stop | None = None
        self._reasons: list[str] = []
        self._open = threading.Event()
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._one_at_a_time = threading.Lock()
        self._abort = False
        self._said_nobody = False
        self._retired = False

    # -- the trainer's side --------------------------------------------------------------------------------------------

    def watched(self, site: int, phase: Phase) -> list[Watched]:
        """The breakpoints that are on at one layer in one phase."""
        return [one for one in self.breakpoints.at(site) if one.spec.phase is phase]

    def follows_layers(self, *, from_its_start: bool = True) -> bool:
        """Whether every layer is a place to stop at now. A pause that was asked for in the middle of a forward whose
        first layers nobody followed waits for its update: `next layer` would skip what its backward still does."""
        return self._unit == "layer" or (self._wanted is not None and from_its_start) or bool(self.when)

    def reached(self, stop: Stop, watched: list[Watched]) -> None:
        """A layer or step is done and the values of `stop` are known: stop here if anything says so. What the held
        thread itself runs for whoever asked (`p model(x)`) stops nowhere."""
        if self._holder == threading.get_ident():
            return
        hit = [one for one in watched if self._holds(one, stop)]
        reasons = [_told(one) for one in hit]
        if self._at is not None and self.stops_here(stop):
            reasons.append(self._at[1])
            if self._at[2]:
                self._at = None
                raise AbortedByUser
        reasons += [f"{name} held" for name, function in list(self.when) if self._own(name, function, stop)]
        if self._unit == "layer" or (self._unit == "step" and stop.phase is Phase.UPDATE):
            reasons.append(f"next {self._unit}")
        if self._wanted is not None:
            reasons.append(self._wanted)
        if stop.phase is Phase.UPDATE:
            reasons += self._told
        for one in hit:
            one.hit_count += 1
            one.last_hit_step = stop.step
            if one.spec.once:
                with suppress(UnknownBreakpoint):  # somebody else was quicker
                    self.breakpoints.remove(one.id)
        if hit:
            self._tell({"event": "hit", "breakpoints": [one.id for one in hit], **stop.place()})
            for heard in list(on_hit):
                heard(stop)
        if reasons:
            self._stop(stop, reasons, hit)

    def _holds(self, one: Watched, stop: Stop) -> bool:
        if not one.spec.enabled:
            return False
        if one.condition is None:
            return True
        try:
            return one.condition.holds(stop.values)
        except Exception as error:  # noqa: BLE001  the condition is the user's
            self.breakpoints.fail(one, f"{type(error).__name__}: {error}")
            self._say(f"breakpoint {one.id} is off: its condition {one.spec.condition!r} raised {one.failed}")
            return False

    def _own(self, name: str, function: Callable[[Stop], Any], stop: Stop) -> bool:
        try:
            return bool(function(stop))
        except Exception as error:  # noqa: BLE001  the function is the user's
            self.when = [each for each in self.when if each[1] is not function]
            self._reconsider()
            self._say(f"break_when({name}) is off: it raised {type(error).__name__}: {error}")
            return False

    def _stop(self, stop: Stop, reasons: list[str], hit: list[Watched]) -> None:
        if not self.pausing and not (self._unit or self._wanted or self._told or self.stops_here(stop)):
            self._say(f"{stop.title()}: {'; '.join(reasons)} (logged; pause_on_condition is false)")
            return
        if not self.answered():
            if not self._said_nobody:
                self._said_nobody = True
                self._say(
                    f"{stop.title()}: {'; '.join(reasons)}. Nobody can answer here: hits are counted, training goes on"
                )
            self._forget()
            return
        for one in hit:
            one.trigger_count += 1
        self.hold(stop, reasons)

    def hold(self, stop: Stop, reasons: list[str]) -> None:
        """Blocks this thread until somebody opens the gate."""
        if self._holder == threading.get_ident():
            return
        with self._one_at_a_time:
            if self._retired:
                return
            self._abort = False
            self._open.clear()
            self._here, self._reasons, self._holder = stop, reasons, threading.get_ident()
            self._forget()
            if stop.fill is not None:
                stop.fill()
            self._tell({"event": "paused", "reasons": reasons, **stop.place()})
            try:
                self._talk(stop, reasons)
                while not self._open.is_set():
                    self.work(TICK_S)
            finally:
                self._here, self._reasons, self._holder = None, [], None
                self._drop_orders()
                self._tell({"event": "running", "step": stop.step})
        if self._abort:
            self._abort = False
            raise AbortedByUser

    def _talk(self, stop: Stop, reasons: list[str]) -> None:
        """With whoever sits at the terminal. A prompt that fails (its streams are the script's to close) is not tried
        again: a server may still answer, else training goes on."""
        if self.prompt is not None:
            try:
                self.prompt(self, stop, reasons)
                return
            except Exception as error:  # noqa: BLE001  the breakpoints stay
                self.prompt = None
                self._say(f"no more prompts here: {type(error).__name__}: {error}")
        if not self.remote:
            self._open.set()
            return
        how = self.how_to_answer()
        self._say(f"paused {stop.title()}: {'; '.join(reasons)}" + (f"; {how}" if how else ""))

    def _say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads stderr any more, or the script has closed it
            self.say(text)

    def _forget(self) -> None:
        """Whatever one stop answers."""
        self._unit = self._wanted = self._at = None
        self._told = []
        self._reconsider()

    def retire(self) -> None:
        """The script is over: nothing is held from now on, also not a thread that trains on."""
        self._retired = True
        self._open.set()

    def work(self, timeout_s: float) -> bool:
        """In the held thread: do one job that was handed in; False when none came in time."""
        try:
            order = self._orders.get(timeout=timeout_s) if timeout_s > 0 else self._orders.get_nowait()
        except queue.Empty:
            return False
        here = self._here
        try:
            if here is None:
                raise NotPaused("the run is not paused")
            order.answer.put((order.job(here), None))
        except Exception as error:  # noqa: BLE001  goes back to who asked
            order.answer.put((None, error))
        return True

    def _drop_orders(self) -> None:
        while True:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                return
            order.answer.put((None, NotPaused("the run goes on")))

    # -- the other side: any thread ------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        return self._here is not None and not self._open.is_set()

    @property
    def open(self) -> bool:
        return self._open.is_set()

    def state(self) -> dict[str, Any]:
        here = self._here
        if here is None or self._open.is_set():
            return {"state": "running", "stops_next": self._unit or ("pause" if self._wanted or self._at else None)}
        return {"state": "paused", "reasons": list(self._reasons), **here.place(), "values": dict(here.values)}

    def resume(self) -> None:
        self._must_be_paused()
        self._open.set()

    def step(self, unit: str = "layer") -> None:
        if unit not in UNITS:
            raise UsageError(f"no unit {unit!r}: layer or step")
        self._must_be_paused()
        self._unit = unit
        self._reconsider()
        self._open.set()

    def pause(self, why: str | None = None) -> None:
        """At the next layer, forward or backward, or the next step; asked for within a forward, after its update."""
        if self.paused:
            raise NotPaused("the run is paused already")
        if self.together is not None:
            self.together.pause(why or "pause asked for")
            return
        self._wanted = f"{self._wanted}; {why or 'pause asked for'}" if self._wanted else why or "pause asked for"
        self._reconsider()

    def stop_at(self, update: int, why: str, *, leave: bool = False) -> None:
        """After this update, or after the next one where it is done already."""
        self._at = (update, why, leave)
        self._reconsider()

    def stop_nowhere(self) -> None:
        if self._at is not None:
            self._at = None
            self._reconsider()

    def stops_here(self, stop: Stop) -> bool:
        return self._at is not None and stop.phase is Phase.UPDATE and stop.step >= self._at[0]

    @property
    def aborting(self) -> bool:
        return self._abort

    def answered(self) -> bool:
        """Whether anybody could let a held training go on."""
        return self.prompt is not None or (self.remote and not self.left)

    def attended(self) -> bool:
        """Whether somebody sits at the terminal."""
        return self.prompt is not None

    def leave_alone(self) -> None:
        """The terminal is gone: the training goes on, also past the next breakpoint."""
        self.prompt, self.left = None, True
        self._open.set()

    def stop_each(self, unit: str) -> None:
        """From the very start: the first layer or step."""
        self._unit = unit
        self._reconsider()

    def abort(self) -> None:
        self._must_be_paused()
        self._abort = True
        self._open.set()

    def do(self, job: Job, timeout_s: float = 30.0) -> Any:
        """Have the held thread do something; its answer, or what it raised."""
        self._must_be_paused()
        order = _Order(job)
        self._orders.put(order)
        try:
            answer, error = order.answer.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no answer from the training thread in {timeout_s:g} s") from None
        if error is not None:
            raise error
        return answer

    def break_when(self, function: Callable[[Stop], Any], name: str | None = None) -> None:
        self.when.append((name or str(getattr(function, "__name__", "condition")), function))
        self._reconsider()

    def break_on(self, kind: str) -> None:
        """Stop when this is found: what the gate can see by itself at the update, the rest when it is reported."""
        self.kinds[kind] = 0
        self._reconsider()

    def found(self, kind: str, summary: str) -> None:
        """Somebody has found something: stop if it was asked for."""
        if kind in self.kinds and not self.paused:
            self.kinds[kind] += 1
            if self.kinds[kind] == 1:
                self._told = [*self._told, f"{kind}: {summary}"]
                self._reconsider()

    def _must_be_paused(self) -> None:
        if not self.paused:
            raise NotPaused("the run is not paused")

    def _changed(self) -> None:
        self._reconsider()
        self._tell({"event": "breakpoints"})

    def _reconsider(self) -> None:
        asked = self._unit == "layer" or self._wanted or self.when
        self.at_layers = bool(asked) or self.breakpoints.any_enabled
        self.active = self.at_layers or self._unit is not None or bool(self.kinds or self._told or self._at)

    def _tell(self, event: Mapping[str, Any]) -> None:
        for notice in list(self.on_event):
            notice(dict(event))


def _told(one: Watched) -> str:
    return f"breakpoint {one.id}" + (f" ({one.spec.condition})" if one.spec.condition else "")
