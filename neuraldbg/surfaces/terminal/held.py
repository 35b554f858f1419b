"""Whether the training is held at a breakpoint: asked of its gate once, then told by it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from neuraldbg.control.channel import ChannelClient
from neuraldbg.errors import ChannelError
from neuraldbg.surfaces.terminal.figures import duration

AGAIN_S = 1.0  # between two tries to reach a training that is not there yet


class Pause(NamedTuple):
    text: str  # where, and for how long by now
    step: int | None


class Held:
    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._line: ChannelClient | None = None
        self._tried_s = -AGAIN_S
        self._where: tuple[str, int | None, float] | None = None  # the place, its step, since when
        self._told = False

    def where(self) -> Pause | None:
        """`paused at fc forward for 12s`; None while it goes on, and where nobody can know."""
        if self._line is not None and self._line.closed:
            self.close()
        if self._line is None and time.monotonic() - self._tried_s >= AGAIN_S:
            self._tried_s = time.monotonic()
            self._connect()
        where = self._where
        return None if where is None else Pause(f"{where[0]} for {duration(time.monotonic() - where[2])}", where[1])

    def _connect(self) -> None:
        self._told = False
        try:
            self._line = ChannelClient(self._run_dir, on_event=self._heard)
            state = self._line.call("state")
        except ChannelError:
            return
        if not self._told:  # else what was told meanwhile is newer
            self._where = _place(state) if state.get("state") == "paused" else None

    def _heard(self, event: Mapping[str, Any]) -> None:
        """In the thread of the line."""
        if event.get("event") in ("paused", "running"):
            self._told = True
            self._where = _place(event) if event["event"] == "paused" else None

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line, self._where = None, None


def _place(where: Mapping[str, Any]) -> tuple[str, int | None, float]:
    layer = where.get("layer")
    text = f"paused at {layer} {where.get('phase')}" if layer else "paused after the update"
    return text, where.get("step"), time.monotonic()
