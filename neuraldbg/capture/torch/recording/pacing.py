"""When a recording that may cost next to nothing is awake: for the first updates, then for a few in a row, as often as
its share of the training's time allows. In between it looks at a clock once a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FIRST: Final = 20  # updates: as many as are watched in full
WINDOW: Final = 8  # updates in a row, later
CAREFUL: Final = 1.25  # times what a window took so far


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a recording may add to the memory that a training takes. Watching as such may add 64 and 32 MB."""

    host: int
    device: int

    def too_much(self, size: int, on_device: int) -> str | None:
        """Why so many bytes are not copied, in words."""
        if on_device > self.device:
            return f"and by itself a recording takes no more than {self.device >> 20} MB of a device"
        return f"and by itself a recording takes no more than {self.host >> 20} MB" if size > self.host else None


BY_ITSELF: Final = Bounds(host=40 * 2**20, device=20 * 2**20)


class Pace:
    """`elsewhere` tells the seconds that the thread which writes has computed, `clock` those that were trained: what
    passes while the process stands still pays for nothing."""

    def __init__(self, share: float, elsewhere: Callable[[], float], clock: Callable[[], float]) -> None:
        self.share = share
        self.awake = True
        self.windows = 1
        self._elsewhere, self._clock = elsewhere, clock
        self._left = FIRST
        self._own_s = 0.0  # in the training
        self._first_s = 0.0  # of all that, the first updates: they are had in any case
        self._began = clock()

    def spent(self, nanoseconds: int) -> None:
        self._own_s += nanoseconds / 1e9

    def update_done(self) -> bool:
        """Whether it falls asleep now."""
        self._left -= 1
        if self._left > 0:
            return False
        self.awake = False
        if self.windows == 1:
            self._first_s, self._began = self._own_s, self._clock()
        return True

    def due(self) -> bool:
        """Whether the time since the first updates has paid for another window. The writer's part of the first ones
        counts too: it may still be under way."""
        later_s = self._own_s - self._first_s + self._elsewhere()
        usual_s = later_s / (self.windows - 1) if self.windows > 1 else self._first_s + self._elsewhere()
        return later_s + CAREFUL * usual_s <= self.share * (self._clock() - self._began)

    def wake(self) -> None:
        self.awake, self._left, self.windows = True, WINDOW, self.windows + 1
