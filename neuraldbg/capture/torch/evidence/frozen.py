"""Parameters with requires_grad=False that an optimizer moves all the same."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from neuraldbg.capture.torch.sweep import owned
from neuraldbg.capture.torch.updates import Known

MOST_FACTS = 8


class FrozenChanges:
    """A fact `frozen_moved` at the first update that changes a frozen parameter, and when the set of them grows."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self._versions: list[tuple[int, Tensor, int]] = []
        self._moved: set[int] = set()
        self._written = 0
        self.core.take_part("update_begun", "frozen parameters", self._begun, rarely=True)
        self.core.take_part("update_done", "frozen parameters", self._done, rarely=True)

    def _begun(self, optimizer: Optimizer, _: Known) -> None:
        site_of = self.core.tree.parameter_site
        self._versions = [
            (site, parameter, parameter._version)
            for parameter in owned(optimizer)
            if not parameter.requires_grad and parameter.grad is not None
            if (site := site_of.get(parameter)) is not None
        ]

    def _done(self, _: Optimizer, known: Known) -> None:
        if not self._versions:
            return
        changed = {site for site, parameter, version in self._versions if parameter._version != version}
        self._versions = []
        new = changed - self._moved
        if new and self._written < MOST_FACTS:
            self._written += 1
            self._moved |= new
            self.core.recorder.fact("frozen_moved", optimizer=known.site, parameter_sites=sorted(new))
