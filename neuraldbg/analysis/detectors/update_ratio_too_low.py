"""Updates hardly change the weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.optim_arms import update_ratios
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

LIMIT = 1e-6


@symptom("update_ratio_too_low")
def update_ratio_too_low(evidence: Evidence) -> Iterator[Finding]:
    """Updates hardly change the weights.

    Finds: runs in which every weight tensor is changed by less than a millionth of itself at a time, though it changes.
    Why it matters: at that pace nothing is learned in any number of updates that one would wait for.
    Decides by: the norm of the update over the norm of the weight before it.
    Usual cures: a larger learning rate; a higher clipping limit; a schedule that does not end so soon.
    """
    medians = {site: float(np.median(ratios)) for site, (_, ratios) in update_ratios(evidence).items()}
    if not medians or not all(0 < ratio < LIMIT for ratio in medians.values()):
        return
    largest = max(medians.values())
    yield Finding(
        "update_ratio_too_low",
        Severity.INFO,
        f"no update changes a weight tensor by more than {largest:.1g} of itself",
        step=0,
        evidence={"largest_median_update_over_weight": largest, "weight_tensors": len(medians)},
        confidence=0.55,
    )
