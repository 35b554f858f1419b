"""What the watchers of one process share."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.budget import FIRST_IN_FULL, SamplingBudget
from neuraldbg.capture.focus import EVERYTHING
from neuraldbg.capture.guard import Guard
from neuraldbg.capture.kernels import frameless
from neuraldbg.capture.torch.clock import NoClock
from neuraldbg.capture.torch.device import DeviceQueue, Taker
from neuraldbg.capture.torch.late_rows import LateRows
from neuraldbg.capture.torch.moments import Moments
from neuraldbg.capture.torch.recorder import Recorder
from neuraldbg.capture.torch.tree import ModuleTree
from neuraldbg.records import Kind

RECORDED_STEPS = 128  # in which every measured pass is kept: experiments after the run train on them
EARLY_STEPS = 64  # under a budget: so long those are told of every one who later need it rarely
RARELY = 17  # steps: one of so many is told to those who look rarely. No multiple of a GAN's updates in a round
SETTLED = 256  # steps after which it is one of RARER
RARER = 37
LONG_STEP_NS = 5_000_000  # of the first ones of a training some are looked at closely: a look takes as long as this
SHORT_STEP_NS = 20_000_000  # of steps between the two, 20 take less than half a second,
THIRD = 2  # and the third of them is not looked at closely: values inside of it can wait until the first ones are over
ALONE_LOOKS = 3  # updates of an optimizer that is the only one,
ENOUGH_LOOKS = 4  # of each of several, and of one that comes later; one after the other
LATER_LOOK = 16  # on a device; in host memory the later look is taken after the first steps, under the budget
PREPARED = 4  # optimizers: a program may make any number of them, and use none
FIRST_TIMED = 3  # updates
TIMED = 4  # where every step is measured, layers on a device are timed in one of so many: a mark holds it up for 2 us
SELDOM = 64  # where every step is measured, evidence is gathered in ever fewer, down to one of so many
_TOLD = frozenset(  # moments of every step: told by `tell`, without a guard around each who takes part
    (
        "pass_begun evaluation_begun pass_ended layer_run backward_begun backward_elsewhere backward_done update_begun"
        " update_done"
    ).split()
)
now_ns: Callable[[], int] = time.perf_counter_ns
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_hidden_from_subclasses = torch._C.DisableTorchFunctionSubclass
traced_by_dynamo, tracing = torch.compiler.is_dynamo_compiling, torch._C._get_tracing_state
compiler: Any = torch.compiler


def cannot_look() -> bool:
    """Dynamo traces into hooks, and torch.jit.trace writes down every operation: nothing of ours may run then. Asked
    many times a step: `torch.compiler.is_compiling` is two frames more."""
    return traced_by_dynamo() or compiler._is_compiling_flag or tracing() is not None


def undisturbed() -> AbstractContextManager[Any]:
    """Our own tensor work is hidden from the user's modes and tensor subclasses."""
    if _dispatch_modes() or _function_modes():
        return _hidden_from_modes()
    hidden: AbstractContextManager[Any] = _hidden_from_subclasses()
    return hidden


def quick_shield(observe: Any, careful: Any, caught: Any, guard: Guard) -> Any:
    """`careful`, with no frame where all is as usual."""
    if frameless.shield is None:
        return careful
    usual = (undisturbed, _dispatch_modes, _function_modes, _hidden_from_subclasses)
    return frameless.shield(observe, careful, caught, guard, *usual)


@contextmanager
def _hidden_from_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


class Local:
    """Of one thread: the modules being called, innermost last, and what is under way."""

    __slots__ = "in_backward in_step kept known own_before own_pass pass_depth stack step_start trains".split()

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.own_pass: Any = None
        self.pass_depth = 0
        self.in_backward = 0
        self.in_step: Any = None  # the optimizer whose step() is running
        self.known: Any = None  # Known, of that optimizer
        self.kept: Any = None  # parameters copied before the step
        self.step_start = 0
        self.own_before = 0
        self.trains = False  # has begun a pass of its own

    def shift(self, held_ns: int) -> None:
        """What is under way in this thread was held for so long, and is not timed for it."""
        self.stack[:] = [(module, start + held_ns, own, mark) for module, start, own, mark in self.stack]
        self.step_start += held_ns
        if self.own_pass is not None and hasattr(self.own_pass, "start_ns"):
            self.own_pass.start_ns += held_ns


class Here(threading.local):
    """Looked up once in each function: Python takes ten times as long for it as for a usual attribute."""

    def __init__(self) -> None:
        self.local = Local()


@dataclass(eq=False)
class Core:
    recorder: Recorder
    tree: ModuleTree
    budget: SamplingBudget
    guard: Guard
    device: DeviceQueue = field(default_factory=DeviceQueue)
    here: Here = field(default_factory=Here)
    lock: threading.RLock = field(default_factory=threading.RLock)  # training in several threads
    on: bool = True
    closed: bool = False  # for good
    any_backward: int = 0  # backwards under way in all threads
    backwards: int = 0
    own_ns: int = 0  # time spent in our own code during the current step
    held_ns: int = 0  # time that a held run has waited in all
    trainers: int = 0  # threads that have begun a pass
    recording: bool = True  # keep passes so that they can be run again
    on_layer: list[Callable[..., None]] = field(default_factory=list)  # snapshots and, later, the gate
    on_gradient: list[Callable[..., None]] = field(default_factory=list)
    moments: Moments = field(default_factory=Moments)
    steady: Moments = field(default_factory=Moments)  # of them, those that look at every step
    kinds: frozenset[Kind] = EVERYTHING  # statistics of layers that are taken after the first updates
    stops: Any = None  # Stops, where a gate is wired in
    statistics: bool = True  # False: a full step is timed and nothing of it is measured
    clock: NoClock = field(default_factory=NoClock)  # phases of a step, where a run is profiled
    largest: int = sys.maxsize  # bytes of a tensor whose statistics are taken in the current step
    read_bytes: int = 0  # of the tensors whose statistics were
    leads: bool = True  # of several ranks, the one that speaks for all
    why_not_again: Callable[[Any], str | None] = lambda _: None  # why a model cannot be run once more by this rank
    look_at: float = math.inf  # backward at whose beginning all are told, since somebody's look is due
    timing: bool = True  # whether layers on a device are timed in the current step
    bypassed: bool = False  # some modules are called by .forward(), and watched by their class
    unseen: Callable[[], bool] = lambda: False  # whether some optimizer had fewer looks than it should
    graph: Any = None  # of the loss whose backward begins, as walked by one of those who look at it
    recorded: dict[int, Tensor] = field(default_factory=dict)  # id of a parameter -> copy, before the current update
    foreseen: int = 0  # step that may begin another training
    packed: bool = False  # some of the graph keeps its tensors packed (checkpointing): reading them would unpack

    def __post_init__(self) -> None:
        self.device.set_aside = self.budget.set_aside
        late = LateRows(self.recorder.next_seq)
        self.device.write = late.write
        self.recorder.staging.blocks.append(late.drain)
        self.heard = self.moments  # who is told in the current step
        self.looking = self.closely = self.budget.full  # whether evidence is gathered in it, and of all
        self.tell = self.guard.teller(self._leave_out)  # one moment to all who take part in it
        self._places: dict[int, tuple[str, str]] = {}  # id of who takes part -> moment, place
        self._named: dict[Callable[..., None], str] = {}  # the place of all that are equal: a method is made anew
        self._looked_at = 0
        self.told_again = 0  # step before which nobody else is told, if all until then are quiet
        self._early: list[tuple[str, Callable[..., None]]] = []
        # Statistics of one tensor, now or once they have come from the device. A tensor that cannot be measured costs
        # its own site its statistics and nothing else.
        self.measure: Callable[[Tensor, int, Taker], None] = self.guard.shield(
            "statistics", lambda _, site, __: self.recorder.sites[site].path
        )(self._measured)

    def take_part(
        self, moment: str, place: str, notice: Callable[..., None], *, rarely: bool = False, early: bool = False
    ) -> None:
        """Add a watcher to a moment. `place` names it in the one note that a failure of it would leave. `rarely`: it
        has nothing to do but in steps that are looked at, in the one after each (to forget what it saw) and now and
        then. `early`: the same from update EARLY_STEPS on, where every step is measured from RECORDED_STEPS on."""
        told = notice
        if moment not in _TOLD:
            guard = self.guard.shield(place) if moment == "loading" else self.guard.inside(place)
            told = guard(notice)
        self._places[id(told)] = (moment, place)
        self._named[told] = place
        getattr(self.moments, moment).append(told)
        if not rarely:
            getattr(self.steady, moment).append(told)
        if early:
            self._early.append((moment, told))

    def rest(self, moment: str, notice: Callable[..., None]) -> None:
        """From now on it is enough to be told rarely."""
        _take_out(self.steady, moment, notice)

    def stop_telling(self, moment: str, notice: Callable[..., None]) -> None:
        """Until `tell_again`."""
        for moments in (self.moments, self.steady):
            _take_out(moments, moment, notice)

    def tell_again(self, moment: str, notice: Callable[..., None]) -> None:
        self._places[id(notice)] = (moment, self._named[notice])
        for moments in (self.moments, self.steady):
            setattr(moments, moment, [*getattr(moments, moment), notice])

    def dismiss(self) -> None:
        """All who take part."""
        self.moments.clear()
        self.steady.clear()
        self._named.clear()

    def _let_early_ones_rest(self) -> None:
        for moment, told in self._early:
            self.rest(moment, told)
        self._early.clear()

    def _leave_out(self, notice: Callable[..., None]) -> str:
        """From new lists: the old ones are being walked through."""
        moment, place = self._places[id(notice)]
        self.stop_telling(moment, notice)
        return place

    def step_begins(self) -> None:
        """Who is told of what happens until the next update."""
        budget, step, before = self.budget, self.recorder.step, self.looking
        if self._early and step >= (EARLY_STEPS if budget.share is not None else RECORDED_STEPS):
            self._let_early_ones_rest()
        if not (budget.full or budget.last_was_full or before):
            rarely = RARELY if step < SETTLED else RARER  # one quiet step after another
            self.heard = self.steady if step % rarely else self.moments
            self.told_again = step + (1 if self._early or step % rarely == 0 else rarely - step % rarely)
            return
        self.told_again = step + 1
        if budget.last_was_full and self.largest == sys.maxsize and self.read_bytes:  # told once, if asked twice
            budget.read_bytes = self.read_bytes
        self.read_bytes = 0
        self.timing = budget.share is not None or not self.statistics or step < FIRST_TIMED or step % TIMED == 0
        self.looking = budget.full and self.statistics and self._evidence_is_due(step)
        if budget.full:
            self.largest = sys.maxsize if budget.large_bytes is None else budget.large_bytes
        self.closely = self.looking and not self._can_wait()
        if self.looking:
            self._looked_at = step
        self.heard = self.moments if self.looking or before or step % RARELY == 0 else self.steady

    def _can_wait(self) -> bool:
        """Whether what layers and losses are made of is as well looked at after the first steps. What tells how
        gradients come and go has to be seen in one step after the other."""
        if not (self.budget.starting and self.budget.steps == THIRD) or self.device.used:
            return False
        return LONG_STEP_NS <= (self.budget.shortest_ns or 0.0) < SHORT_STEP_NS

    def _evidence_is_due(self, step: int) -> bool:
        gap = min(SELDOM, 1 << (step // 8).bit_length()) | 1  # 1 up to step 7, 3 up to 15, 5, ... 65 from 256 on
        budget = self.budget
        if budget.starting:
            long = budget.steps > 2 and (budget.bare_ns or 0.0) >= LONG_STEP_NS  # the first ones warm up
            budget.look_after_start = long and not self.device.used
            return not long or self.unseen() or (self.device.used and budget.since_start == LATER_LOOK)
        return step - self._looked_at >= gap or self.foreseen == step

    def wants(self, kind: Kind) -> bool:
        """Whether this statistic of a layer is taken in the current step, if it is a full one."""
        return kind in self.kinds or self.recorder.step < FIRST_IN_FULL

    @property
    def sampling(self) -> bool:
        return self.budget.full

    @property
    def measuring(self) -> bool:
        """Whether tensors of this step are looked into."""
        return self.budget.full and self.statistics

    def _measured(self, tensor: Tensor, _: int, taker: Taker) -> None:
        self.device.stats(tensor, taker)

    def recomputing(self) -> bool:
        """Whether this thread runs inside a backward: in a thread of the autograd engine, or below a backward of its
        own."""
        if self.here.local.in_backward:
            return True
        return self.any_backward > 0 and isinstance(threading.current_thread(), threading._DummyThread)

    def thread_trains(self) -> None:
        if not self.here.local.trains:
            self.here.local.trains = True
            self.trainers += 1
            self.tree.trains(threading.get_ident())

    def ours_since(self, before: int) -> int:
        """Our own time inside of something that is timed. What is ours of another thread may lie there too or not:
        where several train, nothing is taken off."""
        return self.own_ns - before if self.trainers < 2 else 0


def _take_out(moments: Moments, moment: str, notice: Callable[..., None]) -> None:
    """By a new list: the old one may be walked through."""
    setattr(moments, moment, [one for one in getattr(moments, moment) if one != notice])
