"""The live line: the last row of the terminal, kept out of the way of what the script prints.

The rows above become a scroll region, as package managers do, so a progress bar or a prompt of the script goes on
working. Every redraw is one write; the region is given back at the end, before a Ctrl-Z and on SIGTERM.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from neuraldbg.records import SiteKind
from neuraldbg.surfaces.terminal.figures import duration, figure, shortened

if TYPE_CHECKING:
    from neuraldbg.surfaces.terminal.held import Pause
    from neuraldbg.trace import Trace

REDRAW_S = 0.25
LONGEST_REST_S = 3.0  # the first look at a run works longer than all later ones
FEWEST_ROWS, FEWEST_COLUMNS = 3, 20
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_Handler = Callable[[int, FrameType | None], Any] | int | None


def can_draw(descriptor: int, terminal: str | None) -> bool:
    """Whether a line can be kept at the bottom of what `descriptor` leads to."""
    if not os.isatty(descriptor) or (terminal or "dumb") in ("dumb", "unknown"):
        return False
    rows, columns = _size(descriptor)
    return rows >= FEWEST_ROWS and columns >= FEWEST_COLUMNS


def _size(descriptor: int) -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        return 0, 0
    return rows, columns


class BottomRow:
    """The reserved last row. `show` draws; leaving the `with` block gives the row back whatever happened."""

    def __init__(self, descriptor: int, *, color: bool = True) -> None:
        self._descriptor = descriptor
        self._color = color
        self._rows = 0
        self._columns = 0
        self._text = ""
        self._handlers: dict[int, _Handler] = {}

    def __enter__(self) -> BottomRow:
        for name, handler in (
            ("SIGTERM", self._on_terminate),
            ("SIGHUP", self._on_terminate),
            ("SIGTSTP", self._on_stop),
            ("SIGCONT", self._on_continue),
            ("SIGWINCH", self._on_resize),
        ):
            number = getattr(signal, name, None)
            if number is not None:
                self._handlers[number] = signal.signal(number, handler)
        self._reserve()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_IGN)  # nothing may draw again between here and the release
            self._handlers[number] = handler
        self._release()
        for number, handler in self._handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def show(self, text: str) -> None:
        self._text = text
        if _size(self._descriptor) != (self._rows, self._columns):
            self._on_resize()
        self._draw()

    def _reserve(self) -> None:
        self._rows, self._columns = _size(self._descriptor)
        if self._rows < FEWEST_ROWS:
            self._rows = 0
            return
        # A new line first: where the cursor stands on the last row, what is there must scroll up, not be overdrawn.
        self._write(f"\n{_SAVE}\x1b[1;{self._rows - 1}r{_RESTORE}\x1b[1A")

    def _release(self) -> None:
        if self._rows:
            self._write(f"{_SAVE}\x1b[r\x1b[{self._rows};1H\x1b[2K{_RESTORE}")
            self._rows = 0

    def _draw(self) -> None:
        if not self._rows:
            return
        text = shortened(self._text, self._columns - 1).ljust(self._columns - 1)
        shown = f"\x1b[7m{text}\x1b[0m" if self._color else text
        self._write(f"{_SAVE}\x1b[{self._rows};1H\x1b[2K{shown}{_RESTORE}")

    def _write(self, sequence: str) -> None:
        try:
            os.write(self._descriptor, sequence.encode("utf-8", "replace"))
        except OSError:  # the terminal is gone
            self._rows = 0

    def _on_resize(self, *_: object) -> None:
        self._release()
        self._reserve()
        self._draw()

    def _on_stop(self, *_: object) -> None:
        self._release()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)

    def _on_continue(self, *_: object) -> None:
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._reserve()
        self._draw()

    def _on_terminate(self, number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)


class LiveText:
    """Follows a growing trace and says in one line where the run stands. Reads only what is new since the last look."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._shows_gradients = "gradients" in (trace.run.settings.get("focus") or ())
        self._latest: dict[str, float] = {}
        self._step: int | None = None
        self._looked_at: tuple[float, int] | None = None
        self._rate: float | None = None
        self._bad_step: int | None = None
        self._seen: int | None = None  # the last step whose statistics were looked at

    def text(self, *, now_s: float, running_s: float, verdict: str | None = None, held: Pause | None = None) -> str:
        """`verdict` is what the analysis holds for wrong so far, `held` where the training waits."""
        self._trace.refresh()
        for name in ("loss", "lr", "grad_norm"):
            self._look_at_series(name)
        self._look_for_bad_rows()
        self._measure_rate(now_s)
        stands, at = ([], self._step) if held is None else ([held.text], self._step if held.step is None else held.step)
        if at is None:
            return f" neural debug | {' | '.join([*stands, 'no step yet', duration(running_s)])}"
        parts = [*stands, f"step {at:,}", f"loss {figure(self._latest.get('loss'))}"]
        if verdict is not None:
            parts.append(verdict)
        if self._bad_step is not None:
            parts.append(f"NaN/Inf since step {self._bad_step:,}")
        if self._shows_gradients and "grad_norm" in self._latest:
            parts.append(f"grad. norm {figure(self._latest['grad_norm'])}")
        parts.append(duration(running_s))
        if self._rate is not None and held is None:
            parts.append(f"{figure(self._rate)} steps/s")
        if "lr" in self._latest:
            parts.append(f"lr {self._latest['lr']:.3g}")
        return f" neural debug | {' | '.join(parts)}"

    def _look_at_series(self, name: str) -> None:
        site = next((s for s in self._trace.sites if s.kind is SiteKind.SERIES and s.path == name), None)
        if site is None:
            return
        rows = self._trace.table("scalars", columns=("step", "value"), between=(self._step, None), site=site.id)
        if not len(rows["value"]):
            return
        self._latest[name] = float(rows["value"][-1])
        if name == "loss":
            bad = [
                int(step) for step, value in zip(rows["step"], rows["value"], strict=True) if not math.isfinite(value)
            ]
            self._note_bad(bad[:1])
            self._step = int(rows["step"][-1])

    def _look_for_bad_rows(self) -> None:
        if self._bad_step is None:
            rows = self._trace.table("stats", columns=("step", "nan_count", "inf_count"), between=(self._seen, None))
            bad = rows["step"][(rows["nan_count"] > 0) | (rows["inf_count"] > 0)]
            self._seen = int(rows["step"].max(initial=self._seen or 0))
            self._note_bad(bad[:1].tolist())

    def _note_bad(self, steps: list[int]) -> None:
        if steps and self._bad_step is None:
            self._bad_step = steps[0]

    def _measure_rate(self, now_s: float) -> None:
        """Steps per second over about the last second."""
        if self._step is None:
            return
        if self._looked_at is None:
            self._looked_at = (now_s, self._step)
        elif now_s - self._looked_at[0] >= 1.0:
            self._rate = (self._step - self._looked_at[1]) / (now_s - self._looked_at[0])
            self._looked_at = (now_s, self._step)
