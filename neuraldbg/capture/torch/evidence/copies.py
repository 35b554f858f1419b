"""Averaged copies of a trained model (EMA, SWA, teachers): do they follow it, parameters and buffers alike?"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.built import BuiltModules
from neuraldbg.capture.torch.core import now_ns
from neuraldbg.capture.torch.tree import Model
from neuraldbg.capture.torch.updates import Known

FIRST_LOOK = 10  # updates after which copies are searched for
SHARE, SHARE_IN_FULL = 0.0005, 0.01  # of the time since the last search that one may take
AGAIN = 3  # and again each time that so many times as many have been made: some averages begin after a warm-up
MOST_BYTES = 32 * 2**20  # of a model that is compared
MOST_COPIES = 8


@dataclass(eq=False)
class Copy:
    """A second module of the same class and shapes as a trained model."""

    ref: weakref.ref[nn.Module]
    name: str
    original: Model
    since: int  # the update after which it was first seen
    parameters: list[Tensor] = field(default_factory=list)  # as first seen
    buffers: list[Tensor] = field(default_factory=list)
    original_buffers: list[Tensor] = field(default_factory=list)
    original_parameters: list[Tensor] = field(default_factory=list)


class Copies:
    """One fact `copy` per copy: what moved between the first look and the end, and how far it is from its original."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self._built = BuiltModules(capture.core, capture.patches)
        self._stepped = capture.updates
        self._updates = 0
        self._next_look = FIRST_LOOK
        self._trained: dict[int, Model] = {}
        self._copies: list[Copy] = []
        self.core.take_part("update_done", "copies of models", self._updated, early=True)
        self.core.take_part("ending", "copies of models", self._end)

    def _updated(self, *_: Known) -> None:
        before, self._updates = self._updates, self._stepped.stepped + 1
        if self._updates >= self._next_look:
            began = now_ns()
            for other, root, model in self._search():
                if len(self._copies) < MOST_COPIES:
                    self._copies.append(self._met(other, root, model))
            self._look_later(now_ns() - began)
        elif self._copies and any(before < at <= self._updates for at in (100, 1_000, 10_000)):
            self._write_all()

    def _look_later(self, took_ns: int) -> None:
        """Where steps are short a search takes as long as many of them: not before it is a small part of the time."""
        budget = self.core.budget
        budget.set_aside(took_ns)
        share = SHARE_IN_FULL if budget.share is None else SHARE
        soon = budget.share is None and self._updates == FIRST_LOOK  # averages often begin then
        paced = budget.bare_ns and budget.share != 0.0 and not soon
        patience = took_ns / (share * budget.bare_ns) if paced else 0.0
        self._next_look = max(self._updates * AGAIN, self._updates + int(patience))

    def _search(self) -> Iterator[tuple[nn.Module, nn.Module, Model]]:
        """Copies not known yet."""
        roots = [(root, model) for root, model in self.core.tree.readable() if _small(root)]
        if self._updates == FIRST_LOOK:
            trained = [(r, m) for r, m in roots if any(parameter.grad is not None for parameter in r.parameters())]
            self._trained = {id(root): model for root, model in trained}
        roots = [(root, model) for root, model in roots if self._trained.get(id(root)) is model]
        if not roots:
            return
        kinds = {type(root) for root, _ in roots}
        known = {id(copy.ref()) for copy in self._copies} | {id(root) for root, _ in roots}
        others = [each for each in self._built.of(kinds) if id(each) not in known]
        for root, model in roots:
            yield from ((other, root, model) for other in others if type(other) is type(root) and _alike(other, root))

    def _met(self, other: nn.Module, root: nn.Module, model: Model) -> Copy:
        copy = Copy(weakref.ref(other), self._name(other), model, self.core.recorder.step)
        copy.parameters, copy.buffers = _values(other.parameters()), _values(_statistics(other))
        copy.original_parameters, copy.original_buffers = _values(root.parameters()), _values(_statistics(root))
        return copy

    def _end(self) -> None:
        self._write_all()
        late = next(self._search(), None) if self._updates > FIRST_LOOK and len(self._copies) < MOST_COPIES else None
        if late is not None:
            self.core.recorder.fact("copy_unwatched", name=self._name(late[0]), original=late[2].site)
        self._copies.clear()

    def _name(self, other: nn.Module) -> str:
        names = self.core.recorder.frames.names_of(other)
        return names[0] if names else type(other).__name__

    def _write_all(self) -> None:
        for copy in self._copies:
            other, root = copy.ref(), copy.original.ref()
            if other is not None and root is not None:
                self._write(copy, other, root)

    @torch.no_grad()
    def _write(self, copy: Copy, other: nn.Module, root: nn.Module) -> None:
        layer = self.core.tree.layers.get(other)
        self.core.recorder.fact(
            "copy",
            name=copy.name,
            site=None if layer is None else layer.model.site,
            original=copy.original.site,
            since=copy.since,
            trained=any(parameter.grad is not None for parameter in other.parameters()),
            parameters_moved=_moved(copy.parameters, other.parameters()),
            buffers=len(copy.buffers),
            buffers_moved=_moved(copy.buffers, _statistics(other)),
            original_buffers_moved=_moved(copy.original_buffers, _statistics(root)),
            distance=_distance(other.parameters(), root.parameters()),
            buffer_distance=_distance(_statistics(other), _statistics(root)),
            original_travelled=_distance(root.parameters(), copy.original_parameters),
        )


def _statistics(root: nn.Module) -> list[Tensor]:
    """Running means and variances: what an average of the parameters leaves behind. Counters and tables are not."""
    named = root.named_buffers()
    return [buffer for name, buffer in named if name.rpartition(".")[2] in ("running_mean", "running_var")]


def _small(root: nn.Module) -> bool:
    whole = sum(p.numel() * p.element_size() for p in root.parameters() if not _unready(p))
    return 0 < whole <= MOST_BYTES and all(p.device.type == "cpu" for p in root.parameters())


def _unready(parameter: Any) -> bool:
    return bool(torch.nn.parameter.is_lazy(parameter)) or parameter.is_meta


def _alike(other: nn.Module, root: nn.Module) -> bool:
    def shapes(module: nn.Module) -> list[Any]:
        return [(name, None if _unready(p) else tuple(p.shape)) for name, p in module.named_parameters()]

    shared = {p.data_ptr() for p in root.parameters()} & {p.data_ptr() for p in other.parameters()}
    return not shared and shapes(other) == shapes(root)


def _values(tensors: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors if tensor.is_floating_point()]


def _moved(before: list[Tensor], now: Any) -> bool:
    current = [tensor.detach() for tensor in now if tensor.is_floating_point()]
    return any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(before, current, strict=False))


def _distance(these: Any, those: Any) -> float | None:
    """Relative to the second ones; None where there is nothing to compare."""
    apart = size = 0.0
    for a, b in zip(these, those, strict=False):
        if a.is_floating_point() and a.shape == b.shape:
            apart += float((a.detach().double() - b.detach().double()).square().sum())
            size += float(b.detach().double().square().sum())
    return (apart / size) ** 0.5 if size > 0 else None
