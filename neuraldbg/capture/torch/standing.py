"""Where a rank stands that has not moved for a while: said by the thread that writes the trace, while the training
thread waits in a collective, a loader or a lock."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from neuraldbg.capture.torch.frames import Frames

STILL_S = 5.0  # without any progress: then it is said, and again each time it has doubled
DEEPEST = 40
LINES = 12  # of a stack that are kept
_HELD = "neuraldbg/control/gate.py"
_JOIN = "torch/distributed/algorithms/join.py"
_PLACES = (  # innermost first: the first file that is on the stack says what is waited for
    ("torch/utils/data/dataloader.py", "the data loader"),
    ("torch/distributed/distributed_c10d.py", ""),  # the collective's own name
    ("neuraldbg/capture/torch/ranks.py", "Work.wait"),  # around it, for a collective that was begun before
    ("torch/autograd/__init__.py", "backward"),
    ("torch/autograd/graph.py", "backward"),
    ("torch/nn/parallel/distributed.py", "the forward of DistributedDataParallel"),
    ("torch/nn/modules/module.py", "forward"),
    ("torch/optim/optimizer.py", "the optimizer"),
)
_INNER = ("wrapper", "wait")  # of torch's own logging around a collective


class Standing:
    """`progress` gives something that changes whenever the training moves, `number_of` the how manieth collective it is
    that a rank stands in; `tell` writes a fact."""

    def __init__(
        self,
        frames: Frames,
        progress: Callable[[], Any],
        tell: Callable[..., None],
        *,
        number_of: Callable[[str], int | None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        still_s: float = STILL_S,
    ) -> None:
        self._frames, self._progress, self._tell, self._clock = frames, progress, tell, clock
        self._first_s, self._number_of = still_s, number_of
        self._seen: Any = None
        self._since = clock()
        self._next_s = still_s
        self._thread = threading.main_thread().ident

    def look(self, _: Any = None) -> None:
        """Called at every flush, from the thread that writes."""
        now, seen = self._clock(), self._progress()
        if seen != self._seen:
            self._seen, self._since, self._next_s = seen, now, self._first_s
            return
        if now - self._since < self._next_s:
            return
        frame = sys._current_frames().get(self._thread or 0)
        where = None if frame is None else place_of_frame(frame)
        if frame is None or where is None:
            self._since = now  # held by the debugger, or over
            return
        self._next_s = 2 * self._next_s
        number = self._number_of(where)
        self._tell("standing", where=where, since_s=now - self._since, collective=number, **self._lines(frame))

    def _lines(self, frame: FrameType) -> dict[str, Any]:
        stack: list[str] = []
        line = None
        each: FrameType | None = frame
        while each is not None and len(stack) < LINES:
            if self._frames.is_user(each.f_code):
                shown = f"{self._frames.display(each.f_code.co_filename)}:{each.f_lineno}"
                line = line or shown
                stack.append(f"{shown} {each.f_code.co_name}")
            each = each.f_back
        return {"line": line, "stack": stack}


def place_of_frame(frame: FrameType) -> str | None:
    """What a thread is doing, from its stack; None while the debugger holds it."""
    found, each, depth = None, frame, 0
    while each is not None and depth < DEEPEST:
        file = each.f_code.co_filename.replace("\\", "/")
        if file.endswith(_HELD):
            return None
        if file.endswith(_JOIN):
            return "Join"  # whatever collective of the others it takes part in: it has no more batches
        if found is None:
            found = _known(file, each.f_code.co_name)
        each, depth = each.f_back, depth + 1  # type: ignore[assignment]
    return found or "the script's own code"


def _is_inner(name: str) -> bool:
    """A helper of a collective: whoever called it has the name that people know."""
    return name in _INNER or (name.startswith("_") and not name.endswith("_base"))


def _known(file: str, name: str) -> str | None:
    for ending, what in _PLACES:
        if file.endswith(ending) and (what or not _is_inner(name)):
            return what or name
    return None
