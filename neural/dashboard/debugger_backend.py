"""A training loop under remote control, by hand: the loop asks `wait_if_paused`, somebody else commands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from neuraldbg.errors import UsageError

from .hooks import UnknownEvent

EVENTS = ("on_start", "on_pause", "on_stop", "on_step", "on_breakpoint")


class DebuggerBackend:
    """`status()` is `{isRunning, isPaused, currentLayer, currentStep, breakpoints}`; `progress` has `forwardPass`,
    `backwardPass` (0 to 1, or None) and `currentPhase`."""

    def __init__(self) -> None:
        self.breakpoints: set[int] = set()
        self.current_layer: str | None = None
        self.current_step = 0
        self.trace: list[dict[str, Any]] = []
        self.variables: dict[str, Any] = {}
        self.progress: dict[str, Any] = {"forwardPass": None, "backwardPass": None, "currentPhase": None}
        self._callbacks: dict[str, list[Callable[..., Any]]] = {name: [] for name in EVENTS}
        self._running = False
        self._steps = 0  # that may still be made while paused
        self._paused = False
        self._changed = threading.Condition()

    @property
    def is_running(self) -> bool:
        """Since `handle_start`, until `handle_stop`."""
        return self._running

    @property
    def is_paused(self) -> bool:
        """Whether `wait_if_paused` would wait."""
        return self._paused

    def register_callback(self, event: str, callback: Callable[..., Any]) -> None:
        """Called at `on_start`, `on_pause`, `on_stop`, `on_step` or `on_breakpoint`."""
        if event not in self._callbacks:
            raise UnknownEvent(event, EVENTS)
        self._callbacks[event].append(callback)

    def handle_start(self) -> dict[str, Any]:
        """Begins."""
        return self._become("on_start", running=True, paused=False)

    def handle_pause(self) -> dict[str, Any]:
        """The loop waits at its next `wait_if_paused`."""
        return self._become("on_pause", running=self._running, paused=True)

    def handle_continue(self) -> dict[str, Any]:
        """The loop goes on."""
        return self._become(None, running=True, paused=False)

    def handle_stop(self) -> dict[str, Any]:
        """Ends; a loop that waits goes on."""
        return self._become("on_stop", running=False, paused=False)

    def handle_step(self) -> dict[str, Any]:
        """Lets a paused loop through its next `wait_if_paused`, once."""
        with self._changed:
            self._running, self._paused = True, True
            self._steps += 1
            self._changed.notify_all()
        self._fire("on_step")
        return self.status()

    def handle_add_breakpoint(self, line: int) -> dict[str, Any]:
        """At a line of the model file."""
        if isinstance(line, bool) or not isinstance(line, int) or line < 1:
            raise UsageError(f"a breakpoint stands at a line number from 1 on, not at {line!r}")
        self.breakpoints.add(line)
        return self.status()

    def handle_remove_breakpoint(self, line: int) -> dict[str, Any]:
        """From that line."""
        self.breakpoints.discard(line)
        return self.status()

    def handle_clear_all_breakpoints(self) -> dict[str, Any]:
        """From every line."""
        self.breakpoints.clear()
        return self.status()

    def reached(self, line: int) -> bool:
        """The loop is at a line: pauses where it has a breakpoint."""
        if line not in self.breakpoints:
            return False
        with self._changed:
            self._paused = True
        self._fire("on_breakpoint", line)
        return True

    def wait_if_paused(self, timeout_s: float | None = None) -> bool:
        """Returns when the loop may go on; False when the time is over before."""
        with self._changed:
            while self._paused and not self._steps:
                if not self._changed.wait(timeout_s if timeout_s is not None else 0.5) and timeout_s is not None:
                    return False
            self._steps = max(self._steps - 1, 0)
            return True

    def update_progress(self, phase: str | None, forward: float | None = None, backward: float | None = None) -> None:
        """Of forward and backward, as shares, and the phase it is in."""
        self.progress = {"forwardPass": forward, "backwardPass": backward, "currentPhase": phase}

    def status(self) -> dict[str, Any]:
        """As `GET /api/debugger/status` answers."""
        return {
            "isRunning": self._running,
            "isPaused": self._paused,
            "currentLayer": self.current_layer,
            "currentStep": self.current_step,
            "breakpoints": sorted(self.breakpoints),
        }

    def _become(self, event: str | None, *, running: bool, paused: bool) -> dict[str, Any]:
        with self._changed:
            self._running, self._paused, self._steps = running, paused, 0
            self._changed.notify_all()
        if event is not None:
            self._fire(event)
        return self.status()

    def _fire(self, event: str, *arguments: Any) -> None:
        for callback in list(self._callbacks[event]):
            callback(*arguments)
