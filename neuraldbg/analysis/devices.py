"""The GPUs of a run: what each was measured to do, summed up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neuraldbg.analysis.profile import resources

if TYPE_CHECKING:
    from neuraldbg.trace import Trace


def devices_of(trace: Trace) -> list[dict[str, Any]]:
    """One entry per device: `name`, and of each thing that was read its mean, lowest and highest value. Empty where
    there is no GPU or nothing could be read."""
    found = []
    for name, curves in sorted(resources(trace)["gpu"].items()):
        told: dict[str, Any] = {"name": name}
        for what, curve in curves.items():
            values = np.asarray(curve["values"], dtype=np.float64)
            values = values[np.isfinite(values)]
            if len(values):
                told[what] = {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}
        found.append(told)
    return found
