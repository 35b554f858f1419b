"""Which of update, gradient, activation and loss left its usual range first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.evidence import Curve, Evidence
from neuraldbg.records import Kind

BASELINE = 1  # points before there is a usual range: a run may be broken from its second step on
FAR = 10.0  # times the usual level that counts as having left it
_KINDS = {"activation": Kind.ACTIVATION, "gradient": Kind.GRADIENT, "update": Kind.UPDATE}


@dataclass(frozen=True, slots=True)
class Onset:
    """A quantity, the first step at which it was far outside its own past, and by how much."""

    quantity: str  # "update", "gradient", "activation", "loss"
    step: int
    factor: float  # inf where it became NaN or infinite


def onsets(evidence: Evidence) -> tuple[Onset, ...]:
    """In order of time; at the same step in the order of cause: an update comes before what it does to the next pass,
    and there the activation before the loss before the gradient."""
    curves = {"loss": evidence.curve("loss"), "gradient": evidence.curve("grad_norm")}
    for name, kind in _KINDS.items():
        if not curves.get(name):
            curves[name] = _norms(evidence, kind)
    found = [one for name, curve in curves.items() if (one := _onset(name, curve)) is not None]
    order = ("activation", "loss", "gradient", "update")
    return tuple(sorted(found, key=lambda one: (one.step, order.index(one.quantity))))


def _norms(evidence: Evidence, kind: Kind) -> Curve:
    """The largest norm of any layer at each step that was measured."""
    rows = evidence.stats(kind)
    if not len(rows["step"]):
        return Curve(np.empty(0, np.int64), np.empty(0, np.float64))
    bad = (rows["nan_count"] > 0) | (rows["inf_count"] > 0)
    values = np.where(bad, np.inf, rows["l2"])
    values = np.where(np.isnan(values), -np.inf, values)  # a tensor without elements
    steps, where = np.unique(rows["step"], return_inverse=True)
    largest = np.full(len(steps), -np.inf)
    np.maximum.at(largest, where, values)
    kept = largest > -np.inf
    return Curve(steps[kept], largest[kept])


def _onset(name: str, curve: Curve) -> Onset | None:
    values = np.abs(curve.values)
    for at in range(len(values)):
        if not np.isfinite(values[at]):
            return Onset(name, int(curve.steps[at]), float("inf"))
        usual = usual_level(values[:at])
        if usual is not None and values[at] > FAR * usual and _stays(values, at, usual):
            return Onset(name, int(curve.steps[at]), float(values[at] / usual))
    return None


def usual_level(past: NDArray[np.float64] | Sequence[float]) -> float | None:
    """The upper level of what was seen before; None before there is enough of it, or where it was all zero."""
    known = np.asarray(past, np.float64)[-200:]
    if len(known) < BASELINE:
        return None
    level = float(np.quantile(known, 0.9))
    return level if level > 0 else None


def _stays(values: NDArray[np.float64], at: int, usual: float) -> bool:
    """One wild value is a spike; the next ones decide whether it was a beginning."""
    after = values[at : at + 3]
    return bool(np.all(~np.isfinite(after) | (after > FAR * usual / 2)))
