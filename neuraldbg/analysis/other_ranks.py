"""Which rank saw a NaN or infinity first: the others are sent it with the gradients."""

from __future__ import annotations

import numpy as np

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.ranks import Process, processes
from neuraldbg.records import SiteKind

NOT_FINITE = frozenset(  # beside the causes of numerics: what is judged where it began
    {"nan_in_input", "data_outlier_batch", "nan_loss", "inf_loss", "nan_gradient", "nan_activation"}
)


def first_not_finite(evidence: Evidence) -> Process | None:
    """The rank where it began, if that is not the one that speaks for all; None too where nothing of it was seen."""
    group = processes(evidence.trace)
    if len(group) < 2:
        return None
    began = _began(evidence)
    seen = {rank: began[one.folder] for rank, one in group.items() if one.folder in began}
    if not seen:
        return None
    first = min(seen, key=lambda rank: (seen[rank], group[rank].folder != evidence.main))
    return None if group[first].folder == evidence.main else group[first]


def _began(evidence: Evidence) -> dict[int, tuple[int, bool]]:
    """By folder: the step, and whether its loss was still finite: then the gradient may have come from another rank."""
    found = [(folder, (step, False)) for folder, step in _bad_losses(evidence)]
    found += [(f["rank"], (int(f["update"]), True)) for f in evidence.trace.facts("origin") if "update" in f]
    first: dict[int, tuple[int, bool]] = {}
    for folder, when in found:
        first[folder] = min(when, first.get(folder, when))
    return first


def _bad_losses(evidence: Evidence) -> list[tuple[int, int]]:
    """Folder and step of each that is not finite."""
    site = next((s.id for s in evidence.trace.sites if s.kind is SiteKind.SERIES and s.path == "loss"), None)
    if site is None:
        return []
    table = evidence.trace.table("scalars", ("step", "value", "rank"), site=site)
    bad = ~np.isfinite(table["value"])
    return list(zip(table["rank"][bad].tolist(), table["step"][bad].tolist(), strict=True))
