"""The loss rises well above its start."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.loss_curve import finite, main_loss, noise_of, says_nothing
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

BLOWN_UP = 10.0  # times the first value


@symptom("diverging_loss")
def diverging_loss(evidence: Evidence) -> Iterator[Finding]:
    """The loss rises well above its start.

    Finds: a loss whose last values lie at more than twice its first ones, and outside their noise; or at ten times the
    very first, after a thousand times it.
    Why it matters: the run moves away from what it was asked for.
    Decides by: medians of the first and the last values; values that are not finite belong to nan_loss and inf_loss.
    Usual cures: see the cause beside it: most often the step size, the sign of the loss, or its scale.
    """
    if says_nothing(evidence, "diverging_loss"):
        return
    curve = main_loss(evidence)
    values = finite(curve.values)
    if len(values) < 10:
        return
    width = max(3, len(values) // 10)
    first, last = float(np.median(values[:width])), float(np.median(values[-width:]))
    rise = last - first
    apart = values[0] > 0 and last > BLOWN_UP * values[0] and values.max() > BLOWN_UP**3 * values[0]
    if rise <= max(abs(first), 4 * noise_of(values)) and not apart:
        return
    first = float(values[0]) if rise <= 0 else first
    rise = last - first
    above = np.flatnonzero(curve.values > first + 0.5 * rise)
    yield Finding(
        "diverging_loss",
        Severity.INFO,
        f"the loss rose from {first:.3g} to {last:.3g}",
        step=int(curve.steps[above[0]]) if len(above) else None,
        evidence={"loss_first": first, "loss_last": last},
        confidence=0.6,
    )
