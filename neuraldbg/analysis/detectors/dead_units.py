"""dead_units"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.arch_reading import activations
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Kind, Severity, SiteKind

SHARE = 0.1  # of a layer's units
LOOKS = 3


@symptom("dead_units")
def dead_units(evidence: Evidence) -> Iterator[Finding]:
    """Units that put out zero for every sample.

    Finds: rectified layers of which a tenth or more of the units were zero for every sample of every batch looked at;
    with an activation threshold of the user's, layers whose activations stay below it.
    Why it matters: such a unit has no gradient and cannot recover: the layer is narrower than it looks.
    Decides by: each unit on its own, over all batches looked at (at least three); the units are named.
    Usual cures: a smaller learning rate, LeakyReLU or GELU, He initialisation with zero biases, normalised inputs.
    """
    for fact in activations(evidence):
        if not fact.get("dead") or fact["looks"] < LOOKS or fact["dead"] < SHARE * fact["units"]:
            continue
        layer = evidence.name(fact.get("fed_by")) or evidence.name(fact.get("site"))
        which = ", ".join(map(str, fact["dead_units"][:8])) + (", ..." if fact["dead"] > 8 else "")
        yield Finding(
            "dead_units",
            Severity.INFO,
            f"{fact['dead']} of {fact['units']} units after {layer} are zero for every sample",
            step=0,
            layer=layer,
            op=fact["op"],
            evidence={"dead": fact["dead"], "units": fact["units"], "batches": fact["looks"], "which": which},
            confidence=0.9,
        )
    yield from _below_threshold(evidence)


def _below_threshold(evidence: Evidence) -> Iterator[Finding]:
    limit = evidence.thresholds.activation
    if limit is None:
        return
    rows = evidence.stats(Kind.ACTIVATION)
    for site in np.unique(rows["site"]).tolist():
        mine = rows["site"] == site
        known = evidence.sites.get(site)
        largest = np.nanmax(np.abs(np.stack([rows["min"][mine], rows["max"][mine]])), initial=0.0)
        if known is not None and known.kind is SiteKind.MODULE and largest < limit:
            yield Finding(
                "dead_units",
                Severity.WARNING,
                f"no activation of {evidence.name(site)} reaches {limit:g}",
                step=int(rows["step"][mine][0]),
                layer=evidence.name(site),
                evidence={"largest_activation": float(largest), "threshold": limit},
                confidence=0.9,
            )
