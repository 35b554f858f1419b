"""The loss falls, far too slowly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.loss_curve import blocks_of, main_loss
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity


@symptom("slow_convergence")
def slow_convergence(evidence: Evidence) -> Iterator[Finding]:
    """The loss falls, far too slowly.

    Finds: a loss that falls in every part of the run and has lost less than a third of itself at its end.
    Why it matters: at this pace the run would have to be many times as long.
    Decides by: medians over sixths of the run.
    Usual cures: a larger step size, a schedule that does not end so soon, normalised inputs.
    """
    curve = main_loss(evidence)
    blocks = blocks_of(curve.values, 6)
    if blocks is None or blocks[0] <= 0 or not (np.diff(blocks) < 0).all() or blocks[-1] < blocks[0] * 2 / 3:
        return
    yield Finding(
        "slow_convergence",
        Severity.INFO,
        f"the loss fell only from {blocks[0]:.3g} to {blocks[-1]:.3g} in {len(curve)} updates",
        step=int(curve.steps[0]),
        evidence={"loss_first": float(blocks[0]), "loss_last": float(blocks[-1]), "updates": len(curve)},
        confidence=0.45,
    )
