"""What was trained on is not learned, though it could be."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.optim_arms import overfit_of
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity


@symptom("underfitting")
def underfitting(evidence: Evidence) -> Iterator[Finding]:
    """What was trained on is not learned, though it could be.

    Finds: a final loss on training batches close to the first one, where a short training on them reaches far lower.
    Why it matters: the model is worth no more than one that was never trained, on the very data it has seen.
    Decides by: the loss of the final and of the first weights on recorded batches, and that of a short training.
    Usual cures: see the cause beside it.
    """
    probe = overfit_of(evidence)
    if probe is None or not probe.failed:
        return
    best = min((arm.last for arm in (probe.own, *probe.arms.values())), default=probe.first)
    if best > 0.5 * probe.first or probe.final > 1e300:
        return
    yield Finding(
        "underfitting",
        Severity.INFO,
        f"the final model has a loss of {probe.final:.3g} on its training batches; {best:.3g} is within reach",
        evidence={"loss_first": probe.first, "loss_final": probe.final, "loss_within_reach": best},
        confidence=0.55,
    )
