"""From the outputs of a pass to its loss, read from the autograd graph so that it can be computed again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.passes import PassRecord
from neuraldbg.capture.torch.probes.graph_nodes import (
    BOUNDED_BELOW,
    LINEAR,
    RESHAPING,
    UNARY,
    Unknown,
    bare_name,
    loss_function,
    saved,
    shape_of,
)

MARK = "neuraldbg_tape"  # in the metadata of a node that is the output of a recorded pass
MOST_NODES = 300
CLOSE = 1e-4
_PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "Mul": torch.mul,
    "Div": torch.div,
    "Mm": torch.mm,
    "Bmm": torch.bmm,
    "Mv": torch.mv,
    "Dot": torch.dot,
}


@dataclass(slots=True)
class Entry:
    """One value on the tape: what a pass put out, a parameter, a constant, or computed from earlier entries."""

    kind: str  # "output", "parameter", "constant", "computed"
    what: Any  # (pass, leaf), a weak reference to the parameter, the tensor, the operation
    inputs: tuple[int, ...] = ()
    is_target: bool = False


@dataclass(eq=False)
class TapedPass:
    """A recorded pass. Its modules are not held here."""

    record: PassRecord
    root_ref: weakref.ref[nn.Module]
    entry_ref: weakref.ref[nn.Module]
    inputs: dict[int, int]  # place among the tensors of the arguments -> entry that it was computed as
    outputs: int = 0

    @property
    def root(self) -> nn.Module:
        return _alive(self.root_ref)

    @property
    def entry(self) -> nn.Module:
        return _alive(self.entry_ref)


def _alive(ref: weakref.ref[nn.Module]) -> nn.Module:
    module = ref()
    if module is None:
        raise Unknown("the model is gone")
    return module


@dataclass(eq=False)
class Tape:
    """Written while a step runs, with the values of that step beside it; sealed once the loss is known."""

    passes: list[TapedPass] = field(default_factory=list)
    entries: list[Entry | None] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    known: dict[tuple[Any, int], int] = field(default_factory=dict)
    loss: int = -1
    factor: float = 1.0  # of an unscaled loss, where a GradScaler scaled it
    offset: float = 0.0  # a constant of the loss that leaves no trace in the graph
    free: bool = False  # such a constant was met
    kinds: list[str] = field(default_factory=list)
    nodes: int = 0
    _unsettled: tuple[Tensor, Tensor, Tensor | None] | None = None

    # -- writing ---------------------------------------------------------------------------------------------------

    def add(self, entry: Entry, value: Tensor) -> int:
        self.entries.append(entry)
        self.values.append(value.detach())
        return len(self.entries) - 1

    def constant(self, value: Tensor, *, is_target: bool = False) -> int:
        value = value.detach().clone()
        return self.add(Entry("constant", value, is_target=is_target), value)

    def compute(self, operation: Callable[..., Tensor], *inputs: int) -> int:
        with torch.no_grad():
            value = operation(*(self.values[index] for index in inputs))
        return self.add(Entry("computed", operation, inputs), value)

    def outputs_of(self, number: int, found: list[Tensor]) -> None:
        """Mark what a pass put out, so that a walk from the loss ends there. The marks die with the graph."""
        self.passes[number].outputs = len(found)
        for leaf, tensor in enumerate(found):
            entry = self.add(Entry("output", (number, leaf)), tensor)
            node: Any = tensor.grad_fn
            if node is not None:
                node.metadata.setdefault(MARK, {})[tensor.output_nr] = (id(self), entry)

    def expression(self, tensor: Tensor) -> int:
        """The entry that computes a differentiable tensor. Raises Unknown."""
        with torch.no_grad():
            return self._value(tensor.grad_fn, tensor.output_nr, tensor.detach(), linear=True)

    def _value(self, node: Any, output: int, hint: Tensor | None, *, linear: bool) -> int:
        found = self.known.get((node, output))
        if found is not None:
            return found
        marked = node.metadata.get(MARK, {}).get(output)
        if marked is not None and marked[0] == id(self):
            entry: int = marked[1]
        else:
            self.nodes += 1
            if self.nodes > MOST_NODES:
                raise Unknown("a loss of too many operations")
            entry = self._computed(node, output, hint, linear=linear)
        self.known[node, output] = entry
        return entry

    def _computed(self, node: Any, output: int, hint: Tensor | None, *, linear: bool) -> int:
        name = bare_name(node)
        if name == "AccumulateGrad":
            return self.add(Entry("parameter", weakref.ref(node.variable)), node.variable)
        if name in BOUNDED_BELOW:
            self.kinds.append(name)
        linear = linear and name in LINEAR
        if name in ("Add", "Sub", "Rsub"):
            return self._sum(node, name, hint, linear=linear)
        if name in _PRODUCTS:
            return self._product(node, name, linear=linear)
        if name in ("Cat", "Stack", "Where", "Maximum", "Minimum"):
            return self._joined(node, name)
        known = loss_function(node, name)
        if known is not None:
            return self._loss(node, *known)
        make = UNARY.get(name)
        if make is None:
            raise Unknown(f"{name} in the loss")
        below = self._hint_below(node, name, hint)
        return self.compute(make(node, output), self._input(node, 0, below, linear=linear))

    def _hint_below(self, node: Any, name: str, hint: Tensor | None) -> Tensor | None:
        """The value of a node's input where the node kept it: a constant that was added there can be recovered."""
        kept = saved(node, "self")
        if isinstance(kept, Tensor):
            return kept.detach()
        if hint is not None and name in RESHAPING and node.next_functions[0][0] is not None:
            child, output = node.next_functions[0]
            return hint.reshape(shape_of(child, output))
        return None

    def _input(self, node: Any, place: int, hint: Tensor | None, *, linear: bool) -> int:
        child, output = node.next_functions[place]
        if child is None:
            raise Unknown(f"{bare_name(node)} of a constant")
        return self._value(child, output, hint, linear=linear)

    def _loss(self, node: Any, operation: Any, target: Tensor) -> int:
        entered = saved(node, "self")
        hint = entered.detach() if isinstance(entered, Tensor) else None
        only_target = node.next_functions[0][0] is None
        first_entry = self.constant(entered) if only_target else self._input(node, 0, hint, linear=False)
        if len(node.next_functions) > 1 and node.next_functions[1][0] is not None:
            return self.compute(operation, first_entry, self._input(node, 1, target, linear=False))
        return self.compute(operation, first_entry, self.constant(target, is_target=True))

    def _sum(self, node: Any, name: str, hint: Tensor | None, *, linear: bool) -> int:
        alpha = saved(node, "alpha")
        alpha = 1 if alpha is None else alpha
        children = [child for child, _ in node.next_functions]
        signs = (1, alpha) if name == "Add" else (1, -alpha) if name == "Sub" else (-alpha, 1)
        if len(children) == 2 and None not in children:
            first = self._input(node, 0, None, linear=linear)
            second = self._input(node, 1, None, linear=linear)
            return self.compute(lambda a, b: signs[0] * a + signs[1] * b, first, second)
        place = 0 if children[0] is not None else 1
        entry = self._input(node, place, None, linear=linear)
        sign = signs[place]
        if hint is not None:
            rest = hint - sign * self.values[entry]
            is_target = rest.dim() > 0 and rest.numel() > 1
            return self.compute(lambda a, c: sign * a + c, entry, self.constant(rest, is_target=is_target))
        if not linear:
            raise Unknown("a constant that the graph does not keep")
        self.free = True
        shape = shape_of(node, 0)
        return self.compute(lambda a: (sign * a).expand(shape), entry)

    def _product(self, node: Any, name: str, *, linear: bool) -> int:
        operation = _PRODUCTS[name]
        names = {"Mm": ("self", "mat2"), "Bmm": ("self", "mat2"), "Mv": ("self", "vec"), "Dot": ("self", "tensor")}
        kept = [saved(node, each) for each in names.get(name, ("self", "other"))]
        children = [child for child, _ in node.next_functions]
        if len(children) == 1:
            factor = kept[1]
            if factor is None:
                raise Unknown(f"{name} of a constant that is not kept")
            return self.compute(lambda a: operation(a, factor), self._input(node, 0, None, linear=linear))
        constant = None in children
        places: list[int] = []
        for place, child in enumerate(children):
            value = kept[place]
            if child is not None:
                known = value.detach() if isinstance(value, Tensor) else None
                places.append(self._input(node, place, known, linear=linear and constant))
            elif isinstance(value, Tensor):
                places.append(self.constant(value))
            else:
                raise Unknown(f"{name} of a constant that is not kept")
        return self.compute(operation, *places)

    def _joined(self, node: Any, name: str) -> int:
        if any(child is None for child, _ in node.next_functions):
            raise Unknown(f"{name} of a constant")
        places = [self._input(node, place, None, linear=False) for place in range(len(node.next_functions))]
        if name == "Where":
            condition = saved(node, "condition").detach().clone()
            return self.compute(lambda a, b: torch.where(condition, a, b), *places)
        if name in ("Maximum", "Minimum"):
            return self.compute(torch.maximum if name == "Maximum" else torch.minimum, *places)
        dim, join = saved(node, "dim") or 0, torch.cat if name == "Cat" else torch.stack
        return self.compute(lambda *parts: join(parts, dim), *places)

    # -- sealing ---------------------------------------------------------------------------------------------------

    def finish(self, loss: Tensor, unscaled: Tensor | None) -> None:
        """Find the way from the loss down to the passes. Raises Unknown."""
        if loss.numel() != 1 or loss.grad_fn is None:
            raise Unknown("the loss is not one differentiable number")
        self.loss = self.expression(loss)
        self._unsettled = (self.values[self.loss], loss.detach(), unscaled)
        if not loss.is_cuda:
            self.settle_sync()
        self._seal()

    def settle_sync(self) -> None:
        """Whether the loss computed again is the loss that was. On a device this waits until the script is over."""
        if self._unsettled is None:
            return
        got, told = float(self._unsettled[0]), float(self._unsettled[1])
        unscaled, self._unsettled = self._unsettled[2], None
        if unscaled is not None and told:
            self.factor = float(unscaled) / told
        if self.free:
            self.offset = told - got
        elif told == told and not abs(got - told) <= CLOSE * max(abs(told), 1e-6):
            raise Unknown(f"computed again the loss is {got:.6g} and not {told:.6g}")

    def _seal(self) -> None:
        """Only what the loss needs is kept, and nothing of the graph or of the step's values."""
        needed = self._needed(self.loss)
        for index in range(len(self.entries)):
            if index not in needed:
                self.entries[index] = None
        self.values.clear()
        self.known.clear()

    def _needed(self, top: int) -> set[int]:
        needed: set[int] = set()
        waiting = [top]
        while waiting:
            index = waiting.pop()
            entry = self.entries[index]
            if index in needed or entry is None:
                continue
            needed.add(index)
            waiting += entry.inputs
            if entry.kind == "output":
                waiting += self.passes[entry.what[0]].inputs.values()
        return needed

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def used_passes(self) -> list[int]:
        return sorted({entry.what[0] for entry in self.entries if entry is not None and entry.kind == "output"})

    @property
    def targets(self) -> dict[int, Tensor]:
        return {i: entry.what for i, entry in enumerate(self.entries) if entry is not None and entry.is_target}

    @property
    def constant_bytes(self) -> int:
        tensors = [entry.what for entry in self.entries if entry is not None and entry.kind == "constant"]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def in_model(self) -> bool:
        """The loss came out of the model as it is, or but for a factor."""
        return not self.kinds and not self.targets

    def run(
        self,
        forward: Callable[[int, dict[int, Tensor]], list[Tensor]],
        parameter: Callable[[Tensor], Tensor],
        swapped: dict[int, Tensor] | None = None,
    ) -> tuple[Tensor, dict[int, list[Tensor]]]:
        """The loss, computed anew, and the outputs of each pass. `swapped` = other values for some constants."""
        values: dict[int, Tensor] = {}
        outputs: dict[int, list[Tensor]] = {}

        def value(index: int) -> Tensor:
            if index not in values:
                values[index] = self._read(index, value, outputs, forward, parameter, swapped or {})
            return values[index]

        loss = value(self.loss)
        return (loss + self.offset) * self.factor, outputs

    def _read(
        self, index: int, value: Any, outputs: dict[int, list[Tensor]], forward: Any, parameter: Any, swapped: Any
    ) -> Tensor:
        entry = self.entries[index]
        assert entry is not None
        found: Tensor
        if entry.kind == "constant":
            found = swapped.get(index, entry.what)
        elif entry.kind == "parameter":
            leaf = entry.what()
            if leaf is None:
                raise Unknown("a parameter is gone")
            found = parameter(leaf)
        elif entry.kind == "computed":
            found = entry.what(*(value(each) for each in entry.inputs))
        else:
            number, leaf = entry.what
            if number not in outputs:
                overrides = {place: value(each) for place, each in self.passes[number].inputs.items()}
                outputs[number] = forward(number, overrides)
            found = outputs[number][leaf]
        return found
