"""Runs a pass again and follows what some parameters make, by value: past the operations that let go of the graph."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.origin.rerun import Rerun, as_it_was, unseen
from neuraldbg.capture.torch.passes import Pass

if TYPE_CHECKING:
    from neuraldbg.capture.torch.core import Core
    from neuraldbg.capture.torch.frames import Frames

LIMIT_S = 1.0
MOST_CUTS = 32
NO_GRAD = "no_grad"  # stands for any operation while gradients are switched off


@dataclass(frozen=True, slots=True)
class Cut:
    """An operation with a graph on what went in and none on what came out."""

    number: int  # in the order they ran
    op: str
    source: str | None
    discrete: bool  # it made whole numbers or truth values: a choice, not a copy


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of what the parameters made."""

    outputs: int  # results of the pass that depend on them by value
    with_graph: int  # of those, how many lead back to them
    cuts: list[Cut] = field(default_factory=list)  # that lie between them and those results


@dataclass(frozen=True, slots=True)
class _Mark:
    """On a tensor that depends on the parameters."""

    cuts: tuple[Cut, ...] = ()  # on the way to it
    graph: bool = True  # some way has none


class _OutOfTime(Exception):
    pass


class _Follow(TorchFunctionMode):
    """Every operation of this thread while it is entered."""

    def __init__(self, frames: Frames, parameters: list[Tensor], stop: CodeType) -> None:
        super().__init__()
        self._frames, self._stop = frames, stop
        self._until = time.monotonic() + LIMIT_S
        self.marks: IdentityTable[_Mark] = IdentityTable()
        for parameter in parameters:
            self.marks[parameter] = _Mark()
        self.known: IdentityTable[bool] = IdentityTable()  # other tensors that were there before or were made here
        self._left: dict[int, tuple[Cut, ...]] = {}  # how many values went to NumPy or lists -> cuts on their way
        self._count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.monotonic() > self._until:
            raise _OutOfTime
        result = func(*args, **(kwargs or {}))
        attempt(lambda: self._seen(func, (args, kwargs), result))
        return result

    def _seen(self, func: Any, inputs: Any, result: Any) -> None:
        given = list(tensors(inputs))
        self._come_back([tensor for tensor in given if tensor not in self.known])
        marked = [(tensor, mark) for tensor in given if (mark := self.marks.get(tensor)) is not None]
        made = list(_results(result))
        for tensor in made if given else ():
            self.known[tensor] = True
        if not marked:
            return
        before = tuple(dict.fromkeys(cut for _, mark in marked for cut in mark.cuts))
        had_graph = any(mark.graph and tensor.requires_grad for tensor, mark in marked)
        if not made:
            self._went_out(func, marked[0][0], before, had_graph)
        for tensor in made:
            if had_graph and not tensor.requires_grad:
                self.marks[tensor] = _Mark((*before, self._cut(func, tensor))[:MOST_CUTS], graph=False)
            else:
                self.marks[tensor] = _Mark(before, had_graph)

    def _went_out(self, func: Any, source: Tensor, before: tuple[Cut, ...], had_graph: bool) -> None:
        """`.numpy()`, `.tolist()`: what is made of them outside cannot be followed."""
        if _name(func) in ("numpy", "tolist", "__array__"):
            self._left[source.numel()] = (*before, self._cut(func, None)) if had_graph else before

    def _come_back(self, unknown: list[Tensor]) -> None:
        """A tensor that no operation made, with as many values as went out: made of them."""
        for tensor in unknown:
            cuts = self._left.get(tensor.numel())
            if cuts and tensor not in self.marks and tensor.is_floating_point() and not tensor.requires_grad:
                self.marks[tensor] = _Mark(cuts, graph=False)

    def _cut(self, func: Any, made: Tensor | None) -> Cut:
        self._count += 1
        discrete = made is not None and not (made.is_floating_point() or made.is_complex())
        return Cut(self._count, _name(func) if torch.is_grad_enabled() else NO_GRAD, self._line(), discrete)

    def _line(self) -> str | None:
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code is not self._stop:
            if self._frames.is_user(frame.f_code):
                return f"{self._frames.display(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return None


def follow(core: Core, one: Pass, parameters: list[Tensor]) -> Followed | None:
    """None where the pass cannot be run again, or takes too long."""
    again = Rerun(core, one)
    record, root, entry = again.record, again.root, again.entry
    if again.refused or record is None or root is None or entry is None:
        return None
    mode = _Follow(core.recorder.frames, parameters, follow.__code__)
    for tensor in (*root.parameters(), *root.buffers(), *again.inputs()):
        mode.known[tensor] = True
    try:
        with unseen(core), as_it_was(root), torch.enable_grad(), mode:
            outputs = list(tensors(record.rerun(entry, root)))
    except _OutOfTime:
        return None
    marks = [mark for tensor in outputs if (mark := mode.marks.get(tensor)) is not None]
    cuts = sorted({cut for mark in marks for cut in mark.cuts}, key=lambda cut: cut.number)
    return Followed(len(marks), sum(mark.graph for mark in marks), cuts)


def _results(result: Any) -> Iterator[Tensor]:
    return iter((result,)) if isinstance(result, Tensor) else tensors(result)


def _name(func: Any) -> str:
    """`detach`; of an attribute its name: `data`."""
    name = getattr(func, "__name__", "?")
    owner = getattr(func, "__self__", None)
    return str(getattr(owner, "__name__", name)) if name == "__get__" else str(name)
