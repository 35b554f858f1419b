"""Which steps are watched in full, so that watching costs no more than the user allows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from neuraldbg.capture.beside import Beside

FIRST_IN_FULL = 20
NEWCOMER_IN_FULL = 10  # for an optimizer that turns up later
PASSES_IN_FULL = 64
NEWCOMERS = 10  # of them that get it
AFTER_START = 2  # quiet steps, then one in full: where evidence was gathered in few of the first ones
LONGEST_PERIOD = 1000  # steps: even a tiny model is looked at now and then
PATIENCE_NS = 10 * 10**9  # of somebody who watches a slow training and waits for numbers
LONGEST_STEP = 4  # times a usual one: longer steps do not count for more
NOTICED_NS = 10**8  # a training that is held for longer is held for a person
MOST_TURNS = 8  # of a loss that stops being a number: after each a step is watched in full
AIMED_AT = 0.8  # of the share: who aims at the whole is over it half of the time
QUIET_EVERY = 16  # steps: under a budget one of so many is quiet, to hold the others against
TOGETHER = 8  # quiet steps that are accounted for at once,
LEISURELY_NS = 10**8  # where steps are shorter than this
LARGE_EVERY = 4  # full steps: under a budget large tensors are measured in one of so many
LARGE_SHARE = 8  # a tensor is large that is more than this part of what a full step reads
LARGE_BYTES = 2**20  # and at least so much
_SMOOTH = 0.2
_REMEMBERED = 15
_ANEW = 4  # steps


class Average:
    """An exponential moving average; None until something was seen."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float, times: int = 1) -> None:
        weight = _SMOOTH if times == 1 else 1 - (1 - _SMOOTH) ** times
        self.value = value if self.value is None else self.value + weight * (value - self.value)


class Typical:
    """The middle one of the last values, found anew now and then; None until something was seen. A step during which
    the process was stopped (Ctrl-Z, a laptop that slept) or a long evaluation ran allows us nothing."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._last: deque[float] = deque(maxlen=_REMEMBERED)
        self._seen = 0

    def add(self, value: float) -> None:
        self._last.append(value)
        self._seen += 1
        if self._seen < _REMEMBERED or self._seen % _ANEW == 0:
            self._find()

    def add_all(self, values: Sequence[float]) -> None:
        self._last.extend(values)
        self._seen += len(values)
        self._find()

    @property
    def least(self) -> float | None:
        return min(self._last, default=None)

    def _find(self) -> None:
        self.value = sorted(self._last)[len(self._last) // 2]


class SamplingBudget:
    """`share` of the bare step time may be spent: None = every step in full, 0 = nothing but the ledger.

    A step's bare time is its wall time less the time spent in our own code. The price of a full step and that of a
    quiet one are averaged apart; the period between full steps follows from the two. What our clock does not see of a
    full step (caches, torch's way through hooks) shows when it is held against the quiet steps beside it: the larger of
    the two counts.
    """

    def __init__(self, share: float | None) -> None:
        self.share = share
        self.steps = 0
        self.sampled = 0
        self.own_ns = 0
        self.wall_ns = 0
        self._bare = Typical()
        self._full = Average()
        self._quiet = Average()
        self._watch = Average()
        self._aside_ns = 0
        self._held_ns = 0
        self._watch_ns = 0  # spent on gradient norms in the current step
        self._start = (0, 0)  # own and wall time of the first steps
        self.passes = 0  # since the last update
        self._first_pass_ns = 0
        self._full_until = FIRST_IN_FULL
        self._newcomers = self.began = 0  # and when the last of them came
        self._foreseen = 0
        self._since_full = 0
        self._trained_ns = self._full_at_ns = 0.0  # in all, and until the last full look
        self._wait, self._patience_ns = 1, math.inf  # from the last full look to the next: steps, and at most so long
        self._since_quiet = 0
        self._since_watch = 0
        self._quiet_left = 0  # steps that need no decision
        self._unsettled: list[tuple[int, int]] = []  # wall and own time of such steps
        self._fulls = 0  # full steps after the first ones
        self._asked = self.thorough = False  # the next step, and this one: in full, and nothing left out
        self._turns, self.loss_is_bad = 0, False
        self._start_sampled = 0
        self.read_bytes = 0  # of tensors, in the last full step that left none out
        self.beside = Beside()
        self.full = share != 0.0
        self.watching = share != 0.0
        self.last_was_full = False
        self.look_after_start = False  # evidence was not gathered in all of the first steps
        self.always_watch = False  # somebody asks about gradients after every step

    def step_done(self, *, wall_ns: int, own_ns: int) -> None:
        """Account for the step that just ended, and decide how the next one is watched."""
        if self._quiet_left and not (self._held_ns or self._aside_ns or self._asked or self.always_watch):
            self._quiet_left -= 1  # nothing is to be decided yet
            self.steps += 1
            self.own_ns += own_ns
            self.wall_ns += wall_ns
            self._unsettled.append((wall_ns, own_ns))
            return
        self._settle()
        starting = self.steps < self._full_until
        self.steps += 1
        self.passes = 0
        wall_ns, own_ns, self._held_ns = wall_ns - self._held_ns, own_ns - self._held_ns, 0
        self.last_was_full = self.full
        self.own_ns += own_ns
        self.wall_ns += wall_ns
        self.sampled += self.full
        self._bare.add(max(wall_ns - own_ns, 0))
        if not starting:
            self.beside.step(wall_ns - self._aside_ns, full=self.full)
            self._fulls += self.full
        (self._full if self.full else self._quiet).add(max(own_ns - self._watch_ns - self._aside_ns, 0))
        self._watch_ns = self._aside_ns = 0
        if self.steps == FIRST_IN_FULL:
            self._start = (self.own_ns, self.wall_ns)
            self._start_sampled = self.sampled
        self._since_full = 0 if self.full else self._since_full + 1
        usual = LONGEST_STEP * (self._bare.value or 0.0)  # where the process was stopped meanwhile
        self._trained_ns += min(max(wall_ns - own_ns, 0), usual)
        if self.full:
            self._full_at_ns = self._trained_ns
        self._since_quiet = self._since_quiet + 1 if self.full and not starting else 0
        self._since_watch = 0 if self.watching else self._since_watch + 1
        self.thorough, self._asked = self._asked and self.share != 0.0, False
        self.full = self.thorough or self._next_is_full()
        self.watching = self.full or self._next_is_watched()
        if not self.watching and self._since_full > 2 and self.steps >= FIRST_IN_FULL:
            self._quiet_left = self._for_sure_quiet()

    def _for_sure_quiet(self) -> int:
        """Of the steps to come: they are accounted for together."""
        if (self._bare.value or 0.0) > LEISURELY_NS:
            return 0
        if not self.share:
            return TOGETHER
        until_full, until_watched = self._wait - self._since_full, self.watch_period - self._since_watch
        return max(0, min(TOGETHER, until_full - 2, until_watched - 2))

    def _settle(self) -> None:
        """The books of the quiet steps that were only counted."""
        self._quiet_left = 0
        if not self._unsettled:
            return
        bare = [max(wall_ns - own_ns, 0) for wall_ns, own_ns in self._unsettled]
        self._bare.add_all(bare)
        self._quiet.add(sum([own_ns for _, own_ns in self._unsettled]) / len(bare), times=len(bare))
        self.beside.quiet_steps([wall_ns for wall_ns, _ in self._unsettled])
        usual = LONGEST_STEP * (self._bare.value or 0.0)
        self._trained_ns += sum([min(one, usual) for one in bare])
        self._since_full += len(self._unsettled)
        self._since_watch += len(self._unsettled)
        self._unsettled.clear()

    def pass_in_full(self, own_ns: int, now_ns: int) -> bool:
        """A full step may hold a long evaluation: its first passes are looked at, later ones while the share allows."""
        self.passes += 1
        if self.passes == 1:
            self._first_pass_ns = now_ns
        if self.share is None or self.passes <= PASSES_IN_FULL:
            return True
        return own_ns <= self.share * (now_ns - self._first_pass_ns - own_ns)

    def books_closed(self, *, wall_ns: int, own_ns: int) -> None:
        """What came after the last update: an evaluation, or a run that never had an update."""
        self.own_ns += own_ns - self._held_ns
        self.wall_ns += wall_ns - self._held_ns
        self._held_ns = 0

    def newcomer(self) -> None:
        """An optimizer steps for the first time: a second training, a second network. Its first steps are watched as
        well."""
        self._settle()
        self._newcomers += 1
        if self._newcomers <= NEWCOMERS:
            self._full_until = max(self._full_until, self.steps + NEWCOMER_IN_FULL)
            self.began = self.steps

    def foresee(self) -> bool:
        """An optimizer is made, and nothing has run in this step: it is watched in full after all, as it may be the
        first one of another training. Whether that is so."""
        if not self.share or self.full or self._foreseen >= NEWCOMERS:
            return False
        self._settle()
        self._foreseen += 1
        self.full = self.watching = True
        return True

    def loss_told(self, loss: float | None) -> None:
        """Where a loss stops being a number, the step after it is watched in full: who comes to see what broke would
        else find the layers as they were before it did."""
        bad = loss is not None and not math.isfinite(loss)
        if bad and not self.loss_is_bad and self._turns < MOST_TURNS:
            self._turns += 1
            self._asked = True
        self.loss_is_bad = bad

    @property
    def starting(self) -> bool:
        """Whether these are the first steps of a training: they are looked at in every way."""
        return self.steps < self._full_until

    @property
    def since_start(self) -> int:
        """Steps since the last training began."""
        return self.steps - self.began

    @property
    def bare_ns(self) -> float | None:
        """A step without us, as it has been lately."""
        return self._bare.value

    @property
    def shortest_ns(self) -> float | None:
        """The shortest of the last steps without us: the first ones warm up."""
        return self._bare.least

    @property
    def trained_s(self) -> float:
        """Time that steps took without us, as long as they usually are: a process that was stopped for an hour
        (Ctrl-Z, a laptop that slept) has not trained meanwhile. A few quiet steps late."""
        return self._trained_ns / 1e9

    def set_aside(self, own_ns: int) -> None:
        """A search that is made once in a run: it must not keep later steps from being watched."""
        self._aside_ns += own_ns

    def held(self, held_ns: int) -> None:
        """A breakpoint kept the training waiting: that is neither its time nor ours. Where somebody stood there, a step
        after it is watched in full for them."""
        self._held_ns += held_ns
        self._asked = self._asked or held_ns > NOTICED_NS

    def watch_cost(self, own_ns: int) -> None:
        """What one look at the gradient norms cost."""
        self._watch.add(own_ns)
        self._watch_ns += own_ns

    def _next_is_full(self) -> bool:
        if not self.share:
            return self.share is None
        if self.steps < self._full_until:
            return True
        if self.look_after_start and self.steps == self._full_until + AFTER_START:
            return True
        if self._since_full == 0:
            # settled now: where a slow step decided, full steps would follow slow ones
            self._wait, self._patience_ns = self.period, self._patience()
        due = self._since_full + 1 >= self._wait or self._trained_ns - self._full_at_ns >= self._patience_ns
        return due and self._since_quiet + 1 < QUIET_EVERY

    def _next_is_watched(self) -> bool:
        if self.always_watch:
            return True
        if not self.share:
            return self.share is None
        return self._since_watch + 1 >= self.watch_period

    def _half_of_what_is_left(self) -> float:
        """The ledger is always kept; of the rest, full looks and gradient norms may take one half each."""
        allowed = AIMED_AT * (self.share or 0.0) * (self._bare.value or 0.0)
        return (allowed - (self._quiet.value or 0.0)) / 2

    def _period(self, cost: float) -> int:
        left = self._half_of_what_is_left()
        if left <= 0:
            return LONGEST_PERIOD
        return max(1, min(LONGEST_PERIOD, math.ceil(cost / left)))

    @property
    def period(self) -> int:
        """Steps from one full look to the next."""
        if not self.share:
            return 1
        own = (self._full.value or 0.0) - (self._quiet.value or 0.0)
        extra = self.beside.extra
        return self._period(max(own, 0.0 if extra is None else extra.ns))

    def _patience(self) -> float:
        """On a busy machine what a full step costs is guessed too high by chance, and slow steps make a long wait of
        it. What is certain to cost no more than its half comes after some seconds of training all the same."""
        own = (self._full.value or 0.0) - (self._quiet.value or 0.0)
        extra = self.beside.extra
        certain = max(own, 0.0 if extra is None else extra.low_ns)
        return max(PATIENCE_NS, certain / (AIMED_AT * self.share / 2)) if self.share else math.inf

    @property
    def large_bytes(self) -> int | None:
        """Tensors above it are left out of this full step; None = every one is measured."""
        if not self.share or self.starting or self.thorough or self._fulls % LARGE_EVERY == 0:
            return None
        return max(LARGE_BYTES, self.read_bytes // LARGE_SHARE)

    @property
    def measured(self) -> tuple[float, float, float, int] | None:
        """What watching costs after the first steps: ratio, its interval of 95 %, and full steps it rests on. The full
        steps are held against the quiet ones beside them; those are timed by our own clock."""
        extra, quiet, ours = self.beside.extra, self.beside.quiet_ns, self._quiet.value or 0.0
        later = self.steps - FIRST_IN_FULL
        if extra is None or quiet is None or quiet <= ours or later <= 0:
            return None
        bare = quiet - ours
        base = ours / bare
        full_share = (self.sampled - self._start_sampled) / later
        low, middle, high = (base + full_share * ns / bare for ns in (extra.low_ns, extra.ns, extra.high_ns))
        return middle, low, high, extra.pairs

    @property
    def watch_period(self) -> int:
        """Steps from one look at the gradient norms to the next."""
        return self._period(self._watch.value or 0.0) if self.share else 1

    @property
    def ratio(self) -> float | None:
        """Own time over bare time so far; None before the first step."""
        bare = self.wall_ns - self.own_ns
        return self.own_ns / bare if bare > 0 else None

    @property
    def ratio_after_start(self) -> float | None:
        """The same without the first steps, which are watched in full; None before there are as many again."""
        if self.steps < 2 * FIRST_IN_FULL:
            return None
        own, wall = self.own_ns - self._start[0], self.wall_ns - self._start[1]
        return own / (wall - own) if wall > own else None
