"""Watches every operation and remembers which one first made a NaN or an infinity, and what it was fed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import _get_sequence_nr
from torch.utils._python_dispatch import TorchDispatchMode

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.frames import Frames
from neuraldbg.capture.torch.nested import map_tensors, tensors
from neuraldbg.capture.torch.origin.values import describe, has_nan, not_finite, only_masks, readable

MOST_EVENTS = 5000  # operations with a bad output that are remembered
DESCRIBED = 64  # of them that are described in full
_NO_VALUES = ("empty", "new_empty", "detach", "alias", "lift_fresh", "set_", "resize_")
_MASKING = ("masked_fill", "fill", "full", "new_full", "where", "triu", "tril", "scalar_tensor", "index_put",
            "lift_fresh_copy", "masked_scatter", "copy", "clone", "_to_copy", "expand", "cat", "stack")  # fmt: skip
_SOFTMAX = ("_softmax", "_log_softmax", "_safe_softmax", "logsumexp", "softmax", "log_softmax")


class TimeIsUp(Exception):
    """The search took longer than it may."""


@dataclass(slots=True)
class Event:
    """One operation that gave a NaN or an infinity, or a tensor that came in with one."""

    index: int
    op: str
    layer: int | None = None  # site
    after: int | None = None  # site of the layer that was left last, where the root's own forward was running
    source: str | None = None
    node: str | None = None  # of the backward it ran in
    inputs: list[dict[str, Any]] = field(default_factory=list)
    output: dict[str, Any] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)  # what the backward node had kept from the forward
    parents: list[int] = field(default_factory=list)
    harmless: bool = False  # -inf where something is masked
    outside: bool = False  # no operation: a parameter, a buffer, an input
    wide: dict[str, Any] | None = None  # the same operation in float32


Place = tuple[int | None, str | None, int | None]  # layer site, source line, layer that was left last


class Localiser(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`layer` tells whose forward is running; `fallback` is the line to name where no user frame lies below `stop`."""

    def __init__(self, frames: Frames, layer: Callable[[], int | None], *, limit_s: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._frames = frames
        self._layer = layer
        self._limit_s = limit_s
        self._began = time.monotonic()
        self.stop: CodeType | None = None
        self.fallback: str | None = None
        self.after: int | None = None
        self.active = True
        self.events: list[Event] = []
        self._made_by: dict[int, Event] = {}  # storage -> event that left something bad in it
        self._made_at: dict[int, Place] = {}  # number of an autograd node -> where its forward ran
        self.known: dict[int, str] = {}  # storage of a parameter, buffer or input -> its name

    def begin_pass(self) -> None:
        self.after = None
        self._made_at.clear()

    def forget(self) -> None:
        self.events.clear()
        self._made_by.clear()
        self._made_at.clear()

    # -- one operation ----------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        if self._limit_s is not None and time.monotonic() - self._began > self._limit_s:
            raise TimeIsUp
        name = _name(func)
        before = _before(func, args)
        result = func(*args, **kwargs)
        if not name.startswith(_NO_VALUES):
            attempt(lambda: self._seen(func, name, (before, kwargs), result))
        return result

    def _seen(self, func: Any, name: str, inputs: tuple[Any, Any], result: Any) -> None:
        node = torch._C._current_autograd_node()
        place = self._place(node)
        if _is_view(func):
            return
        for tensor in tensors(result):
            key = _storage(tensor)
            if not not_finite(tensor):
                self._made_by.pop(key, None)
            elif len(self.events) < MOST_EVENTS:
                event = self._event(func, name, inputs, tensor)
                event.layer, event.source, event.after = place
                if node is not None:
                    event.node = node.name()
                    if not event.parents:
                        event.saved = saved_of(node)
                self._made_by[key] = event

    def _place(self, node: Any) -> Place:
        if node is not None:
            return self._made_at.get(node._sequence_nr(), (None, None, None))
        place = (self._layer(), self._line(), self.after)
        self._made_at.setdefault(_get_sequence_nr() - 1, place)
        return place

    def _line(self) -> str | None:
        frame: Any = sys._getframe(4)
        while frame is not None and frame.f_code is not self.stop:
            if self._frames.is_user(frame.f_code):
                return f"{self._frames.display(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return self.fallback

    def _event(self, func: Any, name: str, inputs: tuple[Any, Any], output: Tensor) -> Event:
        event = Event(len(self.events), name)
        self.events.append(event)
        given = [tensor for tensor in tensors(inputs) if readable(tensor) or tensor.numel() == 0]
        bad = [tensor for tensor in given if not_finite(tensor)]
        parents = [self._parent(tensor) for tensor in bad]
        nan = has_nan(output)
        if name in _SOFTMAX and nan and all(only_masks(tensor) for tensor in bad):
            event.inputs, event.output = [describe(tensor) for tensor in given[:4]], describe(output)
            event.parents = [one.index for one in parents if one.harmless]
            return event
        event.parents = [one.index for one in parents]
        event.harmless = not nan and self._masks(name, parents, output)
        if event.index < DESCRIBED or not any(not one.harmless for one in parents):
            event.inputs = [describe(tensor) for tensor in given[:4]]
            event.output = describe(output)
        if not event.parents and output.dtype in (torch.float16, torch.bfloat16):
            event.wide = attempt(lambda: _in_float32(func, inputs))
        return event

    @staticmethod
    def _masks(name: str, parents: list[Event], output: Tensor) -> bool:
        """-inf that somebody put there on purpose, or that comes from nothing else."""
        if parents:
            return all(one.harmless for one in parents)
        return name.rstrip("_").startswith(_MASKING) and only_masks(output)

    def _parent(self, tensor: Tensor) -> Event:
        key = _storage(tensor)
        event = self._made_by.get(key)
        if event is None:
            name = self.known.get(key, "a constant")
            event = Event(len(self.events), name, outside=True, output=describe(tensor))
            event.harmless = only_masks(tensor)
            self.events.append(event)
            self._made_by[key] = event
        return event

    # -- the answer -------------------------------------------------------------------------------------------------

    def made(self, tensor: Any) -> Event | None:
        """Who made a tensor bad."""
        return self._made_by.get(_storage(tensor)) if isinstance(tensor, Tensor) else None

    def chain_to(self, event: Event) -> list[Event]:
        """From the operation where it began to this one."""
        chain = [event]
        while True:
            above = [self.events[index] for index in chain[-1].parents if index < chain[-1].index]
            harmful = [one for one in above if not one.harmless] or [one for one in above if chain[-1].op in _SOFTMAX]
            if not harmful or chain[-1].outside:
                break
            chain.append(min(harmful, key=lambda one: (not one.outside, one.index)))
        return chain[::-1]


def saved_of(node: Any) -> dict[str, Any]:
    """What a node of the graph kept from its forward, described."""
    found: dict[str, Any] = {}
    for name in dir(node):
        if name.startswith("_saved_"):
            value = attempt(lambda name=name: getattr(node, name))  # type: ignore[misc]
            if isinstance(value, Tensor):
                found[name.removeprefix("_saved_")] = describe(value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                found[name.removeprefix("_saved_")] = float(value)
    return found


def _name(func: Any) -> str:
    """`aten.div.Tensor` -> `div`."""
    return str(func._schema.name).rsplit("::", 1)[-1]


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _before(func: Any, args: Any) -> Any:
    """The arguments as they are before an operation that writes to one of them."""
    if not func._schema.is_mutable:
        return args
    written = [one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments]
    return tuple(
        arg.clone() if write and readable(arg) else arg for arg, write in zip(args, written, strict=False)
    ) + tuple(args[len(written) :])


def _storage(tensor: Tensor) -> int:
    return int(attempt(lambda: tensor.untyped_storage()._cdata) or id(tensor))


def _in_float32(func: Any, inputs: tuple[Any, Any]) -> dict[str, Any] | None:
    if func._schema.is_mutable:
        return None
    args, kwargs = (map_tensors(part, lambda t: t.float() if t.is_floating_point() else t) for part in inputs)
    if isinstance(kwargs, dict):
        half = (torch.float16, torch.bfloat16)
        kwargs = {key: torch.float32 if value in half else value for key, value in kwargs.items()}
    first = next(tensors(func(*args, **kwargs)), None)
    return None if first is None else describe(first)
