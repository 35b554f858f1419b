"""A gradient that is not finite reaches an update."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Kind, Severity, SiteKind


@symptom("nan_gradient")
def nan_gradient(evidence: Evidence) -> Iterator[Finding]:
    """A gradient is NaN or infinite.

    Finds: an update that is given a gradient with NaN or infinity in it. Updates that a GradScaler or the script
    itself skips are not among them.
    Why it matters: the update writes NaN into the weights, for good.
    Decides by: the norm of all gradients when step() is entered, and the counts per parameter on measured steps.
    Usual cures: see the cause named beside it; clip_grad_norm_ does not help, NaN stays NaN.
    """
    norms = evidence.curve("grad_norm")
    bad = norms.steps[np.isnan(norms.values)]  # an infinite norm may be an overflow of the norm itself
    seen = [one for one in evidence.facts("origin") if not (one.get("update_skipped") and evidence.updates)]
    origins = [int(one["update"]) for one in seen if one["where"] == "backward"]
    first, site = _measured(evidence)
    steps = [*map(int, bad[:1]), *origins[:1], *([] if first is None else [first])]
    if not steps:
        return
    yield Finding(
        "nan_gradient",
        Severity.CRITICAL,
        f"a gradient is NaN or infinite at update {min(steps)}",
        step=min(steps),
        layer=None if site is None else evidence.layer_of(site),
        source=evidence.line_of(Call.STEP),
        evidence={"norms_nan": len(bad), "norms_looked_at": len(norms)},
        confidence=0.99,
        inference="the update writes it into the weights",
    )


def _measured(evidence: Evidence) -> tuple[int | None, int | None]:
    """The first measured parameter gradient that is not finite: step and parameter."""
    parameters = [site.id for site in evidence.of_kind(SiteKind.PARAMETER)]
    rows = evidence.stats(Kind.GRADIENT, parameters)
    chosen = np.flatnonzero((rows["nan_count"] > 0) | (rows["inf_count"] > 0))
    return (int(rows["step"][chosen[0]]), int(rows["site"][chosen[0]])) if len(chosen) else (None, None)
