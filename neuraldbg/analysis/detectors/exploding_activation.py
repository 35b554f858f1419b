"""exploding_activation"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Kind, Severity

GREW = 1e3


@symptom("exploding_activation")
def exploding_activation(evidence: Evidence) -> Iterator[Finding]:
    """Activations grow without bound.

    Finds: layers whose output norm grew a thousand times above where it started.
    Why it matters: the next steps overflow, or the loss is dominated by a few huge values.
    Decides by: the norm of each layer's output over the steps measured, relative to its first one.
    Usual cures: a smaller learning rate, gradient clipping, normalisation.
    """
    rows = evidence.stats(Kind.ACTIVATION)
    for site in np.unique(rows["site"]).tolist():
        mine = (rows["site"] == site) & np.isfinite(rows["l2"]) & (rows["count"] > 0)
        size = rows["l2"][mine] / np.sqrt(rows["count"][mine])
        if len(size) < 2 or size[0] <= 0:
            continue
        over = np.flatnonzero(size > GREW * size[0])
        if len(over):
            yield Finding(
                "exploding_activation",
                Severity.INFO,
                f"the output of {evidence.name(site)} grew {size.max() / size[0]:.2g} times",
                step=int(rows["step"][mine][over[0]]),
                layer=evidence.name(site),
                evidence={"first": float(size[0]), "largest": float(size.max())},
                confidence=0.8,
            )
            return
