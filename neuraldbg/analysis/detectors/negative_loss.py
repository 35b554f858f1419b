"""The loss lies below its mathematical floor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.loss_terms import BOUNDED_BELOW, loss_terms
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

_SLACK = 1e-4  # rounding of a loss that is 0


@symptom("negative_loss")
def negative_loss(evidence: Evidence) -> Iterator[Finding]:
    """The loss lies below its mathematical floor.

    Finds: losses below 0 made only of functions that cannot be negative: squared and absolute errors, cross entropies,
    KL divergences.
    Why it matters: such a value is no distance and no likelihood any more; it can fall for ever.
    Decides by: the recorded loss of each line that calls backward and what it is made of. Losses that may be negative
    (log-densities, policy gradients, critics) are not looked at.
    Usual cures: see the cause it is listed under: a flipped sign, raw scores in nll_loss, ids in a binary loss.
    """
    for fact in evidence.facts("loss"):
        kinds, series = fact.get("kinds") or ["custom"], fact.get("series")
        mixed = any(kind not in BOUNDED_BELOW for kind in kinds)
        divergence = any(term.kind == "gaussian_divergence" for term in loss_terms(evidence))
        curve = evidence.curve(series or "loss")
        if (mixed and not divergence) or not curve:
            continue
        below = np.flatnonzero(curve.values < -_SLACK)
        if len(below):
            yield Finding(
                "negative_loss",
                Severity.INFO,
                f"the {' + '.join(kinds)} loss is below 0 from step {int(curve.steps[below[0]])} on",
                step=int(curve.steps[below[0]]),
                source=fact.get("source"),
                evidence={"lowest": float(np.nanmin(curve.values)), "share_below_zero": len(below) / len(curve)},
                confidence=0.9,
            )
            return
