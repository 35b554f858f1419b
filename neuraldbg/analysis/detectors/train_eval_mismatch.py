"""train_eval_mismatch"""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

DIFFERENT = 0.5
WORSE = 2.0


@symptom("train_eval_mismatch")
def train_eval_mismatch(evidence: Evidence) -> Iterator[Finding]:
    """The same batch gives other results in training and in evaluation mode.

    Finds: models whose outputs for one recorded batch differ by more than half between the two modes and whose loss
    differs by a factor of two.
    Why it matters: what is evaluated is not what was trained.
    Decides by: a probe of the last batch after the run, in both modes.
    Usual cures: see what differs: dropout (lower p) or BatchNorm statistics (larger momentum, larger batches).
    """
    ran = evidence.probe("train_eval")
    if ran is None:
        evidence.cannot("train_eval_mismatch", evidence.why_no_probe("train_eval"))
        return
    apart, train, test = ran.get("train_eval"), ran.get("loss_train"), ran.get("loss_eval")
    if apart is None or apart < DIFFERENT or train is None or test is None:
        return
    low, high = sorted((abs(train), abs(test)))
    if high > WORSE * low + 1e-9:
        yield Finding(
            "train_eval_mismatch",
            Severity.INFO,
            f"the same batch has loss {train:.3g} in training mode and {test:.3g} in evaluation mode",
            step=ran.get("step"),
            evidence={"difference_of_outputs": apart, "loss_in_training": train, "loss_in_evaluation": test},
            confidence=0.85,
        )
