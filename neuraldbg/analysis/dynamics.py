"""How a training goes, read off its losses alone: converging or not, steady or not, what it gains per step.

Pure functions over values in order. They abstain (unknown, None) where there are too few, and nothing is judged by an
absolute size: the scale of a loss is the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.detectors.loss_curve import blocks_of, finite, noise_of
from neuraldbg.analysis.results import Result

FEWEST: Final = 10
FLAT: Final = 0.03  # of what was gained in all: no more in the second half is a plateau
LOW: Final = 1 / 3  # of the first loss: a plateau below it is where the training has arrived
UNEVEN: Final = 0.5  # spread around the trend over the level


class ConvergenceStatus(Enum):
    """Where a loss goes."""

    Converging = "converging"
    Converged = "converged"
    Diverging = "diverging"
    Oscillating = "oscillating"
    Plateau = "plateau"
    Unknown = "unknown"


class TrainingStability(Enum):
    """How steadily it goes there."""

    Stable = "stable"
    Unstable = "unstable"
    HighVariance = "high_variance"
    Unknown = "unknown"


@dataclass(frozen=True, eq=False)
class Plateau(Result):
    since_step: int
    level: float
    length: int  # losses


@dataclass(frozen=True, eq=False)
class TrainingDynamics(Result):
    """`learning_efficiency`: the share of the first loss that is gone, per hundred recorded losses, 1 at most."""

    convergence_status: ConvergenceStatus = ConvergenceStatus.Unknown
    training_stability: TrainingStability = TrainingStability.Unknown
    learning_efficiency: float | None = None
    overfitting_indicators: tuple[str, ...] = ()
    underfitting_indicators: tuple[str, ...] = ()
    plateau_detection: Plateau | None = None
    evidence: dict[str, float] = field(default_factory=dict)


def dynamics_of(
    steps: Sequence[int], losses: Sequence[float], validation: Sequence[tuple[int, float]] = ()
) -> TrainingDynamics:
    """`validation`: (step, loss) on other data, where it was measured."""
    values = np.asarray(losses, np.float64)
    if len(values) < FEWEST:
        return TrainingDynamics()
    plateau = plateau_of(steps, values)
    status = convergence_of(values, plateau)
    return TrainingDynamics(
        convergence_status=status,
        training_stability=stability_of(values),
        learning_efficiency=efficiency_of(values),
        overfitting_indicators=tuple(overfitting(values, validation)),
        underfitting_indicators=tuple(underfitting(values, status)),
        plateau_detection=plateau,
        evidence=_ends(values),
    )


def _ends(values: NDArray[np.float64]) -> dict[str, float]:
    known = finite(values)
    if not len(known):
        return {}
    first, last = _first_and_last(known)
    return {"first_loss": first, "last_loss": last, "lowest_loss": float(known.min())}


def _first_and_last(known: NDArray[np.float64]) -> tuple[float, float]:
    width = max(3, len(known) // 10)
    return float(np.median(known[:width])), float(np.median(known[-width:]))


def convergence_of(values: NDArray[np.float64], plateau: Plateau | None) -> ConvergenceStatus:
    known = finite(values)
    if len(known) < FEWEST or not np.isfinite(values[-3:]).any():
        return ConvergenceStatus.Diverging if not np.isfinite(values[-3:]).any() else ConvergenceStatus.Unknown
    first, last = _first_and_last(known)
    rise, noise = last - first, noise_of(known)
    if rise > max(abs(first), 4 * noise):
        return ConvergenceStatus.Diverging
    if plateau is not None:
        done = first > 0 and plateau.level < LOW * first
        return ConvergenceStatus.Converged if done else ConvergenceStatus.Plateau
    late = known[len(known) // 2 :]
    low, middle, high = (float(value) for value in np.quantile(late, (0.1, 0.5, 0.9)))
    if high - low >= abs(middle) and last > 0.8 * first:
        return ConvergenceStatus.Oscillating
    return ConvergenceStatus.Converging if -rise > noise else ConvergenceStatus.Unknown


def plateau_of(steps: Sequence[int], values: NDArray[np.float64]) -> Plateau | None:
    """From the third quarter to the last next to nothing was gained of all that was, or no more than chance makes of
    two medians. None below 24 losses."""
    blocks = blocks_of(values, 4)
    if blocks is None:
        return None
    gained, late = blocks[0] - blocks[-1], blocks[2] - blocks[-1]
    noise = 4 * noise_of(values) / np.sqrt(len(values) / 4)
    swings = float(np.ptp(np.quantile(values[len(values) // 2 :], (0.1, 0.9))))
    if abs(late) > max(FLAT * abs(gained), noise) or swings >= abs(blocks[-1]) > 0:
        return None
    middle = len(values) // 2
    return Plateau(int(steps[middle]), float(blocks[-1]), len(values) - middle)


def stability_of(values: NDArray[np.float64]) -> TrainingStability:
    """Unstable: a loss that is not finite, or leaps tenfold above what came before it."""
    known = finite(values)
    if len(known) < FEWEST:
        return TrainingStability.Unknown
    if len(known) < len(values):
        return TrainingStability.Unstable
    typical = np.array([np.median(known[max(0, at - 10) : at]) for at in range(5, len(known))])
    if ((known[5:] > 10 * typical) & (typical > 0)).any():
        return TrainingStability.Unstable
    level = float(np.median(np.abs(known[len(known) // 2 :])))
    return TrainingStability.HighVariance if noise_of(known) > UNEVEN * level > 0 else TrainingStability.Stable


def efficiency_of(values: NDArray[np.float64]) -> float | None:
    known = finite(values)
    if len(known) < FEWEST:
        return None
    first, last = _first_and_last(known)
    if first <= 0:
        return None
    return float(min(max((first - last) / first * 100 / len(known), 0.0), 1.0))


def overfitting(values: NDArray[np.float64], validation: Sequence[tuple[int, float]]) -> list[str]:
    held = np.asarray([loss for _, loss in validation if np.isfinite(loss)])
    train = finite(values)
    if len(held) < 4 or len(train) < FEWEST:
        return []
    found = []
    lowest, last = float(held.min()), float(np.median(held[-3:]))
    falling = train[-len(train) // 4 :].mean() <= train.mean()
    if last > 1.1 * max(lowest, 0.0) and held.argmin() <= 0.75 * len(held) and falling:
        at = validation[int(held.argmin())][0]
        found.append(
            f"the validation loss rose from {lowest:.3g} (step {at}) to {last:.3g} while the training loss fell"
        )
    _, trained = _first_and_last(train)
    if trained > 0 and last > 3 * trained:
        found.append(
            f"the validation loss ({last:.3g}) is {last / trained:.1f} times the training loss ({trained:.3g})"
        )
    return found


def underfitting(values: NDArray[np.float64], status: ConvergenceStatus) -> list[str]:
    known = finite(values)
    if len(known) < FEWEST:
        return []
    first, last = _first_and_last(known)
    if status is ConvergenceStatus.Plateau and last > 0.8 * first > 0:
        return [f"the loss stays at {last:.3g}, close to where it began ({first:.3g})"]
    return []
