"""The loss is where it was at the start."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.loss_curve import FEWEST, main_loss, noise_of, says_nothing
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity


@symptom("no_learning")
def no_learning(evidence: Evidence) -> Iterator[Finding]:
    """The loss is where it was at the start.

    Finds: a loss whose last third is not lower than its first values, beyond what its noise allows.
    Why it matters: the updates change weights, or not even those, and nothing is learned.
    Decides by: medians of the first tenth and of the last third, and the jumps from value to value.
    Usual cures: see the cause beside it: the step size, a cut graph, a dead or saturated network, wrong labels.
    """
    if says_nothing(evidence, "no_learning"):
        return
    curve = main_loss(evidence)
    values = curve.values
    if len(values) < FEWEST or not np.isfinite(values).all():
        return
    head, tail = values[: max(5, len(values) // 10)], values[-len(values) // 3 :]
    first, last = float(np.median(head)), float(np.median(tail))
    doubt = 2.5 * noise_of(values) * (1 / len(head) + 1 / len(tail)) ** 0.5
    if first - last > max(doubt, 0.03 * abs(first)):
        return
    yield Finding(
        "no_learning",
        Severity.INFO,
        f"the loss is {last:.3g} at the end and was {first:.3g} at the start",
        step=int(curve.steps[0]),
        evidence={"loss_first": first, "loss_last": last, "noise": noise_of(values)},
        confidence=0.6,
    )
