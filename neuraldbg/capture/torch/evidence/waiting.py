"""Time the host spends fetching single values: `.item()`, `.tolist()`, `.cpu()`, `if`, printing tensors."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import update_wrapper
from time import perf_counter_ns
from typing import Any

import torch

from neuraldbg.capture.kernels import frameless
from neuraldbg.capture.torch.core import cannot_look

FETCHES = ("item", "tolist", "__repr__", "__float__", "__int__", "__bool__", "cpu")
BURST_NS = 20_000  # between two fetches of one loop
MEASURED = 16  # of how many calls one has its line looked up, after the first ones


class Fetches:
    """Counts the user's own calls and the time in them; C has the same without a frame, so that warnings of torch name
    the line of the call."""

    def __init__(self, core: Any, cannot_look: Callable[[], bool], _: Any, is_user: Any, note_line: Any) -> None:
        self.core = core
        self.calls = 0
        self.own_ns = 0
        self._cannot_look = cannot_look
        self._is_user = is_user
        self._note_line = note_line
        self._inside = False
        self._last_ns = 0

    def counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_user = self._is_user

        def fetch(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            file = sys._getframe(1).f_code.co_filename
            if self._inside or not self.core.on or self._cannot_look() or not is_user(file):
                return original(tensor, *args, **kwargs)
            self._inside = True
            start = perf_counter_ns()
            if start - self._last_ns < BURST_NS:
                self.own_ns += (
                    start - self._last_ns
                )  # a loop over elements: what it does in between serves nothing else
            try:
                return original(tensor, *args, **kwargs)
            finally:
                self._last_ns = perf_counter_ns()
                self.own_ns += self._last_ns - start
                self._inside = False
                self.calls += 1
                if self.calls <= MEASURED or self.calls % MEASURED == 0:
                    self._note_line()

        return fetch


class HostFetches:
    """One fact `host_fetches` at the end and every thousand updates: calls, time in them, the lines that make most."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self._lines: Counter[str] = Counter()
        self._written_at = 0
        frames = self.core.recorder.frames
        made = frameless.Fetches or Fetches
        self._fetches = made(self.core, cannot_look, frames.known_files, frames.is_user_file, self._note_line)
        for name in FETCHES:
            original = getattr(torch.Tensor, name)
            capture.patches.replace(torch.Tensor, name, update_wrapper(self._fetches.counted(original), original))
        self.core.take_part("update_done", "fetched values", self._updated, rarely=True)
        self.core.take_part("ending", "fetched values", self._write)

    def _note_line(self) -> None:
        self._lines[self.core.recorder.frames.line() or "?"] += 1

    def _updated(self, *_: Any) -> None:
        if self.core.recorder.step - self._written_at >= 1000:
            self._written_at = self.core.recorder.step
            self._write()

    def _write(self) -> None:
        counted = self._fetches
        if counted.calls:
            lines = [[line, count] for line, count in self._lines.most_common(3)]
            self.core.recorder.fact("host_fetches", calls=counted.calls, seconds=counted.own_ns / 1e9, lines=lines)
