"""The tape of a training: passes, backwards, changes of gradients and updates in their order, and states in between."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from neuraldbg.capture.torch.nested import leaves
from neuraldbg.capture.torch.passes import Autocast, KeptTensor, PassRecord
from neuraldbg.capture.torch.recording.hashing import Digest
from neuraldbg.capture.torch.recording.losses import Loss, Remade
from neuraldbg.capture.torch.recording.pacing import Bounds
from neuraldbg.capture.torch.recording.structure import Buffers

DEFAULT_BYTES = 512 * 2**20
EVERY = 50  # updates between two states
SHOWN = 8  # stretches of steps that a refusal names
MOST_STATES = 4  # below which the oldest part of the tape goes, and not every second state
SCALING = ("grad_scale", "found_inf")  # attributes of an optimizer while a GradScaler lets it step


Arrived = Tensor | Remade


@dataclass(eq=False)
class TapedPass:
    """A pass with what came back to it: gradients by backward and by output."""

    step: int
    root: weakref.ref[Any]
    entry: weakref.ref[Any]
    record: PassRecord
    digest: Digest = 0  # of its outputs; 0: not read
    arrived: dict[int, dict[int, Arrived]] = field(default_factory=dict)  # backward -> output -> gradient
    refused: str | None = None
    bytes: int = 0
    number: int = -1  # of the entry, in the order of the training
    path: str = ""  # of the entry in the root
    outputs: int = 0  # that gradients can come to
    site: int = -1  # of the model, in the trace
    trainable: tuple[bool, ...] = ()  # requires_grad of every parameter, module by module


@dataclass(eq=False)
class TapedBackward:
    step: int
    backward: int
    bytes: int = 0
    number: int = -1
    value: Tensor | None = None  # of the loss
    loss: Loss | None = None  # how it came of an output, where that is known
    autocast: tuple[Autocast, ...] = ()  # inside of which it was called


@dataclass(eq=False)
class TapedCall:
    """A call that changes gradients: zeroing, clipping, unscaling."""

    step: int
    name: str
    parameters: tuple[weakref.ref[Any], ...]
    amounts: tuple[Any, ...] = ()
    bytes: int = 0
    number: int = -1


@dataclass(eq=False)
class TapedUpdate:
    """One step of one optimizer: its settings, and hashes of the gradients it saw."""

    step: int
    optimizer: weakref.ref[Any]
    groups: tuple[dict[str, Any], ...]
    digests: dict[int, Digest]  # position of the parameter in the optimizer -> hash of its gradient
    gradients: dict[int, Tensor] | None = None  # where something we know nothing of has changed them
    scaling: tuple[Tensor | None, ...] | None = None  # of a GradScaler whose optimizer unscales by itself (fused)
    refused: str | None = None
    bytes: int = 0
    number: int = -1


Entry = TapedPass | TapedBackward | TapedCall | TapedUpdate


@dataclass(eq=False)
class State:
    """Parameters and the state of the optimizers before an update."""

    step: int
    parameters: list[tuple[weakref.ref[Any], Tensor]]
    gradients: list[tuple[weakref.ref[Any], Tensor | None]]
    optimizers: list[tuple[weakref.ref[Any], dict[int, dict[str, Any]]]]  # by position of the parameter
    bytes: int = 0
    at: int = 0  # number of the first entry after it
    taken_s: float = 0.0  # what it took to copy


class Keeper(Protocol):
    """Where a recording goes: into memory, or to disk."""

    count: int  # entries so far

    @property
    def failed(self) -> str | None: ...  # why nothing more is kept

    def wants_state(self, updates: int) -> bool: ...

    def admits(self, size: int, on_device: int = 0) -> bool: ...

    def give_up(self, why: str) -> None: ...

    def pause(self) -> None: ...

    def add(self, entry: Entry) -> None: ...

    def ended(self, taped: TapedPass) -> None: ...

    def arrived(self, taped: TapedPass, backward: int, slot: int, gradient: Arrived) -> None: ...

    def refuse(self, taped: TapedPass, why: str) -> None: ...

    def add_state(self, state: State) -> None: ...

    def add_optimizer(self, optimizer: Any) -> None: ...

    def meet(self, root: Any, site: int) -> None: ...

    def late(self, optimizer: Any, kept: dict[int, dict[str, Any]]) -> None: ...


class Tape:
    """In memory, bounded in bytes: the oldest part goes first, and of many states every second one. `windows`: steps
    are left out on purpose; a state serves only what follows on it, and goes with it."""

    def __init__(
        self,
        limit_bytes: int = DEFAULT_BYTES,
        every: int | None = None,
        *,
        windows: bool = False,
        bounds: Bounds | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._bounds = bounds
        self.windows = windows
        self.every = EVERY if every is None else every
        self.entries: deque[Entry] = deque()
        self.states: list[State] = []
        self.bytes = 0
        self.count = 0
        self.lost = 0  # updates that made room for newer ones
        self.given_up: str | None = None
        self._stale = False  # a state is no place to begin from any more

    @property
    def failed(self) -> str | None:
        return self.given_up

    def wants_state(self, updates: int) -> bool:
        """Whether a state is taken now, so many updates after the last."""
        return self.given_up is None and (not self.states or self._stale or updates >= self.every)

    def admits(self, size: int, on_device: int = 0) -> bool:
        """Whether a state of so many bytes may be added."""
        why = None if self._bounds is None else self._bounds.too_much(size, on_device)
        if why is None and size > self.limit_bytes:
            why = f"more than the {self.limit_bytes >> 20} MB of a recording"
        if why is not None:
            self.give_up(f"a state of the training takes {size >> 20} MB, {why}")
        return self.given_up is None

    def give_up(self, why: str) -> None:
        """For good; what lies there can still be used."""
        self.given_up = why

    def pause(self) -> None:
        """What comes next does not follow on what came: a number is left out, and a state comes first."""
        self.count += 1
        self._stale = True

    def add(self, entry: Entry) -> None:
        entry.number, self.count = self.count, self.count + 1
        if not self.states or self.given_up is not None:
            return  # there is nothing to begin from
        self.entries.append(entry)
        self._grown(entry.bytes)

    def ended(self, taped: TapedPass) -> None:
        """Its outputs are hashed: nothing more to keep."""

    def arrived(self, taped: TapedPass, backward: int, slot: int, gradient: Arrived) -> None:
        """A gradient came to an output. A state taken since the pass is no place to begin from: the pass lies before
        it."""
        gone = [one for one in self.states if one.at > taped.number]
        if gone:
            self._stale = True
            self.states = [one for one in self.states if one.at <= taped.number]
            self.bytes -= sum(one.bytes for one in gone)
        taped.arrived.setdefault(backward, {})[slot] = gradient
        taped.bytes += arrived_bytes(gradient)
        self._grown(arrived_bytes(gradient))

    def refuse(self, taped: TapedPass, why: str) -> None:
        """What came to a pass cannot be kept: it cannot be made again."""
        taped.refused = why

    def add_state(self, state: State) -> None:
        self._stale = False
        state.at = self.count
        if self._bounds is not None and any(value.is_cuda for _, value in state.parameters):
            self.limit_bytes = min(self.limit_bytes, self._bounds.device)
        self.states.append(state)
        self._grown(state.bytes)

    def add_optimizer(self, optimizer: Any) -> None:
        """Held weakly, by whoever uses it."""

    def meet(self, root: Any, site: int) -> None:
        """A model whose pass is left out."""

    def late(self, optimizer: Any, kept: dict[int, dict[str, Any]]) -> None:
        """An optimizer that nobody knew of is about to step: states up to now lack it and what it moves."""
        for state in self.states:
            known = {id(ref()) for ref, _ in state.parameters}
            new = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
            state.parameters += [(weakref.ref(p), p.detach().clone()) for p in new]
            state.gradients += [(weakref.ref(p), None) for p in new]
            state.optimizers.append((weakref.ref(optimizer), kept))

    def _grown(self, by: int) -> None:
        self.bytes += by
        while self.bytes > self.limit_bytes and self._make_room():
            pass
        if self.bytes > self.limit_bytes:
            self._stale = True  # with another state, this one and what follows it can go

    def _make_room(self) -> bool:
        if len(self.states) > MOST_STATES and (self.windows or self._state_bytes() > self.bytes // 2):
            gone = self.states[1:-1:2]
            if self.windows:
                self._cut_after(gone)
            self.states = [one for one in self.states if one not in gone]
        elif len(self.states) > 1:
            gone = [self.states.pop(0)]
            self._cut(self.states[0].at)
        else:
            return False
        self.bytes -= sum(one.bytes for one in gone)
        return True

    def _cut(self, number: int) -> None:
        while self.entries and self.entries[0].number < number:
            gone = self.entries.popleft()
            self.bytes -= gone.bytes
            self.lost += isinstance(gone, TapedUpdate)

    def _cut_after(self, states: list[State]) -> None:
        """What begins from one of these: between windows nothing leads from one state to the next."""
        starts, wanted = [one.at for one in self.states], {one.at for one in states}
        kept: deque[Entry] = deque()
        for entry in self.entries:
            at = bisect_right(starts, entry.number) - 1
            if at >= 0 and starts[at] in wanted:
                self.bytes -= entry.bytes
                self.lost += isinstance(entry, TapedUpdate)
            else:
                kept.append(entry)
        self.entries = kept

    def _state_bytes(self) -> int:
        return sum(one.bytes for one in self.states)

    @property
    def steps(self) -> tuple[int, int] | None:
        """The first and the last step that can be made again."""
        if not self.states or not self.entries:
            return None
        return self.states[0].step, self.entries[-1].step

    def state_before(self, step: int) -> State | None:
        """The newest state from which a step can be reached."""
        return next((one for one in reversed(self.states) if one.step <= step), None)

    def after(self, state: State) -> Iterator[Entry]:
        """What follows on it, up to where something was left out."""
        expected = state.at
        for entry in list(self.entries):
            if entry.number > expected:
                return
            if entry.number == expected:
                expected += 1
                yield entry

    def stretches(self) -> list[tuple[int, int]]:
        """First and last of steps that follow on each other, from a state on."""
        found: dict[int, tuple[int, int]] = {}  # last entry -> steps; the oldest state that leads there
        for state in self.states:
            last = None
            for entry in self.after(state):
                last = entry
            if last is not None:
                found.setdefault(last.number, (state.step, last.step))
        return list(found.values())

    def why_not(self, step: int) -> str | None:
        """In words; None for a step that can be made again."""
        state = self.state_before(step)
        if state is not None and any(entry.step == step for entry in self.after(state)):
            return None
        stretches = self.stretches()
        if not stretches:
            there = "no step is on the tape"
        elif len(stretches) == 1:
            there = f"steps {stretches[0][0]} to {stretches[0][1]} are on the tape"
        else:
            there = f'it was left out; on the tape are {told_stretches(stretches)} (record="full" keeps every step)'
        return there if self.given_up is None else f"{there}; recording had stopped: {self.given_up}"

    @property
    def roots(self) -> list[Any]:
        """Models that passes were made of."""
        found = {id(root): root for entry in self.entries if isinstance(entry, TapedPass) and (root := entry.root())}
        return list(found.values())


def told_stretches(stretches: list[tuple[int, int]]) -> str:
    told = [f"{first}-{last}" for first, last in stretches]
    return ", ".join(told if len(told) <= SHOWN else [*told[: SHOWN // 2], "...", *told[-SHOWN // 2 :]])


def arrived_bytes(gradient: Arrived) -> int:
    return size_of([gradient] if isinstance(gradient, Tensor) else gradient.tensors)


def size_of(tensors: Any) -> int:
    return sum([each.numel() * each.element_size() for each in tensors])


def record_bytes(record: PassRecord) -> int:
    if not record.kwargs and set(map(type, record.args)) == {KeptTensor}:  # mostly
        kept = [each.tensor for each in record.args]
    else:
        kept = [leaf.tensor for leaf in leaves((record.args, record.kwargs), KeptTensor)]
    buffers = record.buffers.tensors if isinstance(record.buffers, Buffers) else record.buffers.values()
    return size_of([each for each in (*kept, *buffers) if each.layout == torch.strided]) + 12_000  # generators


def scaling_of(optimizer: Any) -> tuple[Tensor | None, ...] | None:
    """What a GradScaler hands to an optimizer that unscales in its own step."""
    given = [getattr(optimizer, name, None) for name in SCALING]
    if all(each is None for each in given):
        return None
    return tuple(None if each is None else each.clone() for each in given)
