"""An activation that is not finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.loss_curve import went_on
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Kind, Severity


@symptom("nan_activation")
def nan_activation(evidence: Evidence) -> Iterator[Finding]:
    """A layer puts out NaN or infinity.

    Finds: the first layer whose output holds NaN or infinity on a measured step.
    Why it matters: where nothing masks it, it reaches the loss. Infinities that a mask put there on purpose do not, and
    are only mentioned.
    Decides by: counting NaN and infinite elements of layer outputs; it is grave only when the loss of that step was not
    finite either.
    Usual cures: see the cause named beside it.
    """
    rows = evidence.stats(Kind.ACTIVATION)
    order = np.argsort(rows["seq"], kind="stable")
    bad = order[(rows["nan_count"][order] > 0) | (rows["inf_count"][order] > 0)]
    if not len(bad):
        return
    first = bad[0]
    step = int(rows["step"][first])
    loss = evidence.curve("loss")
    reached = bool(np.any(~np.isfinite(loss.values[loss.steps == step])))
    nan, inf, count = (int(rows[name][first]) for name in ("nan_count", "inf_count", "count"))
    layer = evidence.name(int(rows["site"][first]))
    tail = "" if reached else "; the loss of that step is finite, so it may be a mask"
    yield Finding(
        "nan_activation",
        _gravity(evidence) if reached else Severity.INFO,
        f"the output of {layer} holds {nan} NaN and {inf} infinite values of {count}{tail}",
        step=step,
        layer=layer,
        evidence={"nan": nan, "inf": inf, "count": count, "measured_outputs": len(rows["step"])},
        confidence=0.99 if reached else 0.3,
        inference="the loss of the step is not finite either" if reached else "",
    )


def _gravity(evidence: Evidence) -> Severity:
    return Severity.WARNING if went_on(evidence) else Severity.CRITICAL
