"""What the watchers of one process share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from neuraldbg.capture.budget import SamplingBudget
from neuraldbg.capture.guard import Guard
from neuraldbg.capture.torch.device import DeviceQueue
from neuraldbg.capture.torch.recorder import Recorder
from neuraldbg.capture.torch.tree import ModuleTree

now_ns: Callable[[], int] = time.perf_counter_ns


class Local(threading.local):
    """Per thread: the modules being called, innermost last."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.own_pass: Any = None
        self.bypass = 0


@dataclass(eq=False)
class Core:
    recorder: Recorder
    tree: ModuleTree
    budget: SamplingBudget
    guard: Guard
    device: DeviceQueue = field(default_factory=DeviceQueue)
    local: Local = field(default_factory=Local)
    on: bool = True
    in_backward: int = 0
    in_step: Any = None  # the optimizer whose step() is running
    backwards: int = 0
    own_ns: int = 0  # time spent in our own code during the current step
    recording: bool = True  # keep passes so that they can be run again
    on_layer: list[Callable[..., None]] = field(default_factory=list)  # snapshots and, later, the gate
    on_gradient: list[Callable[..., None]] = field(default_factory=list)

    @property
    def sampling(self) -> bool:
        return self.budget.full

    @contextmanager
    def own_time(self) -> Iterator[None]:
        start = now_ns()
        try:
            yield
        finally:
            self.own_ns += now_ns() - start
