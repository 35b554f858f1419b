"""The training loss falls while that on other data rises."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.loss_curve import finite, main_loss
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity


@symptom("overfitting")
def overfitting(evidence: Evidence) -> Iterator[Finding]:
    """The training loss falls while that on other data rises.

    Finds: a loss that the script evaluates on other data, well above its lowest value at the end, while the training
    loss went on falling.
    Why it matters: what is still learned helps on the training set only.
    Decides by: the series `eval_loss`, where the run has one.
    Usual cures: stop at the lowest value; more data, weight decay, dropout, augmentation.
    """
    held, train = finite(evidence.curve("eval_loss").values), finite(main_loss(evidence).values)
    if len(held) < 4 or len(train) < 8:
        evidence.cannot("overfitting", "no loss on other data was recorded")
        return
    lowest, last = float(held.min()), float(held[-2:].mean())
    if last < 1.1 * lowest or held.argmin() > 0.75 * len(held) or train[-len(train) // 4 :].mean() > train.mean():
        return
    yield Finding(
        "overfitting",
        Severity.INFO,
        f"the loss on other data rose from {lowest:.3g} to {last:.3g} while the training loss fell",
        step=int(evidence.curve("eval_loss").steps[int(held.argmin())]),
        evidence={"lowest_eval_loss": lowest, "last_eval_loss": last, "last_train_loss": float(train[-1])},
        confidence=0.6,
    )
