"""The loss is NaN."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.loss_curve import went_on
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Severity


@symptom("nan_loss")
def nan_loss(evidence: Evidence) -> Iterator[Finding]:
    """The loss is NaN.

    Finds: a backward that was started from a loss of NaN.
    Why it matters: every gradient of such a backward is NaN, and the next update writes NaN into every weight: the run
    is lost from there on, unless a gradient scaler or a check of your own leaves that update out.
    Decides by: the value of the loss at each backward call; nothing is smoothed or guessed.
    Usual cures: see the cause named beside it (log of zero, division by zero, overflow, a bad batch, a step too large).
    """
    yield from first_bad(evidence, "nan_loss", "NaN", np.isnan)


def first_bad(evidence: Evidence, kind: str, word: str, bad: np.ufunc) -> Iterator[Finding]:
    """The first backward whose loss is bad in one way, and how many are."""
    loss = evidence.curve("loss")
    chosen = np.flatnonzero(bad(loss.values))
    if not len(chosen):
        return
    first = int(loss.steps[chosen[0]])
    lasting = len(chosen) == len(loss) - chosen[0]
    yield Finding(
        kind,
        Severity.WARNING if went_on(evidence) else Severity.CRITICAL,
        f"the loss is {word} from update {first} on" if lasting else f"the loss is {word}, first at update {first}",
        step=first,
        last_step=int(loss.steps[chosen[-1]]),
        source=evidence.line_of(Call.BACKWARD),
        evidence={"bad_backwards": len(chosen), "backwards": len(loss)},
        confidence=0.99,
        inference="a backward from it makes every gradient NaN",
    )
