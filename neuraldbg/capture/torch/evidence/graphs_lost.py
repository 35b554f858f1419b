"""Gradients that one backward made and that were cleared before the next backward of the same update: never applied."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.kernels.host import measured_each
from neuraldbg.capture.torch.evidence.graph_walk import LEAF, Walk, known_walk
from neuraldbg.capture.torch.evidence.graphs_flow import has_values
from neuraldbg.capture.torch.evidence.graphs_probes import Probes, spread
from neuraldbg.capture.torch.stats import plain
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.capture.torch.ungraded import ungraded

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

FOLLOWED = 8  # optimizers
NODES = 2_000  # of a graph that are looked at
WRITTEN_AT = (3, 4, 5, 12, 40)
RESTS_AFTER = 4  # updates of one backward each
_ROOT = "neuraldbg_root"
Norms = tuple[float, ...]


@dataclass(eq=False)
class Waiting:
    """Of one optimizer: what the last backward left in its gradients, and which lines lost theirs since its update."""

    source: int = -1
    before: Norms = ()
    norms: Norms = ()
    version: int = 0
    usable: bool = False  # nothing else than an update could have been meant by them
    lost: list[int] = field(default_factory=list)
    updates: int = 0
    lines: Counter[tuple[int, int]] = field(default_factory=Counter)  # (cleared, applied) -> updates
    first: int | None = None


class LostGradients:
    """A fact `gradients_lost` per optimizer. Not lost is what the script has a use for: the gradient of an input
    (adversarial examples), weights that moved meanwhile (SAM), gradients that it puts together by hand, and a loss that
    is part of the next one."""

    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._updates = capture.updates
        self._waiting: IdentityTable[Waiting] = IdentityTable()
        self._followed = 0
        self._source = -1
        self._plain = False
        self._probes = Probes()
        self._backwards = 0  # since the last update
        self._single = 0  # updates in a row that had one
        for moment, notice in (
            ("backward_begun", self._begun),
            ("backward_done", self._done),
            ("update_begun", self._update),
            ("ending", self._ending),
        ):
            self.core.take_part(moment, "lost gradients", notice, rarely=True)

    def _all(self) -> list[tuple[Optimizer, Waiting]]:
        for optimizer, _ in self._updates.optimizers.items():
            if optimizer not in self._waiting and self._followed < FOLLOWED:
                self._followed += 1
                self._waiting[optimizer] = Waiting()
        return list(self._waiting.items())

    def _begun(self, loss: Tensor | None, source: int) -> None:
        self._backwards += 1
        if self._single >= RESTS_AFTER:
            self._single = RESTS_AFTER if self._backwards < 2 else 0  # what can be lost will be so again
            return
        inside = self.core.here.local.in_step is not None  # a closure clears and fills them as its optimizer asks
        busy = inside or self.core.packed or not self.core.tree.alone()
        if not self.core.looking or loss is None or loss.grad_fn is None or loss.is_cuda or busy:
            self._forget()
            return
        every = self._all()
        known = {id(parameter) for optimizer, _ in every for parameter in owned(optimizer)}
        self._source = source
        root: Any = loss.grad_fn
        graph = known_walk(self.core, loss)
        seen = None if graph is None or graph.packed or len(graph.visits) > NODES else _seen_below(graph, known)
        again, self._plain = _look_below(root, known) if seen is None else seen
        for optimizer, one in every:
            now = self._norms(optimizer)
            cleared = one.usable and any(one.norms) and now is not None and not any(now)
            if cleared and not again and _version(optimizer) == one.version:
                one.lost.append(one.source)
            one.before, one.usable = now or (), now is not None
        root.metadata[_ROOT] = True

    def _done(self, _: Any) -> None:
        rests = self._single >= RESTS_AFTER or not self.core.looking
        if rests or self.core.here.local.in_step is not None or not self.core.tree.alone():
            return
        for optimizer, one in self._all():
            now = self._norms(optimizer)
            reached = one.usable and now is not None and now != one.before
            one.usable = reached and self._plain
            one.source, one.norms, one.version = self._source, now or (), _version(optimizer)

    def _update(self, optimizer: Optimizer, known: Any) -> None:
        if self._backwards:  # else this is the next optimizer of the same backward
            self._single, self._backwards = self._single + 1 if self._backwards < 2 else 0, 0
        one = self._waiting.get(optimizer)
        if one is not None and self.core.looking:
            one.updates += 1
            if one.lost and self._norms(optimizer) == one.norms:
                one.first = self.core.recorder.step if one.first is None else one.first
                one.lines[one.lost[-1], one.source] += 1
            if one.updates in WRITTEN_AT:
                self._write(known.site, one)
        self._forget()

    @ungraded
    def _norms(self, optimizer: Optimizer) -> Norms | None:
        """Of a few gradients; None where they cannot be read without waiting."""
        gradients = [parameter.grad for parameter in self._probes.of(optimizer)]
        if not gradients or any(g is not None and (g.is_cuda or not has_values(g)) for g in gradients):
            return None
        there = [gradient for gradient in gradients if gradient is not None]
        sizes = iter(map(_norm, there, measured_each(there)))
        return tuple([0.0 if gradient is None else next(sizes) for gradient in gradients])

    def _forget(self) -> None:
        for one in self._waiting.values():
            one.lost.clear()
            one.usable = False

    def _ending(self) -> None:
        for optimizer, one in self._waiting.items():
            known = self._updates.optimizers.get(optimizer)
            if known is not None:
                self._write(known.site, one)

    def _write(self, site: int, one: Waiting) -> None:
        if one.lines:
            (cleared, applied), _ = one.lines.most_common(1)[0]
            fields = {"optimizer": site, "updates": one.updates, "count": sum(one.lines.values()), "first": one.first}
            self.core.recorder.fact("gradients_lost", cleared_id=cleared, applied_id=applied, **fields)


def _seen_below(graph: Walk, known: set[int]) -> tuple[bool, bool]:
    """The same of a graph that another watcher walked."""
    again = [visit for visit in graph.visits[1:] if _ROOT in visit.marks]
    strange = [leaf for leaf, _ in graph.leaves if id(leaf.variable) not in known]
    return bool(again), not strange


def _look_below(root: Any, known: set[int]) -> tuple[bool, bool]:
    """Whether the loss of an earlier backward is part of this one, and whether all its leaves are weights of
    optimizers."""
    waiting, seen, plain_leaves = [root], {root}, True
    while waiting and len(seen) < NODES:
        for child, _ in waiting.pop().next_functions:
            if child is None or child in seen:
                continue
            seen.add(child)
            if type(child) is LEAF:
                plain_leaves = plain_leaves and id(child.variable) in known
            elif _ROOT in child.metadata:
                return True, plain_leaves
            else:
                waiting.append(child)
    return False, plain_leaves and not waiting


def _norm(gradient: Tensor, row: Any) -> float:
    """`row`: its statistics, where the kernel can read it."""
    if not gradient.numel():
        return 0.0
    if row is None:
        return float(torch.linalg.vector_norm(plain(gradient, widen=False)))
    return float(row[5]) if row[7] + row[8] == 0 else float("nan" if row[7] else "inf")  # no NaN equals another


def _version(optimizer: Optimizer) -> int:
    return sum(parameter._version for parameter in spread(owned(optimizer)))
