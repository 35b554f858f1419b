"""Updates are large beside the weights they change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.optim_arms import update_ratios
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

LIMIT = 0.1
START = 3  # updates that may be large


@symptom("update_ratio_too_high")
def update_ratio_too_high(evidence: Evidence) -> Iterator[Finding]:
    """Updates are large beside the weights they change.

    Finds: weight tensors that most updates after the first ones change by more than a tenth.
    Why it matters: healthy training changes weights by about a thousandth at a time.
    Decides by: the norm of the update over the norm of the weight before it, in tensors of two or more dimensions.
    Usual cures: a smaller learning rate; a warm-up; clipping.
    """
    found = {}
    for site, (steps, ratios) in update_ratios(evidence).items():
        later = ratios[steps >= START]
        if len(later) >= 3 and float(np.median(later)) > LIMIT:
            found[site] = float(np.median(later))
    if not found:
        return
    worst = max(found, key=lambda site: found[site])
    yield Finding(
        "update_ratio_too_high",
        Severity.INFO,
        f"updates change {len(found)} weight tensor(s) by up to {found[worst]:.0%} at a time",
        step=START,
        layer=evidence.layer_of(worst),
        evidence={"median_update_over_weight": found[worst], "weight_tensors": len(found)},
        confidence=0.55,
    )
