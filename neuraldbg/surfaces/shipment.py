"""The shipping of a run, in a thread of the viewer: begun with the run, tended while it goes on, finished after it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuraldbg.errors import NeuralDbgError

if TYPE_CHECKING:
    from neuraldbg.store.counters import Counters
    from neuraldbg.store.shipping import Shipper

TICK_S: Final = 5.0
LOOK_S: Final = 0.5
MOST_REST_S: Final = 50.0  # the trainer waits a minute for its viewer
SLACK_S: Final = 5.0  # for a try that is under way when the time is over
SHIP_TO, SHIP_EVERY, SHIP_REST = "ship_to", "ship_every_s", "ship_rest_s"  # among the settings of the run


BUGS: Final = (
    NeuralDbgError,
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
)


class Shipment:
    """Never fails: what goes wrong is said, and the run is on this disk in any case."""

    def __init__(
        self, run_dir: Path, url: str, *, every_s: float = 60.0, rest_s: float = 25.0, say: Callable[[str], None]
    ) -> None:
        self._run_dir, self._url, self._say = run_dir, url, say
        self._every_s, self._rest_s = every_s, min(rest_s, MOST_REST_S)
        self._shipper: Shipper | None = None
        self._done = self._hurried = False
        self._over = threading.Event()
        self._silent = True
        self._thread = threading.Thread(target=self._run, name="neuraldbg-shipping", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._ship()
        except BUGS as error:  # one of ours must not be silent, nor cost the verdict
            self._shipper = None
            self._say(
                f"shipping has stopped: {type(error).__name__}: {error}. The run is in {self._run_dir}; {self._later()}"
            )

    def _ship(self) -> None:
        with suppress(OSError, AttributeError):
            os.nice(10)  # of this thread: the training comes first
        self._shipper = shipper = self._begun()
        while shipper is not None and not self._paused(min(TICK_S, self._every_s)):
            hurry, self._hurried = self._hurried, False
            shipper.tend(hurry=hurry)
            self._tell(shipper)
        if shipper is not None:
            self._done = shipper.finish(seconds=self._rest_s)
            if self._done:
                self._tell(shipper)

    def _paused(self, seconds: float) -> bool:
        """Waits so long, or until somebody is in a hurry; True when the run is over."""
        until = time.monotonic() + seconds
        while not self._over.wait(min(LOOK_S, seconds)):
            if self._hurried or time.monotonic() >= until:
                return False
        return True

    def hurry(self) -> None:
        """Everything that is there goes now. Called by a signal's handler: it only leaves a word."""
        self._hurried = True

    def _begun(self) -> Shipper | None:
        from neuraldbg.store.shipping import Refused, Shipper, Taken

        try:
            shipper = Shipper(self._run_dir, self._url, every_s=self._every_s)
            shipper.begin()
        except (Refused, NeuralDbgError) as error:
            later = self._later("URL" if isinstance(error, Taken) else None)
            self._say(f"this run is not shipped: {error}. It is recorded in {self._run_dir}; {later}")
            return None
        self._tell(shipper)
        return shipper

    def _later(self, to: str | None = None) -> str:
        return f"`neural export {self._run_dir.name} {to or self._url} --format parquet` ships it later"

    def _tell(self, shipper: Shipper) -> None:
        """A failure once, and that it is over."""
        error = shipper.counters.error
        if error is not None and self._silent:
            self._say(f"cannot ship now: {error}; trying again")
        elif error is None and not self._silent:
            self._say(f"{shipper.counters.to} is reachable again")
        self._silent = error is None

    def finish(self) -> None:
        """After the verdict: the rest, in bounded time. A store that neither takes nor refuses is left behind."""
        self._over.set()
        self._thread.join(self._rest_s + SLACK_S)
        if self._thread.is_alive():
            self._say(f"{self._url} does not answer; what it has not taken is in {self._run_dir}; {self._later()}")
        elif self._shipper is not None:
            self._report(self._shipper.counters)

    @property
    def stuck(self) -> bool:
        """Whether a request is still without an answer, after the run."""
        return self._over.is_set() and self._thread.is_alive()

    def _report(self, told: Counters) -> None:
        tries = f", after {told.failures} failed tries" if told.failures else ""
        lost = f"; {told.lost_rows:,} rows were deleted by the disk limit before" if told.lost_rows else ""
        if self._done:
            self._say(f"shipped {told.parts} files ({told.bytes:,} bytes) to {told.to}{tries}{lost}")
        else:
            self._say(
                f"{told.waiting_parts} files ({told.waiting_bytes:,} bytes) wait in {self._run_dir} and could not be "
                f"shipped: {told.error}; {self._later()}"
            )


def begin_shipment(run_dir: Path, say: Callable[[str], None]) -> Shipment | None:
    """Of a run that is to be shipped; None of another."""
    from neuraldbg.trace.rundir import load_run_info

    settings = load_run_info(run_dir)[0].settings
    url = settings.get(SHIP_TO)
    if not isinstance(url, str):
        return None
    given = {"every_s": settings.get(SHIP_EVERY), "rest_s": settings.get(SHIP_REST)}
    return Shipment(
        run_dir, url, say=say, **{name: float(told) for name, told in given.items() if isinstance(told, (int, float))}
    )
