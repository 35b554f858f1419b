"""Gradients that are exactly zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Kind, Severity, SiteKind

FEWEST = 3


@symptom("zero_gradient")
def zero_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Whole gradients are exactly zero.

    Finds: parameters whose gradient has no non-zero element at nearly every step that was measured.
    Why it matters: an exact zero is no small number: the loss does not depend on the parameter at all, or the gradient
    was cleared before it was used.
    Decides by: the count of zeros in the gradients that step() found.
    Usual cures: see the cause it is listed under; dead units, cleared gradients and unused branches are the usual ones.
    """
    rows = evidence.stats(Kind.GRADIENT)
    parameters = {site.id for site in evidence.of_kind(SiteKind.PARAMETER)}
    chosen = np.isin(rows["site"], list(parameters)) & (rows["count"] > 0)
    zero = rows["zero_count"][chosen] == rows["count"][chosen]
    sites, steps = rows["site"][chosen], rows["step"][chosen]
    found = []
    for site in np.unique(sites[zero]):
        mine = sites == site
        if mine.sum() >= FEWEST and zero[mine].mean() >= 0.8:
            found.append(int(site))
    if not found:
        return
    layers = list(dict.fromkeys(name for site in found if (name := evidence.layer_of(site)) is not None))
    yield Finding(
        "zero_gradient",
        Severity.INFO,
        f"the gradient of {len(found)} of {len(np.unique(sites))} parameters is exactly zero, first in "
        f"{layers[0] if layers else '?'}",
        step=int(steps[zero & np.isin(sites, found)].min()),
        layer=layers[0] if layers else None,
        evidence={"parameters": len(found), "of": len(np.unique(sites)), "layers": ", ".join(layers[:8])},
        confidence=0.5,
    )
