"""The loss of a run as the curve symptoms read it: one line's values, in a few robust blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.evidence import Curve, Evidence
from neuraldbg.records import SiteKind

FEWEST = 24  # values: below that a curve has no shape


def main_loss(evidence: Evidence) -> Curve:
    """The loss of the line that calls backward most often: those of several networks are not one curve."""
    names = [site.path for site in evidence.of_kind(SiteKind.SERIES) if site.path.startswith("loss.")]
    curves = [evidence.curve(name) for name in names] or [evidence.curve("loss")]
    return max(curves, key=len)


def one_loss(evidence: Evidence) -> bool:
    """Whether nearly all backwards come from one line."""
    total = len(evidence.curve("loss"))
    return total == 0 or len(main_loss(evidence)) >= 0.95 * total


def says_nothing(evidence: Evidence, kind: str) -> bool:
    """True, and said, where the loss is a log-probability times a worth of either sign: its gradient points to better
    policies, its value does not tell how good they are."""
    if not any(fact.get("both_ways") for fact in evidence.facts("score_term")):
        return False
    evidence.cannot(kind, "the value of a policy-gradient loss does not tell progress: watch the reward")
    return True


def went_on(evidence: Evidence) -> bool:
    """Whether the loss is a number at the end: a scaler or the user's own check let a bad update go."""
    values = main_loss(evidence).values
    return len(values) > 0 and bool(np.isfinite(values[-1]))


def finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


def blocks_of(values: NDArray[np.float64], count: int) -> NDArray[np.float64] | None:
    """Medians over equal stretches; None for short curves and such with NaN."""
    if len(values) < max(FEWEST, 2 * count) or not np.isfinite(values).all():
        return None
    return np.array([np.median(part) for part in np.array_split(values, count)])


def noise_of(values: NDArray[np.float64]) -> float:
    """The usual size of the jump from one value to the next: a robust deviation that ignores slow change."""
    jumps = np.abs(np.diff(finite(values)))
    return float(1.4826 * np.median(jumps) / np.sqrt(2)) if len(jumps) else 0.0
