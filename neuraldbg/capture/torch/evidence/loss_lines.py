"""Lines of a script that call backward, and what is known of the terms of their losses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from neuraldbg.capture.torch.evidence.leaks import Columns
from neuraldbg.capture.torch.evidence.loss_values import Lately, Values

WAITED_FOR = 16  # backwards


@dataclass
class Line:
    """A line that calls backward."""

    looks: int = 0
    next_look: float = 0.0
    terms: dict[int, Watched] = field(default_factory=dict)


@dataclass
class Watched:
    """One term of the loss of one line, over the run."""

    looks: int = 0
    last: Values = field(default_factory=dict)
    written: bool = True
    labels: dict[float, int] | None = field(default_factory=dict)  # None: too many to count
    columns: Columns = field(default_factory=Columns)
    lately: Lately = field(default_factory=Lately)


def next_look(lines: Iterable[Line], backwards: int) -> float:
    """The backward at which the next one is due. A line that does not come then is waited for no longer than a while:
    it may be over."""
    return min([line.next_look for line in lines if line.next_look + WAITED_FOR > backwards], default=math.inf)
