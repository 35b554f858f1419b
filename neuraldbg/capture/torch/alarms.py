"""Findings that can be seen at the update itself, cheaply: for `--break-on KIND`."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping

Norms = Mapping[int, tuple[float, int, int]]  # parameter -> norm of its gradient, elements, dimensions
RECENT = 50
FADED = 1e-6  # of the strongest layer, per element
BURST = 100.0  # times the usual norm


class Alarms:
    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)

    def look(self, norms: Norms, loss: float | None) -> dict[str, str]:
        """What is wrong with the update just made, in words."""
        found = {}
        if loss is not None and math.isnan(loss):
            found["nan_loss"] = "the loss is NaN"
        elif loss is not None and math.isinf(loss):
            found["inf_loss"] = "the loss is infinite"
        sizes = {site: norm for site, (norm, _, _) in norms.items()}
        if any(not math.isfinite(norm) for norm in sizes.values()):
            found["nan_gradient"] = "a gradient is not finite"
            return found
        per_element = [
            norm / math.sqrt(count) for norm, count, dimensions in norms.values() if count and dimensions > 1
        ]
        strongest = max(per_element, default=0.0)
        if strongest > 0 and min(per_element) < FADED * strongest:
            found["vanishing_gradient"] = f"the weakest layer has {min(per_element) / strongest:.1e} of the strongest"
        total = math.sqrt(sum(norm * norm for norm in sizes.values()))
        if len(self._recent) >= 10 and total > BURST * statistics.median(self._recent) > 0:
            found["exploding_gradient"] = f"the gradient norm is {total:.3g}, {BURST:g} times the usual"
        if sizes:
            self._recent.append(total)
        return found
