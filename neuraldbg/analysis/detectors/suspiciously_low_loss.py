"""The loss is far below what the task should allow."""

from __future__ import annotations

import math
from collections.abc import Iterator

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.loss_terms import NUMERIC, OVER_CLASSES, Fact, LossTerm, loss_terms
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity


@symptom("suspiciously_low_loss")
def suspiciously_low_loss(evidence: Evidence) -> Iterator[Finding]:
    """The loss is far below what the task should allow.

    Finds: a cross entropy below a hundredth of that of guessing, or an error below a hundredth of the targets' spread.
    Why it matters: real data is rarely that easy. Often the answer is in the input, or most targets are trivial.
    Decides by: the values at the loss at the last look. By itself it is information: some tasks are that easy.
    Usual cures: look for the target among the inputs, for a missing causal mask, for padding that counts.
    """
    for term in loss_terms(evidence):
        share = _share(term, term.last)
        if share is None or share > 0.01 or term.get("sign") == -1.0:
            continue
        yield Finding(
            "suspiciously_low_loss",
            Severity.INFO,
            f"the {term.kind} loss has fallen to {share:.2%} of what guessing gives",
            step=int(term.last.get("at_step", 0)),
            source=evidence.source(term.source_id),
            evidence={"share_of_guessing": share},
            confidence=0.4,
        )
        return


def _share(term: LossTerm, fact: Fact) -> float | None:
    if term.kind in OVER_CLASSES and (fact.get("classes") or 0) > 1 and fact.get("loss_on_major") is not None:
        rest = fact.get("loss_on_rest")
        share = fact.get("label_share") or 1.0
        mean = fact["loss_on_major"] if rest is None else share * fact["loss_on_major"] + (1 - share) * rest
        return float(mean / math.log(fact["classes"])) if mean >= 0 else None
    if term.kind in NUMERIC and fact.get("error_rms") is not None and (fact.get("target_std") or 0.0) > 0:
        return float(fact["error_rms"] / fact["target_std"])
    return None
