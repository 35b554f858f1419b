"""On a device: which calls of layers were launched before the device came to them.

The time between two marks on a stream is the device's own while it has work. Where it is faster than the host it waits
for launches in between, and the time of a layer is that of launching it. Where the device has not passed a call's first
mark when the last of its operations is launched, there is nothing of that in its time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuraldbg.capture.torch.core import Core

EVERY = 1000  # updates, and until those are told who look rarely


class Launches:
    """One fact `launches` at the end and every thousand updates: of every layer its calls, of them those launched
    ahead, and the time of these."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._of: dict[int, list[int]] = {}  # site -> calls, ahead, nanoseconds
        self._written_at = 0
        core.take_part("update_done", "launches", self._updated, rarely=True)
        core.take_part("ending", "launches", self._behind_all)

    def called(self, site: int, marks: tuple[Any, Any], deliver: Callable[[int], None]) -> None:
        """A call whose operations are all launched; `deliver` its time once it is known."""
        ahead = not marks[0].query()
        known = self._of.setdefault(site, [0, 0, 0])

        def took(nanoseconds: int) -> None:
            known[0] += 1
            if ahead:
                known[1] += 1
                known[2] += nanoseconds
            deliver(nanoseconds)

        self.core.device.elapsed(*marks, took)

    def _updated(self, *_: Any) -> None:
        if self.core.recorder.step - self._written_at >= EVERY:
            self._written_at = self.core.recorder.step
            self._write()

    def _behind_all(self) -> None:
        """Times are told in the order they were asked for: this one after all of them."""
        mark = self.core.device.mark() if self._of else None
        if mark is not None:
            self.core.device.elapsed(mark, mark, lambda _: self._write())

    def _write(self) -> None:
        names = ("site", "calls", "ahead", "ahead_ns")
        rows = [dict(zip(names, (site, *counts), strict=True)) for site, counts in self._of.items()]
        if rows:
            self.core.recorder.fact("launches", layers=rows)
