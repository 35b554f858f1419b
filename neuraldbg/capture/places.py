"""An activation of a network over the looks at it, and the fact `activation` that tells of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FIRST_LOOKS = 12
LATER = 1.5  # each later look so many times further into the run
MOST_ELEMENTS = 2**22  # of one activation that is looked at
NAMED_UNITS = 16
FLAT = 0.02  # of the range from either end
RECTIFIED = {"Relu", "Threshold", "Relu6"}


@dataclass
class Place:
    """`dead` and `stuck` are flags of units, in the arrays or bytes of whoever looks."""

    op: str
    site: int | None
    fed_by: int | None  # site of the layer whose output it takes
    order: int  # from the loss: 0 is nearest
    looks: int = 0
    units: int = 0
    dead: Any = None  # units that were zero for every sample of every look
    stuck: Any = None  # units in the flat part for every sample of every look
    flat_share: float | None = None

    def told(self, set_in: Callable[[Any], list[int]]) -> dict[str, Any]:
        """The fields of the fact; `set_in` lists the units whose flag is set."""
        dead = [] if self.dead is None else set_in(self.dead)
        stuck = [] if self.stuck is None else set_in(self.stuck)
        return {
            "op": self.op,
            "site": self.site,
            "fed_by": self.fed_by,
            "order": self.order,
            "looks": self.looks,
            "units": self.units,
            "dead": len(dead) if self.op in RECTIFIED else None,
            "dead_units": dead[:NAMED_UNITS],
            "stuck": len(stuck) if self.flat_share is not None else None,
            "flat_share": self.flat_share,
        }
