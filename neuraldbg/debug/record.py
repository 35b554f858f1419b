"""Where a session writes: the trace that everything else reads. Opened with the first thing there is to write."""

from __future__ import annotations

import atexit
import logging
import math
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from neuraldbg.capture.kernels.elements import Row
from neuraldbg.capture.torch.recorder import Recorder
from neuraldbg.errors import RunDirectoryError, uncaught
from neuraldbg.records import Kind, Phase, SiteKind
from neuraldbg.trace import TraceWriter, create_run
from neuraldbg.trace.rundir import new_run_info

log = logging.getLogger("neuraldbg")
MOST_SITES: Final = 50_000
_TYPE: Final = re.compile(r"(.+?)_?\d+$")
_PHASES: Final = {Kind.GRADIENT: Phase.BACKWARD, Kind.PARAMETER: Phase.UPDATE, Kind.UPDATE: Phase.UPDATE}
UNKNOWN: Final = math.nan


class Record:
    """One run. Steps are counted by what comes again: whatever is written a second time begins the next one, unless
    somebody says what step it is, or a watched model counts its updates."""

    def __init__(self, out: Path | None) -> None:
        self._out = out
        self._recorder: Recorder | None = None
        self._attached = False
        self._failed = self._closed = False
        self._own_step = 0
        self._told_step = False
        self._in_step: set[Any] = set()
        self._sites: dict[tuple[SiteKind, str], int] = {}
        self._slots: dict[tuple[int, Kind], dict[str, int]] = {}
        self._lock = threading.RLock()
        self._began = time.monotonic()
        self.directory: Path | None = None

    # -- life --------------------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """A watched model writes here too."""
        return self._attached

    @property
    def is_open(self) -> bool:
        return self._recorder is not None

    def out(self) -> Path | None:
        """The folder that was asked for; where there is something in it already, the next one beside it."""
        if self._out is None:
            return None
        wanted, number = self._out, 2
        while wanted.is_dir() and any(wanted.iterdir()):
            wanted = self._out.with_name(f"{self._out.name}-{number}")
            number += 1
        if wanted != self._out:
            log.warning("%s is not empty: this run is written to %s", self._out, wanted)
        return wanted

    def use(self, recorder: Recorder, directory: Path) -> None:
        """Write along with a watched model."""
        self._recorder, self.directory, self._attached = recorder, directory, True

    def open(self) -> Recorder | None:
        with self._lock:
            if self._recorder is None and not (self._failed or self._closed):
                try:
                    info = new_run_info(tuple(sys.argv), script=sys.argv[0] or None, budget="full")
                    directory = create_run(info, out=self.out())
                    writer = TraceWriter(directory)
                except (RunDirectoryError, OSError) as error:
                    self._failed = True
                    log.warning("this session is not recorded: %s", error)
                    return None
                self.directory = directory
                self._recorder = Recorder(lambda: writer)
                self._recorder.fact("run", toolkit=True)
                atexit.register(self._at_exit)
            return self._recorder

    def close(self, error: BaseException | None = None) -> None:
        """Ends a run of its own; that of a watched model is ended by whoever watches."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            atexit.unregister(self._at_exit)
            self._own_step = self.step
            recorder, self._recorder = self._recorder, None
            if recorder is not None and not self._attached:
                lasted = time.monotonic() - self._began
                said = None if error is None else f"{type(error).__name__}: {error}"
                end = {"exit_code": int(error is not None), "error": said, "duration_s": lasted, "steps": self.steps}
                recorder.close([("end", {**end, "dropped": recorder.dropped()})])

    def _at_exit(self) -> None:
        self.close(uncaught())

    # -- steps -------------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        if self._attached and self._recorder is not None:
            return self._recorder.step
        return self._own_step

    @property
    def steps(self) -> int:
        """How many there were: one that something was written in counts."""
        return self.step if self._attached else self._own_step + bool(self._in_step)

    def go_to(self, step: int) -> None:
        """From here on it is this step."""
        with self._lock:
            self._told_step = True
            self._own_step = int(step)
            self._in_step.clear()

    def reached(self, step: int) -> None:
        """At least this step: a number that begins anew with every epoch does not lead back."""
        with self._lock:
            if step > self._own_step and not self._told_step:
                self._own_step = int(step)
                self._in_step.clear()

    def comes(self, what: Any) -> int:
        """The step that this belongs to."""
        with self._lock:
            if not self._attached:
                if what in self._in_step and not self._told_step:
                    self._own_step += 1
                    self._in_step.clear()
                self._in_step.add(what)
            return self.step

    def comes_at(self, step: int, what: Any) -> int:
        """The same of what comes with its step."""
        self.reached(step)
        with self._lock:
            if not self._attached:
                self._in_step.add(what)
        return step

    # -- rows --------------------------------------------------------------------------------------------------------

    def stats(self, layer: str, kind: Kind, row: Row, *, name: str = "", step: int) -> None:
        recorder = self.open()
        site = None if recorder is None else self._site(recorder, layer, kind)
        if recorder is not None and site is not None:
            slots = self._slots.setdefault((site, kind), {})
            slot = slots.setdefault(name, min(len(slots), 65_535)) if len(slots) < 65_536 else 65_535
            recorder.stats(site, (kind, _PHASES.get(kind, Phase.FORWARD), slot, -1), row, step=step)

    def norm(self, layer: str, norm: float, *, step: int) -> None:
        """Of a gradient that nothing else is known of."""
        bad = (int(math.isnan(norm)), int(math.isinf(norm)))
        self.stats(layer, Kind.GRADIENT, (0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, norm, 0, *bad, 0), step=step)

    def scalar(self, name: str, value: float, *, step: int) -> None:
        recorder = self.open()
        if recorder is not None:
            recorder.scalar(name, value, step=step)

    def span(self, layer: str, phase: Phase, duration_ns: int, **size: int) -> None:
        recorder = self.open()
        site = None if recorder is None else self._site(recorder, layer, Kind.SPAN)
        if recorder is not None and site is not None:
            start = time.perf_counter_ns() - max(duration_ns, 0)
            recorder.span(site, phase, (start, duration_ns), step=self.step, **size)

    def fact(self, type: str, **fields: Any) -> None:
        recorder = self.open()
        if recorder is not None:
            recorder.fact(type, **fields)

    def _site(self, recorder: Recorder, path: str, kind: Kind) -> int | None:
        of = SiteKind.PARAMETER if kind in (Kind.PARAMETER, Kind.UPDATE) else SiteKind.MODULE
        with self._lock:
            known = self._sites.get((of, path))
            if known is None and self._attached:
                known = next((one.id for one in recorder.sites.values() if one.path == path and one.kind is of), None)
            if known is None and len(self._sites) < MOST_SITES:
                named = _TYPE.fullmatch(path)
                known = recorder.add_site(path, of, op=(named[1] if named else path) if of is SiteKind.MODULE else None)
            if known is not None:
                self._sites[of, path] = known
            return known
