"""For what another thread or process does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], object], patience_s: float = 60.0) -> None:
    until = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.005)
