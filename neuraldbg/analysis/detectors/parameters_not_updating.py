"""Trainable parameters that do not change."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.causes.loop_parameters import last_known_models
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Kind, Severity, SiteKind

FEWEST = 3


@symptom("parameters_not_updating")
def parameters_not_updating(evidence: Evidence) -> Iterator[Finding]:
    """Trainable parameters do not change.

    Finds: trainable parameters that are the same before and after every update that was measured, that belong to no
    optimizer, or that nothing ever updates.
    Why it matters: what does not change does not learn.
    Decides by: the difference of each parameter across step(), the owners of all parameters, and the count of updates.
    Usual cures: see the cause it is listed under.
    """
    still = _unmoved(evidence)
    known = last_known_models(evidence) if evidence.count(Call.STEP) >= FEWEST else ()
    left_out = [site for model in known if not model["unowned_moved"] for site in model["unowned"]]
    never = not evidence.updates and evidence.backwards >= FEWEST
    if not (still or left_out or never):
        return
    sites = [site for site in dict.fromkeys([*still, *left_out]) if site in evidence.sites]
    layers = list(dict.fromkeys(name for site in sites if (name := evidence.layer_of(site)) is not None))
    several = "trainable parameter never changes" if len(sites) == 1 else "trainable parameters never change"
    what = "no parameter is ever updated" if never else f"{len(sites)} {several}"
    yield Finding(
        "parameters_not_updating",
        Severity.INFO,
        what + (f", the first in {layers[0]}" if layers else ""),
        step=0,
        layer=layers[0] if layers else None,
        evidence={
            "parameters": len(sites),
            "share_of_weights": 1.0 if never else _share(evidence, sites),
            "updates": evidence.updates,
            "layers": ", ".join(layers[:8]),
        },
        confidence=0.5,
    )


def _share(evidence: Evidence, sites: list[int]) -> float:
    """Of all weights that may change, counted in elements."""
    trainable = [site for site in evidence.of_kind(SiteKind.PARAMETER) if site.op != "frozen"]
    size = {site.id: math.prod(site.shape or (1,)) for site in trainable}
    return sum(size.get(site, 0) for site in sites) / max(sum(size.values()), 1)


def _unmoved(evidence: Evidence) -> list[int]:
    rows = evidence.stats(Kind.UPDATE)
    found = []
    for site in np.unique(rows["site"]):
        mine = rows["site"] == site
        known = evidence.sites.get(int(site))
        if known is None or known.op == "frozen" or mine.sum() < FEWEST:
            continue
        if (rows["zero_count"][mine] == rows["count"][mine]).all():
            found.append(int(site))
    return found
