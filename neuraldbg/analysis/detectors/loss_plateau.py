"""The loss stops falling above a floor it could reach."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.loss_curve import blocks_of, main_loss, noise_of
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity


@symptom("loss_plateau")
def loss_plateau(evidence: Evidence) -> Iterator[Finding]:
    """The loss stops falling above a floor it could reach.

    Finds: a second half of the run in which the loss gained next to nothing, at more than a third of its start.
    Why it matters: the time of that half was spent for nothing, and a lower loss may be within reach.
    Decides by: medians over eighths of the run.
    Usual cures: see the cause beside it; without one the floor may be the noise of the labels.
    """
    curve = main_loss(evidence)
    blocks = blocks_of(curve.values, 8)
    if blocks is None or blocks[0] <= 0:
        return
    gained, late = blocks[0] - blocks[-1], blocks[4] - blocks[-1]
    flat = abs(late) <= max(0.03 * abs(gained), 0.5 * noise_of(curve.values) / np.sqrt(len(curve) / 8))
    if not flat or blocks[-1] < blocks[0] / 3:
        return
    yield Finding(
        "loss_plateau",
        Severity.INFO,
        f"the loss has stayed near {blocks[-1]:.3g} since the middle of the run (it began at {blocks[0]:.3g})",
        step=int(curve.steps[len(curve) // 2]),
        evidence={"loss_first": float(blocks[0]), "loss_middle": float(blocks[4]), "loss_last": float(blocks[-1])},
        confidence=0.45,
    )
