"""Gradients are huge, or grow without bound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

TIMES = 100.0  # the usual norm of the first updates


@symptom("exploding_gradient")
def exploding_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Gradients are huge, or grow without bound.

    Finds: gradient norms a hundred times those of the first updates, or above the limit that the user gave.
    Why it matters: the steps they lead to throw the weights away from everything learned before.
    Decides by: the norm over all parameters at each update that was looked at.
    Usual cures: clipping, a smaller step size, normalised inputs and targets, another initialisation.
    """
    curve = evidence.curve("grad_norm")
    known = np.isfinite(curve.values)
    if known.sum() < 5:
        return
    usual = float(np.median(curve.values[known][:10]))
    limit = evidence.thresholds.exploding
    limit = TIMES * usual if limit is None else limit
    high = np.flatnonzero(known & (curve.values > limit)) if limit > 0 else np.empty(0, np.int64)
    if not len(high):
        return
    largest = float(curve.values[high].max())
    yield Finding(
        "exploding_gradient",
        Severity.INFO,
        f"the gradient norm reaches {largest:.3g}; {usual:.3g} is usual in the first updates",
        step=int(curve.steps[high[0]]),
        evidence={
            "largest_norm": largest,
            "first_norm": usual,
            "updates_above": len(high),
        },
        confidence=0.55,
    )
