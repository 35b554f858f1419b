"""The loss swings without net progress."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.loss_curve import blocks_of, main_loss, one_loss
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity


@symptom("oscillating_loss")
def oscillating_loss(evidence: Evidence) -> Iterator[Finding]:
    """The loss swings without net progress.

    Finds: values in the second half of a run that spread over as much as their own level, and no lower than before.
    Why it matters: steps that undo each other cost as much as steps that lead somewhere.
    Decides by: the middle half of the last values beside their median, and medians over the run.
    Usual cures: a smaller step size, a larger batch, less momentum.
    """
    curve = main_loss(evidence)
    blocks = blocks_of(curve.values, 6)
    if blocks is None or not one_loss(evidence):
        return
    late = curve.values[len(curve) // 2 :]
    low, middle, high = (float(value) for value in np.quantile(late, (0.1, 0.5, 0.9)))
    if high - low < abs(middle) or blocks[-1] < 0.8 * blocks[1] or blocks[-1] < 0.5 * blocks[0]:
        return
    yield Finding(
        "oscillating_loss",
        Severity.INFO,
        f"the loss swings between {low:.3g} and {high:.3g} and gets no lower",
        step=int(curve.steps[len(curve) // 2]),
        evidence={"low": low, "median": middle, "high": high},
        confidence=0.5,
    )
