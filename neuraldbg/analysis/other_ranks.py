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
    began = {rank: _began(evidence, one.folder) for rank, one in group.items()}
    seen = {rank: when for rank, when in began.items() if when is not None}
    if not seen:
        return None
    first = min(seen, key=lambda rank: (seen[rank], group[rank].folder != evidence.main))
    return None if group[first].folder == evidence.main else group[first]


def _began(evidence: Evidence, folder: int) -> tuple[int, bool] | None:
    """The step, and whether its loss was still finite: then the gradient may have come from another rank."""
    losses = _first_bad_loss(evidence, folder)
    origins = [int(f["update"]) for f in evidence.trace.facts("origin") if f["rank"] == folder and "update" in f]
    found = [(losses, False)] if losses is not None else []
    return min([*found, *((step, True) for step in origins)], default=None)


def _first_bad_loss(evidence: Evidence, folder: int) -> int | None:
    site = next((s.id for s in evidence.trace.sites if s.kind is SiteKind.SERIES and s.path == "loss"), None)
    if site is None:
        return None
    table = evidence.once(
        "losses of ranks", lambda: evidence.trace.table("scalars", ("step", "value", "rank"), site=site)
    )
    bad = (table["rank"] == folder) & ~np.isfinite(table["value"])
    return int(table["step"][bad].min()) if bad.any() else None
