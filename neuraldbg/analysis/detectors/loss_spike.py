"""The loss jumps for a few steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.loss_curve import FEWEST, main_loss
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

WINDOW = 50
TIMES = 12.0  # deviations


@symptom("loss_spike")
def loss_spike(evidence: Evidence) -> Iterator[Finding]:
    """The loss jumps for a few steps.

    Finds: single losses far outside the spread of the values around them, and more than twice their median.
    Why it matters: one such step can undo many; it points at a rare batch or a rare gradient.
    Decides by: the median and the median deviation of the fifty values before.
    Usual cures: clip gradients; look at the batch of that step.
    """
    curve = main_loss(evidence)
    if len(curve) < FEWEST:
        return
    begin = float(np.nanmedian(np.abs(curve.values[:10])))
    spikes = []
    for index in range(10, len(curve)):
        before = curve.values[max(0, index - WINDOW) : index]
        value = curve.values[index]
        if not np.isfinite(before).all() or not np.isfinite(value):
            continue
        usual = float(np.median(before))
        spread = 1.4826 * float(np.median(np.abs(before - usual)))
        if value - usual > max(TIMES * spread, abs(usual), 0.2 * begin):
            spikes.append((value - usual, index))
    if not spikes:
        return
    size, worst = max(spikes)
    first = min(index for _, index in spikes)
    earlier = "" if first == worst else f"at update {curve.steps[first]} for the first time, and "
    yield Finding(
        "loss_spike",
        Severity.INFO,
        f"the loss jumps {earlier}to {curve.values[worst]:.3g} at update {curve.steps[worst]}",
        step=int(curve.steps[first]),
        evidence={"spikes": len(spikes), "largest_jump": float(size), "loss_there": float(curve.values[worst])},
        confidence=0.6,
    )
