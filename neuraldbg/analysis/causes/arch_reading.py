"""What the architecture causes share: weights as they started, layers in order, gradients and activations by depth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.places import layer_line
from neuraldbg.records import Kind, Site, SiteKind


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of two or more dimensions as it stood before the first training pass."""

    site: int
    layer: str  # canonical path of the module
    module: int | None  # its site
    type: str  # class of the module
    shape: tuple[int, ...]
    gain: float
    equal_rows: bool
    low: float
    high: float


def weights(evidence: Evidence) -> list[Weight]:
    """Of linear and convolution layers that train, in the order of the model."""
    return evidence.once("arch weights", lambda: _weights(evidence))


def _weights(evidence: Evidence) -> list[Weight]:
    found = []
    for fact in evidence.facts("start"):
        site = evidence.sites.get(fact["site"])
        if site is None or not fact.get("trainable") or any(fact.get(name) is None for name in ("gain", "low", "high")):
            continue
        if fact["layer"] == "Embedding" or "Norm" in fact["layer"]:
            continue
        found.append(
            Weight(
                site.id,
                evidence.layer_of(site) or fact["path"],
                module_of(evidence, site, fact["path"]),
                fact["layer"],
                tuple(fact["shape"]),
                float(fact["gain"]),
                bool(fact.get("equal_rows")),
                float(fact["low"]),
                float(fact["high"]),
            )
        )
    return found


def module_of(evidence: Evidence, parameter: Site, path: str) -> int | None:
    if not path:
        return parameter.model
    for site in evidence.of_kind(SiteKind.MODULE):
        if site.model == parameter.model and site.path == path:
            return site.id
    return None


def defined(evidence: Evidence, module: int | None) -> str | None:
    """The line on which a module is made."""
    return layer_line(evidence, module)


def first_stats(evidence: Evidence, kind: Kind) -> dict[int, dict[str, float]]:
    """The first recorded row of each site: l2, std, count."""
    rows = evidence.stats(kind)
    found: dict[int, dict[str, float]] = {}
    _, first = np.unique(rows["site"], return_index=True)
    for at in first.tolist():
        names = ("l2", "std", "mean", "count", "step")
        found[int(rows["site"][at])] = {name: float(rows[name][at]) for name in names}
    return found


def gradient_rms(evidence: Evidence) -> dict[int, float]:
    """Root-mean-square gradient of each parameter at its first measured update."""
    found = {}
    for site, row in first_stats(evidence, Kind.GRADIENT).items():
        known = evidence.sites.get(site)
        if known is not None and known.kind is SiteKind.PARAMETER and row["count"] and math.isfinite(row["l2"]):
            found[site] = row["l2"] / math.sqrt(row["count"])
    return found


def activations(evidence: Evidence) -> list[dict[str, Any]]:
    """The last word on each activation, from the input of the network to its output."""
    last = {(f["op"], f.get("site"), f.get("fed_by"), f["order"]): f for f in evidence.facts("activation")}
    return sorted(last.values(), key=lambda fact: -fact["order"])


def first_activations(evidence: Evidence) -> list[dict[str, Any]]:
    """The same at the first look, before anything was learned."""
    first: dict[Any, dict[str, Any]] = {}
    for fact in evidence.facts("activation"):
        first.setdefault((fact["op"], fact.get("site"), fact.get("fed_by"), fact["order"]), fact)
    return sorted(first.values(), key=lambda fact: -fact["order"])


def stack(evidence: Evidence) -> dict[str, Any] | None:
    """The network below the first loss, as its graph showed it."""
    facts = evidence.facts("stack")
    return max(facts, key=lambda fact: fact["weighted"]) if facts else None
