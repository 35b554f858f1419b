"""saturated_units"""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.arch_reading import activations
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

MOSTLY = 0.5
LOOKS = 2


@symptom("saturated_units")
def saturated_units(evidence: Evidence) -> Iterator[Finding]:
    """Units stuck in the flat part of their activation.

    Finds: sigmoid and tanh layers of which more than half of the values lie within 2 % of the ends of the range.
    Why it matters: the derivative there is near zero: the layers before get hardly any gradient.
    Decides by: the values the activation put out in the batches looked at.
    Usual cures: smaller weights or inputs, normalisation before the activation, ReLU or GELU.
    """
    for fact in activations(evidence):
        if fact.get("flat_share") is None or fact["flat_share"] < MOSTLY or fact["looks"] < LOOKS:
            continue
        layer = evidence.name(fact.get("fed_by")) or evidence.name(fact.get("site"))
        yield Finding(
            "saturated_units",
            Severity.INFO,
            f"{fact['flat_share']:.0%} of the {fact['op'].lower()} outputs after {layer} lie in the flat part",
            step=0,
            layer=layer,
            op=fact["op"],
            evidence={"flat_share": fact["flat_share"], "stuck_units": fact["stuck"] or 0, "units": fact["units"]},
            confidence=0.85,
        )
