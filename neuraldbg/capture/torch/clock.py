"""Where the time of a step goes: every moment between two updates belongs to one phase, by timestamps at both its ends.

The timestamps are those of the hooks that are there anyway. On a device each is an event on its stream, so that a phase
is what the device did, or waited, meanwhile. Our own time belongs to none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

PHASES: Final = ("data", "forward", "loss", "backward", "optimizer", "outside", "eval")
SERIES: Final = "time."  # of a phase, in seconds of one step
Point = tuple[int, int, Any]  # host clock, our own time until then, mark on the device


class NoClock:
    """Stands where nothing is timed."""

    on = False

    def wait_began(self, now_ns: int) -> None: ...

    def waited(self, now_ns: int) -> None: ...

    def backward_began(self, now_ns: int) -> None: ...

    def backward_ended(self, now_ns: int) -> None: ...

    def looked(self, now_ns: int) -> None: ...

    def update_began(self, now_ns: int) -> None: ...

    def update_ended(self, now_ns: int) -> None: ...


class Clock(NoClock):
    """One training thread, one step at a time. Where several threads train there is no order to speak of: nothing is
    told then."""

    on = True

    def __init__(self, core: Any, step_started: Callable[[], int | None]) -> None:
        self.core = core
        self._step_started = step_started
        self._step = -1
        self._spent: dict[str, int] = {}
        self._at: Point | None = None
        self._next_begins: Any = None  # mark on the device at the end of the last update
        self._idle = "outside"  # what a gap that ends in a backward is: the loss, right after a pass
        self._updated = False  # by an optimizer, in this step
        self._looked_ns: int | None = None  # when it was last looked whether parameters were moved by hand
        self.on_device = False

    # -- what the hooks tell -----------------------------------------------------------------------------------------

    def wait_began(self, now_ns: int) -> None:
        self._until("outside", (now_ns, self.core.own_ns, self._mark_now()))

    def waited(self, now_ns: int) -> None:
        self._until("data", (now_ns, self.core.own_ns, self._mark_now()))
        self._idle = "outside"

    def pass_began(self, now_ns: int) -> None:
        self._until("outside", (now_ns, self.core.own_ns, self._mark_now()))

    def loss_began(self, now_ns: int) -> None:
        """A criterion is called: the loss begins here and not where the pass ended."""
        self._until("outside", (now_ns, self.core.own_ns, self._mark_now()))
        self._idle = "loss"

    def layer_ran(self, begin: Point, end: Point) -> None:
        """An outermost layer of a training pass; the time before it was the model's own."""
        if self._until("outside", begin):
            self._until("forward", end)

    def pass_ended(self, end: Point, phase: str) -> None:
        """`phase`: whose time it is since the last layer: outside, or that of a pass in which no layer was called."""
        self._until(phase, end)
        self._idle = "outside" if phase == "eval" else "loss"

    def backward_began(self, now_ns: int) -> None:
        self._until(self._idle, (now_ns, self.core.own_ns, self._mark_now()))

    def backward_ended(self, now_ns: int) -> None:
        self._until("backward", (now_ns, self.core.own_ns, self._mark_now()))
        self._idle = "outside"

    def looked(self, now_ns: int) -> None:
        self._looked_ns = now_ns

    def update_began(self, now_ns: int) -> None:
        self._until("outside", (now_ns, self.core.own_ns, self._mark_now()))

    def update_ended(self, now_ns: int) -> None:
        self._until("optimizer", (now_ns, self.core.own_ns, self._mark_now()))
        self._updated = True

    # -- steps -------------------------------------------------------------------------------------------------------

    def step_done(self, step: int) -> None:
        """Writes the step that is over; takes part in every update, also one by hand, which is the loop's own code."""
        if not self._updated and self._looked_ns is not None:
            self._until("outside", (self._looked_ns, self.core.own_ns, self._mark_now()))
        self._updated = False
        spent, at = self._spent, self._at
        if self._step == step and at is not None and self.core.trainers < 2:
            if self.on_device and at[2] is not None:
                self.core.device.elapsed(at[2], at[2], lambda _: self._write(step, spent))  # behind all of its own
            else:
                self._write(step, spent)
        self._step, self._at, self._spent, self._idle = -1, None, {}, "outside"
        self._next_begins = self.core.device.mark() if self.on_device else None

    def _write(self, step: int, spent: dict[str, int]) -> None:
        for phase in PHASES:
            if phase != "eval" or phase in spent:
                self.core.recorder.scalar(SERIES + phase, spent.get(phase, 0) / 1e9, step=step)

    def _begin(self) -> None:
        self._step, self._spent = self.core.recorder.step, {}
        started = self._step_started()
        known = started is not None and not (self.on_device and self._next_begins is None)
        self._at = (started or 0, 0, self._next_begins) if known else None  # nobody saw the first one begin

    def _until(self, phase: str, now: Point) -> bool:
        """The time since the last point was this phase's. False where the step is not timed."""
        if not self.core.sampling:
            return False
        if self._step != self.core.recorder.step:
            self._begin()
        before = self._at
        if before is None:
            return False
        if now[0] < before[0]:
            return True  # a hook that began in the step before, and found an update by hand that ended it
        if self.on_device:
            mark = now[2] or self._mark_now()
            if mark is None or before[2] is None:
                self._at = None
                return False
            now = (now[0], now[1], mark)
            self.core.device.elapsed(before[2], mark, self._adder(phase))
        else:
            self._spent[phase] = self._spent.get(phase, 0) + max(now[0] - before[0] - (now[1] - before[1]), 0)
        self._at = now
        return True

    def _adder(self, phase: str) -> Callable[[int], None]:
        spent = self._spent

        def add(nanoseconds: int) -> None:
            spent[phase] = spent.get(phase, 0) + nanoseconds

        return add

    def _mark_now(self) -> Any:
        return self.core.device.mark() if self.on_device and self.core.sampling else None
