"""Which operation first lets one part of a batch reach another: the share of changed elements jumps there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from neuraldbg.capture.torch.frames import Frames

MOST_OPERATIONS = 4000
MOST_BYTES = 64 * 2**20
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "sparse_mm", "sparse_addmm")
_JOINING = ("index_add", "scatter", "index_select", "index_reduce", "segment_reduce", "sparse")


@dataclass(frozen=True, slots=True)
class Place:
    layer: str | None  # path of the innermost module that was running; "" = the root itself
    kind: str | None  # its class
    operation: str
    dim: int | None
    source: str | None
    before: float  # share of changed elements that went in
    after: float  # and came out
    given: bool = False  # who meets whom was given from outside: an adjacency matrix, a list of edges


@dataclass(slots=True)
class _Seen:
    operation: str
    inputs: list[int]
    module: nn.Module | None
    dim: int | None
    source: str | None
    values: list[Tensor]
    given: bool


class _Listening(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what every operation put out; inputs are known by the operations that made them."""

    def __init__(self, frames: Frames | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.frames = frames
        self.seen: list[_Seen] = []
        self.made_by: dict[int, int] = {}
        self.alive: list[Any] = []  # an id is only good while its tensor lives
        self.stack: list[nn.Module] = []
        self.weights: set[int] = set()
        self.bytes = 0

    def enter(self, module: nn.Module) -> None:
        self.stack.append(module)
        self.weights.update(id(weight) for weight in module._parameters.values() if weight is not None)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        if self.stack and len(self.seen) < MOST_OPERATIONS and self.bytes < MOST_BYTES:
            self._note(function, args, kwargs or {}, outputs)
        return outputs

    def _note(self, function: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        several = outputs if isinstance(outputs, tuple | list) else [outputs]
        found = [one for one in several if isinstance(one, Tensor)]
        found = [one for one in found if one.dtype.is_floating_point or one.dtype == torch.int64]
        if not found:
            return
        entered = [
            self.made_by[id(one)]
            for arg in args
            for one in (arg if isinstance(arg, tuple | list) else [arg])
            if isinstance(one, Tensor) and id(one) in self.made_by
        ]
        module = self.stack[-1] if self.stack else None
        line = self.frames.line() if self.frames is not None else None
        values = [one.detach().clone() for one in found]
        self.bytes += sum(value.numel() * value.element_size() for value in values)
        name = str(function).removeprefix("aten.").split(".")[0]
        given = self._given(name.strip("_"), args)
        self.seen.append(_Seen(name, entered, module, _dim_of(function, args, kwargs), line, values, given))
        for one in found:
            self.made_by[id(one)] = len(self.seen) - 1
        self.alive += found

    def _given(self, name: str, args: Any) -> bool:
        """Whether the operation joins what a constant of the script tells it to."""
        if name.startswith(_JOINING):
            return True
        loose = [one for one in args if isinstance(one, Tensor) and id(one) not in self.made_by]
        square = [one for one in loose if one.dim() >= 2 and one.shape[-1] == one.shape[-2] and one.shape[-1] > 1]
        return name in _PRODUCTS and any(id(one) not in self.weights for one in square)


def _dim_of(function: Any, args: Any, kwargs: Any) -> int | None:
    names = [argument.name for argument in function._schema.arguments]
    for name in ("dim", "dims"):
        if name in names:
            place = names.index(name)
            value = args[place] if place < len(args) else kwargs.get(name)
            value = value[0] if isinstance(value, list | tuple) and value else value
            return value if isinstance(value, int) else None
    return None


def listen(run: Callable[[], Any], root: nn.Module, frames: Frames | None) -> list[_Seen]:
    """Run a forward and keep what its operations put out."""
    listening = _Listening(frames)
    handles = []
    for module in root.modules():
        handles.append(module.register_forward_pre_hook(lambda m, _: listening.enter(m)))
        handles.append(module.register_forward_hook(lambda m, _, __: _left(listening.stack, m), always_call=True))
    try:
        with torch.no_grad(), listening:
            run()
    finally:
        for handle in handles:
            handle.remove()
    return listening.seen


def _left(stack: list[nn.Module], module: nn.Module) -> None:
    while stack and stack.pop() is not module:
        pass


def first_jump(base: list[_Seen], other: list[_Seen], root: nn.Module, expected: float) -> Place | None:
    """Between two runs that differ in one part of the input (a share `expected` of it): the first operation of which
    clearly more than that share changes although no more went in. None when the two runs went different ways."""
    if [one.operation for one in base] != [one.operation for one in other]:
        return None
    shares = [_changed(one, two) for one, two in zip(base, other, strict=True)]
    paths = {id(module): path for path, module in root.named_modules()}
    limit = 1.5 * expected
    for number, one in enumerate(base):
        entered = max((shares[index] for index in one.inputs), default=0.0)
        if shares[number] > limit >= entered:
            module = one.module
            layer = paths.get(id(module)) if module is not None else None
            kind = None if module is None else type(module).__name__
            return Place(layer, kind, one.operation, one.dim, one.source, entered, shares[number], one.given)
    return None


def _changed(one: _Seen, two: _Seen) -> float:
    """The largest share of changed elements among what an operation put out."""
    shares = [0.0]
    for a, b in zip(one.values, two.values, strict=False):
        if a.shape == b.shape and a.numel() > 1:
            scale = float(a.abs().max()) if a.dtype.is_floating_point else 0.0
            shares.append(float(((a - b).abs() > 1e-6 * scale).float().mean()))
    return max(shares)
