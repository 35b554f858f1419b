"""The same prediction for every input."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.loss_terms import NUMERIC, Fact, LossTerm, loss_terms
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

_LATE = 20  # updates: at the start many networks say much the same to everything
_SAME = 2e-3  # spread over samples, relative to that of the targets or to 1 for scores


@symptom("constant_output")
def constant_output(evidence: Evidence) -> Iterator[Finding]:
    """The same prediction for every input.

    Finds: predictions that, at the loss, hardly differ between the samples of a batch in the later part of the run.
    Why it matters: the model has stopped looking at its input.
    Decides by: the spread of predictions over samples at the last looks, beside the spread of the targets.
    Usual cures: see the cause it is listed under.
    """
    for term in loss_terms(evidence):
        late = [fact for fact in term.facts if fact.get("row_spread") is not None and fact.get("at_step", 0) >= _LATE]
        if not late or not all(_flat(term, fact) for fact in late[-2:]):
            continue
        yield Finding(
            "constant_output",
            Severity.INFO,
            f"the predictions that go into the {term.kind} loss are the same for all samples",
            step=int(late[0].get("at_step", 0)),
            source=evidence.source(term.source_id),
            evidence={
                "spread_of_predictions": float(late[-1]["row_spread"]),
                **({"spread_of_targets": late[-1]["target_std"]} if late[-1].get("target_std") is not None else {}),
            },
            confidence=0.8,
        )
        return


def _flat(term: LossTerm, fact: Fact) -> bool:
    if term.kind in NUMERIC:
        spread = fact.get("target_std") or 0.0
        return spread > 0 and float(fact["row_spread"]) < 0.02 * spread and fact.get("target_shape", [0])[0] > 3
    return float(fact["row_spread"]) < _SAME and (fact.get("rows") or fact.get("target_shape", [0])[0]) > 3
