"""Values of parameters as they were before an update, kept in memory that is used again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.kernels import frameless
from neuraldbg.capture.kernels.host import same_bits, span_of
from neuraldbg.capture.torch.pieces import Memory, foreseen, plain, room_for, rooms_for

FULL_BYTES = 2**30  # where every step is measured: above it only the first parameters are copied
MOST_PLANS = 8
PLANNED_BYTES = 64 * 2**20  # above it torch copies, by several threads
TURN_BYTES = 24 * 2**20  # under a budget: a larger model's parameters take turns


class EarlierValues:
    def __init__(self, *, under_budget: bool) -> None:
        self._under_budget = under_budget
        self._room = TURN_BYTES if under_budget else FULL_BYTES
        self._copies: IdentityTable[Tensor] = IdentityTable()
        self._plans: dict[int, _Plan] = {}  # by the first parameter: an optimizer has the same ones each time
        self._shared = _Shared(self._room)
        self._lock = threading.Lock()
        self._prepared = 0  # optimizers
        self._next = 0  # parameter that the next turn begins with
        self.too_large = False  # some parameter alone is more than a turn holds

    def prepare(self, parameters: list[Tensor], most: int) -> None:
        """Fetch the memory for copies of them before a training begins: that takes several times as long as to copy.
        For so many optimizers, whether they are used or not."""
        with self._lock:
            self._prepared += 1
            if self._prepared > most:
                return
            rooms = rooms_for(foreseen(parameters))
            for parameter, room in zip(parameters, rooms, strict=False):
                self._copies[parameter] = room
            if rooms and frameless.keep is not None:
                self._planned(parameters, list(rooms))

    def planned(self, parameters: list[Tensor]) -> tuple[list[Any], list[Tensor | None]]:
        """How the same ones were copied before, as `frameless.keep` takes it, and what it fills; nothing where it is
        not known."""
        plan = self._plans.get(id(parameters[0])) if parameters else None
        return (plan.jobs, plan.copies) if plan is not None else ([], [])

    def take(self, parameters: list[Tensor], recorded: Mapping[int, Tensor] | None = None) -> Sequence[Tensor | None]:
        """A copy of each, None of those whose turn it is not. `recorded`: by the id of a parameter, copies that may be
        the same bit for bit, and then need not be made again."""
        plan, copies = self.planned(parameters)
        if plan:
            theirs = [recorded[id(each)] for each in parameters if id(each) in recorded] if recorded else []
            if theirs and same_bits(parameters, theirs):
                return theirs
            if frameless.keep(parameters, plan):
                return copies
        with self._lock:  # several threads may train
            copies = self._rooms_for(parameters)
        groups: dict[torch.device, tuple[list[Tensor], list[Tensor]]] = {}
        for parameter, copy in zip(parameters, copies, strict=True):
            if copy is not None:
                ours, theirs = groups.setdefault(copy.device, ([], []))
                ours.append(copy)
                theirs.append(parameter.detach())
        for ours, theirs in groups.values():
            torch._foreach_copy_(ours, theirs)
        if parameters and frameless.keep is not None:
            self._planned(parameters, copies)
        return copies

    def _rooms_for(self, parameters: list[Tensor]) -> list[Tensor | None]:
        """Where the copies go."""
        copies: list[Tensor | None] = [None] * len(parameters)
        chosen, in_turns = self._turn(parameters)
        shared = self._shared.lend() if in_turns else None
        missing: list[int] = []
        for at in chosen:
            value = parameters[at].detach()
            if shared is not None and plain(value):
                copies[at] = shared.like(value)
            elif in_turns or value.is_cuda:
                self._copies.pop(parameters[at])  # memory on the host that was fetched for it
                copies[at] = torch.empty_like(value)
            else:
                copies[at] = self._copy_of(parameters[at], value)
                missing += [at] if copies[at] is None else []
        for at, copy in zip(missing, rooms_for([parameters[at].detach() for at in missing]), strict=True):
            copies[at] = self._copies[parameters[at]] = copy
        return copies

    def _planned(self, parameters: list[Tensor], copies: list[Tensor | None]) -> None:
        """How the same ones are copied again by C. No plan where some take turns or lie otherwise: copies on a device
        are not kept from one step to the next."""
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[id(parameters[0])] = _Plan(parameters, copies)

    def _turn(self, parameters: list[Tensor]) -> tuple[list[int], bool]:
        """Those that fit, from where the last turn ended; everything when it does. And whether they take turns."""
        sizes = [p.numel() * p.element_size() if p.layout == torch.strided else -1 for p in parameters]
        on_host = [0 if p.is_cuda else room_for(size) for p, size in zip(parameters, sizes, strict=True)]
        if sum(on_host) <= self._room:
            return [at for at, size in enumerate(sizes) if size >= 0], False
        self._copies = IdentityTable()  # of a model that was smaller
        room, chosen, count = self._room, [], len(parameters)
        start = self._next % count if self._under_budget else 0
        for at in [*range(start, count), *range(start)]:
            self.too_large = self.too_large or on_host[at] > self._room
            if sizes[at] < 0 or on_host[at] > self._room:
                continue
            room -= on_host[at]
            if room < 0:
                self._next = at
                break
            chosen.append(at)
        return chosen, self._under_budget

    def _copy_of(self, parameter: Tensor, value: Tensor) -> Tensor | None:
        """The one that was used before, if it still fits."""
        copy: Tensor | None = self._copies.get(parameter)
        if copy is not None and copy.device != value.device:  # it has been moved since
            return None
        if copy is None or copy.shape != value.shape or copy.dtype != value.dtype or copy.stride() != value.stride():
            return None
        return copy


class _Shared(Memory):
    """For those whose turn it is."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._lent: list[weakref.ref[Tensor]] = []

    def lend(self) -> _Shared | None:
        """From its beginning. None while someone holds copies of an earlier turn."""
        if any(copy() is not None for copy in self._lent):
            return None
        self._lent, self.at = [], 0
        return self

    def like(self, value: Tensor) -> Tensor:
        copy = super().like(value)
        self._lent.append(weakref.ref(copy))
        return copy


class _Plan:
    """`jobs` for `frameless.keep` and what it fills; empty where C cannot do it, or once a parameter is gone."""

    jobs: list[tuple[Any, ...]]
    copies: list[Tensor | None]

    def __init__(self, parameters: list[Tensor], copies: list[Tensor | None]) -> None:
        self.forget()
        size, jobs, own = 0, [], weakref.ref(self)

        def gone(_: Any) -> None:
            plan = own()
            if plan is not None:
                plan.forget()

        for parameter, copy in zip(parameters, copies, strict=True):
            span = None if copy is None else span_of(parameter, ordered=True)
            if span is None or copy is None or not span[2] or not copy.is_contiguous():
                return
            size += copy.nbytes
            if size > PLANNED_BYTES:
                return
            ref = weakref.ref(parameter, gone)
            jobs.append((ref, span[0], parameter.shape, parameter.dtype, copy.data_ptr(), copy.nbytes))
        self.jobs, self.copies = jobs, copies

    def forget(self) -> None:
        self.jobs, self.copies = [], []
