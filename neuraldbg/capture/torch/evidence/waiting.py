"""Time the host spends fetching single values: `.item()`, `.tolist()`, `.cpu()`, `if`, printing tensors."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from typing import Any

import torch

from neuraldbg.capture.torch.core import cannot_look

FETCHES = ("item", "tolist", "__repr__", "__float__", "__int__", "__bool__", "cpu")
BURST_NS = 20_000  # between two fetches of one loop
MEASURED = 16  # of how many calls one has its line looked up, after the first ones


class HostFetches:
    """One fact `host_fetches` at the end and every thousand updates: calls, time in them, the lines that make most."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self._calls = 0
        self._own_ns = 0
        self._lines: Counter[str] = Counter()
        self._inside = False
        self._last_ns = 0
        for name in FETCHES:
            original = getattr(torch.Tensor, name)
            capture.patches.replace(torch.Tensor, name, self._counted(original))
        self.core.take_part("update_done", "fetched values", self._updated, rarely=True)
        self.core.take_part("ending", "fetched values", self._write)

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_user = self.core.recorder.frames.is_user

        @wraps(original)
        def fetch(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or not self.core.on or cannot_look() or not is_user(sys._getframe(1).f_code):
                return original(tensor, *args, **kwargs)
            self._inside = True
            start = perf_counter_ns()
            if start - self._last_ns < BURST_NS:
                self._own_ns += (
                    start - self._last_ns
                )  # a loop over elements: what it does in between serves nothing else
            try:
                return original(tensor, *args, **kwargs)
            finally:
                self._last_ns = perf_counter_ns()
                self._own_ns += self._last_ns - start
                self._inside = False
                self._calls += 1
                if self._calls <= MEASURED or self._calls % MEASURED == 0:
                    self._lines[self.core.recorder.frames.line(2) or "?"] += 1

        return fetch

    def _updated(self, *_: Any) -> None:
        if self.core.recorder.step % 1024 == 1008:  # a step in which those are told who look rarely
            self._write()

    def _write(self) -> None:
        if self._calls:
            lines = [[line, count] for line, count in self._lines.most_common(3)]
            self.core.recorder.fact("host_fetches", calls=self._calls, seconds=self._own_ns / 1e9, lines=lines)
