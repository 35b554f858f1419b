"""Whether the weights had run away before the first value that was not finite: then it is a consequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraldbg.analysis.causes.optim_arms import overfit_of
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Kind, SiteKind

Origin = dict[str, Any]
FALLING = 0.7  # of the first losses
LARGE_UPDATE = 0.5  # of the weight: the taxonomy's own limit
THROWN = 3.0  # times the norm of all weights at the start
AT_ONCE = 10  # updates in which no training that works does that


def diverging(evidence: Evidence, origin: Origin) -> bool:
    """Whether the weights had already run away: then whatever overflows is a consequence of the updates."""
    before = int(origin["update"])
    if origin.get("diverging") or thrown_far(evidence, origin):
        return True
    return _updates_too_large(evidence, before) and not _was_falling(evidence, before)


def thrown_far(evidence: Evidence, origin: Origin) -> bool:
    """Whether a few updates have made the weights several times what they were, and large: before the first of them
    the same operation was given nothing of the kind. Later on only where a smaller rate is known to prevent it. A row
    that is bad by itself makes its NaN at every rate."""
    grown = (origin.get("growth") or 1.0) > THROWN and bool(origin.get("large")) and origin["where"] != "input"
    probe = overfit_of(evidence)
    slower = [] if probe is None else [arm for name, arm in probe.arms.items() if name in ("lr_x0.1", "lr_x0.01")]
    if not grown or int(origin["update"]) < 1 or (slower and all(arm.diverged for arm in slower)):
        return False
    cured = probe is not None and probe.own.diverged and any(probe.cures(arm.name) for arm in slower)
    return cured or int(origin["update"]) <= AT_ONCE


def _was_falling(evidence: Evidence, before: int) -> bool:
    """Large updates under which the loss comes down are not a run that runs away."""
    loss = evidence.curve("loss")
    known = loss.values[(loss.steps < before) & np.isfinite(loss.values)]
    return len(known) >= 10 and float(np.median(known[-5:])) < FALLING * float(np.median(known[:5]))


def _updates_too_large(evidence: Evidence, before: int) -> bool:
    """An update larger than half the weight in most weight tensors, twice among the last ten that were measured."""
    weights = [site for site in evidence.of_kind(SiteKind.PARAMETER) if site.shape is not None and len(site.shape) > 1]
    moved, sizes = evidence.stats(Kind.UPDATE), evidence.stats(Kind.PARAMETER)
    ids = [site.id for site in weights]
    size_of = {(int(s), int(k)): float(v) for s, k, v in zip(sizes["site"], sizes["step"], sizes["l2"], strict=True)}
    ratios: dict[int, list[float]] = {}
    for site, step, change in zip(moved["site"], moved["step"], moved["l2"], strict=True):
        after = size_of.get((int(site), int(step)))
        if site in ids and step < before and after:
            ratios.setdefault(int(step), []).append(float(change) / after)
    last = sorted(ratios)[-10:]
    large = [step for step in last if step > 0 and np.median(ratios[step]) > LARGE_UPDATE]
    return len(large) >= 2
