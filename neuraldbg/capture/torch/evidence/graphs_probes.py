"""Some parameters of an optimizer, from its first to its last, that stand for all of them."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.sweep import owned

_PROBED = 4  # parameters of each whose gradients are looked at
_LARGEST = 2**20  # elements of a gradient that is


class Probes:
    """The same ones as long as all of them can be trained and the optimizer has no others: to choose them anew is to
    ask every parameter, at several moments of a step."""

    def __init__(self) -> None:
        self._chosen: IdentityTable[tuple[tuple[int, ...], list[weakref.ref[Tensor]]]] = IdentityTable()

    def of(self, optimizer: Optimizer) -> list[Tensor]:
        groups = [group["params"] for group in optimizer.param_groups]
        ends = [id(one) for group in groups if group for one in (group[0], group[-1])]
        mark = (sum(map(len, groups)), *ends)
        known = self._chosen.get(optimizer)
        if known is not None and known[0] == mark:
            found = [one for ref in known[1] if (one := ref()) is not None and one.requires_grad]
            if len(found) == len(known[1]):
                return found
        chosen = spread([p for p in owned(optimizer) if p.requires_grad and p.numel() <= _LARGEST])
        if len(chosen) == _PROBED:  # of fewer a frozen one may be missing
            self._chosen[optimizer] = (mark, [weakref.ref(one) for one in chosen])
        return chosen


def spread(parameters: list[Tensor]) -> list[Tensor]:
    """A few from the first to the last."""
    if len(parameters) <= _PROBED:
        return parameters
    return [parameters[round(k * (len(parameters) - 1) / (_PROBED - 1))] for k in range(_PROBED)]
