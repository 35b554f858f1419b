"""What came of an arm, against the same script without the change."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

LAST, FIRST = 20, 5  # updates that the end and the start of a training are read from
CURED = 0.5  # share of the way between what the control reached and the best that was reached by any arm
NOTABLE = 0.1  # of the control's loss
SLIGHT = 0.03


@dataclass(frozen=True, slots=True)
class Ending:
    """How one arm went."""

    losses: NDArray[np.float64]
    kinds: frozenset[str] = frozenset()  # of the findings above info
    exit_code: int | None = 0
    timed_out: bool = False

    @property
    def updates(self) -> int:
        return len(self.losses)

    @property
    def start(self) -> float | None:
        """The loss before the first update; where that is not finite, the usual one of the first few."""
        finite = self.losses[:FIRST][np.isfinite(self.losses[:FIRST])]
        if len(finite) and np.isfinite(self.losses[0]):
            return float(self.losses[0])
        return float(np.median(finite)) if len(finite) else None

    @property
    def final(self) -> float | None:
        """The loss it ended with, a median, since one outlier must not decide; infinite where it was not a number."""
        last = self.losses[-min(LAST, max(len(self.losses) // 4, 1)) :] if len(self.losses) else self.losses
        if not len(last):
            return None
        return float(np.median(np.where(np.isfinite(last), last, np.inf)))

    @property
    def spread(self) -> float:
        last = self.losses[-min(LAST, max(len(self.losses) // 4, 1)) :]
        finite = last[np.isfinite(last)]
        if len(finite) < 2:
            return 0.0
        deviation = np.median(np.abs(finite - np.median(finite))) * 1.4826
        return float(deviation / math.sqrt(len(finite)))


def same(one: Ending, other: Ending) -> bool:
    """Whether two runs of the same program took the same way."""
    return len(one.losses) == len(other.losses) and bool(np.array_equal(one.losses, other.losses, equal_nan=True))


def failed(ending: Ending) -> bool:
    """Whether the training itself went wrong: it ended with an error, or did not get down from where it began."""
    start, final = ending.start, ending.final
    if ending.exit_code not in (0, None) or final is None or start is None or not math.isfinite(final):
        return True
    return final > start - CURED * abs(start)


def effect(control: Ending, arm: Ending, cause: str | None = None) -> str:
    """`cured`, `helps`, `no_effect` or `harm`.

    A training that went wrong is cured when its loss comes down where the control's did not. One whose loss was fine is
    cured of a cause when that cause is no longer found and nothing was lost."""
    if arm.exit_code not in (0, None) and control.exit_code in (0, None):
        return "harm"
    if control.exit_code not in (0, None) and arm.exit_code in (0, None):
        return "cured" if not failed(arm) or arm.updates > control.updates else "helps"
    if arm.timed_out:
        return _in_less_time(control, arm)
    by_loss = _by_loss(control, arm)
    if by_loss in ("harm", "cured") or cause is None:
        return by_loss
    if cause in control.kinds and cause not in arm.kinds and not failed(control):
        return "cured" if not arm.kinds - control.kinds else "helps"
    return by_loss


def _in_less_time(control: Ending, arm: Ending) -> str:
    """An arm whose time ran out is held against as many updates of the control. One that hardly moved does harm."""
    if arm.updates < min(LAST, control.updates):
        return "harm" if not control.timed_out else "no_effect"
    return _by_loss(replace(control, losses=control.losses[: arm.updates]), arm)


def _by_loss(control: Ending, arm: Ending) -> str:
    before, after, start = control.final, arm.final, control.start
    if before is None or after is None:
        return "no_effect"
    if not math.isfinite(after):
        return "harm" if math.isfinite(before) else "no_effect"
    if not math.isfinite(before):
        begun = start if start is not None else arm.start
        return "cured" if begun is None or after < begun - NOTABLE * abs(begun) else "helps"
    gain = before - after
    noise = 3 * (control.spread + arm.spread)
    if gain < -max(NOTABLE * abs(before), noise):
        return "harm"
    if gain < max(SLIGHT * abs(before), noise):
        return "no_effect"
    begun = start if start is not None else before
    much = gain >= CURED * abs(begun - after) and gain >= max(NOTABLE * abs(before), noise)
    return "cured" if much and after < begun - NOTABLE * abs(begun) else "helps"
