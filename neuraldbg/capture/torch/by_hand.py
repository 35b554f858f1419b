"""Parameters that the script moves itself, without an optimizer: each such move is an update too."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.core import Core, now_ns
from neuraldbg.capture.torch.loss import leaves_of
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.records import Call

if TYPE_CHECKING:
    from neuraldbg.capture.torch.updates import UpdateWatch

_COMPARED = 256  # elements of a leaf


class ByHand:
    """After a backward two small parameters that nobody owns are remembered, and compared when anything begins."""

    def __init__(self, core: Core, updates: UpdateWatch) -> None:
        self.core = core
        self.updates = updates
        self.seen = False
        self.before: list[
            tuple[weakref.ref[Tensor], Tensor, int]
        ] = []  # leaf, its bits, its version; until an optimizer steps
        self._all_owned: Any = None  # how many parameters there were when all of them belonged to optimizers
        core.take_part("backward_done", "updates by hand", self._remember, rarely=True)

    def _remember(self, loss: Tensor | None) -> None:
        """Of parameters that no optimizer owns: one that has an owner is expected to be moved by it."""
        core, updates = self.core, self.updates
        if core.here.local.in_step is not None or self.before:
            return
        for leaf in self._candidates(loss):
            if leaf.layout == torch.strided:
                self.before.append((weakref.ref(leaf), _head(leaf).clone(), leaf._version))
        if not self.before:
            return
        updates.attend()
        if not (len(updates.optimizers) or len(updates.unnamed)):
            trainable = [parameter for _, parameter in core.tree.trainable()]
            if core.budget.watching and core.statistics:
                updates.sweep.watch_norm(trainable)
            core.here.local.kept = updates.sweep.before(trainable) if core.measuring else None

    def _candidates(self, loss: Tensor | None) -> Iterable[Tensor]:
        tables = (self.updates.optimizers, self.updates.unnamed)
        optimizers = [optimizer for table in tables for optimizer, _ in table.items()]
        sites = self.core.tree.parameter_site
        groups = [(id(each), len(group["params"])) for each in optimizers for group in each.param_groups]
        if self._all_owned == (len(sites), groups):
            return ()
        mine = {id(parameter) for optimizer in optimizers for parameter in owned(optimizer)}
        all_owned = bool(mine) and mine.issuperset(id(parameter) for parameter, _ in sites.items())
        self._all_owned = (len(sites), groups) if all_owned else None
        if all_owned:
            return ()  # whatever can be trained has a site
        found = [p for _, p in self.core.tree.trainable() if p.grad is not None and id(p) not in mine]
        if not found and not mine and loss is not None and self.core.tree.only is None:
            found = [leaf for leaf in leaves_of(loss) if leaf.grad is not None]
            for leaf in found:
                self.core.tree.adopt_leaf(leaf)
        return sorted(found, key=Tensor.numel)[:2]

    def look(self) -> None:
        """Have they changed their values? (`p.data.add_` does not move version counters, so values are compared; NaN
        stays NaN, and there the version tells.)"""
        local = self.core.here.local
        if not self.before or local.in_step is not None or local.in_backward:
            return
        self.core.clock.looked(now_ns())
        for ref, before, version in self.before:
            leaf = ref()
            if leaf is None or not leaf.numel():
                continue
            if leaf._version != version or not torch.equal(_head(leaf), before):
                self.before.clear()
                self.seen = self.updates.backward.closely = True
                self.core.recorder.call(Call.STEP_MANUAL)
                if local.kept is not None:
                    self.updates.sweep.after(local.kept)
                    local.kept = None
                self.updates.update_done(1)
                return


def _head(tensor: Tensor) -> Tensor:
    """The bits of the first elements: NaN equals itself there."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    head = tensor.detach().reshape(-1)[:_COMPARED]
    return head if bits is None else head.view(bits)
