"""The training loss falls while that on other data rises."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.data_generalisation import evaluations
from neuraldbg.analysis.detectors.loss_curve import finite, main_loss
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity


@symptom("overfitting")
def overfitting(evidence: Evidence) -> Iterator[Finding]:
    """The training loss falls while that on other data rises.

    Finds: a loss that the script evaluates on rows it was not trained on, well above its lowest value at the end,
    while the training loss went on falling.
    Why it matters: what is still learned helps on the training set only.
    Decides by: the series `eval_loss`: each call of a torch loss with gradients off, on rows that were not trained on,
    averaged over the batches of one evaluation.
    Usual cures: stop at the lowest value; more data, weight decay, dropout, augmentation.
    """
    curve, train = evaluations(evidence), finite(main_loss(evidence).values)
    held = finite(curve.values)
    if len(held) < 4 or len(train) < 8 or len(held) < len(curve):
        evidence.cannot("overfitting", "fewer than four losses on other data were recorded")
        return
    lowest, last = float(held.min()), float(np.median(held[-3:]))
    if (
        last < 1.1 * max(lowest, 0.0)
        or held.argmin() > 0.75 * len(held)
        or train[-len(train) // 4 :].mean() > train.mean()
    ):
        return
    yield Finding(
        "overfitting",
        Severity.INFO,
        f"the loss on other data rose from {lowest:.3g} to {last:.3g} while the training loss fell",
        step=int(curve.steps[int(held.argmin())]),
        evidence={"lowest_eval_loss": lowest, "last_eval_loss": last, "last_train_loss": float(train[-1])},
        confidence=0.6,
    )
