"""The runs that are served: each opened once, read by one at a time, with a line to its trainer."""

from __future__ import annotations

import ctypes
import math
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuraldbg.control.channel import CONTROL_FILE, ChannelClient
from neuraldbg.errors import ChannelError, ChannelSilent, UnknownRun, UsageError
from neuraldbg.store.heard import came_from, heard_of
from neuraldbg.surfaces.liveness import goes_on
from neuraldbg.surfaces.web import judgement
from neuraldbg.surfaces.web.trying import Trying
from neuraldbg.trace import Trace, open_trace
from neuraldbg.trace.findings import read_verdict

FRESH_S = 0.1
AT_ONCE = 5  # requests that may wait for one trainer: fewer than the threads that answer
BUSY_S = 0.25
ROOMY = 130e6  # bytes resident, shared libraries among them
Event = dict[str, Any]


class TrainerLine:
    """Verbs to the trainer of a run. Connects when it is first needed, and again when the line was lost."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.listeners: list[Callable[[Event], None]] = []
        self._client: ChannelClient | None = None
        self._address: tuple[int, int] | None = None  # of the file that says where the trainer listens
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(AT_ONCE)

    def call(self, verb: str, **arguments: Any) -> Any:
        """ChannelClosed where there is no trainer, ChannelSilent where it does not answer; ChannelError for what it
        refused. Only so many wait for it at once: a trainer that was stopped must not hold up what needs none."""
        if not self._places.acquire(timeout=BUSY_S):
            raise ChannelSilent(f"busy: {AT_ONCE} requests wait for the training process already; try again")
        try:
            return self._connected().call(verb, **arguments)
        finally:
            self._places.release()

    def _connected(self) -> ChannelClient:
        with self._lock:
            address = self._written()
            if self._client is not None and (self._client.closed or address not in (None, self._address)):
                self._client.close()
                self._client = None
            if self._client is None:
                self._client, self._address = ChannelClient(self.run_dir, on_event=self._heard), address
            return self._client

    def _written(self) -> tuple[int, int] | None:
        """Another process may have taken over: the first rank that a script has spawned."""
        try:
            told = (self.run_dir / CONTROL_FILE).stat()
        except OSError:
            return None
        return told.st_ino, told.st_mtime_ns

    def _heard(self, event: Event) -> None:
        for listener in list(self.listeners):
            listener(event)

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None


def _no_allocator(_: int) -> int:
    return 0


try:
    _TRIM: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
except (OSError, AttributeError, TypeError):  # not glibc
    _TRIM = _no_allocator


def give_back(trace: Trace) -> None:
    """Once this process has grown: pages of the files that were looked at, and what queries took and the allocator
    keeps (measured: 110 MB). Not always, since the next question then reads the files anew (measured: 20 ms)."""
    if _resident_bytes() > ROOMY:
        trace.release()
        _TRIM(0)


def _resident_bytes() -> float:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError, IndexError):
        return math.inf


class ServedRun:
    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or path.name.removesuffix(".zip")
        self._trace: Trace | None = None
        self._lock = threading.Lock()
        self._looked_s = 0.0
        self._followed: Trace | None = None
        self._follow_lock = threading.Lock()
        self._apart: Trace | None = None
        self._apart_lock = threading.Lock()
        self._line: TrainerLine | None = None
        self._judge = judgement.Judge()
        self.trying = Trying(path)

    def command(self, name: str) -> str:
        """What to type for it at a terminal, wherever that is."""
        return f"neural {name} {shlex.quote(came_from(self.path) or str(self.path.absolute()))}"

    @contextmanager
    def following(self) -> Iterator[Trace]:
        """The trace with what was recorded until now, for the one who streams it: while the run goes on, on a reading
        of its own, so that it waits for no question that somebody else asks."""
        with self._follow_lock:
            if self._followed is None:
                with self.reading() as trace:
                    if trace.ended:
                        yield trace
                        return
                    path = trace.path
                self._followed = open_trace(path)
            self._followed.refresh()
            try:
                yield self._followed
            finally:
                give_back(self._followed)

    @contextmanager
    def apart(self) -> Iterator[Trace]:
        """The same on a reading of its own, for a question that takes seconds of a long run: nobody else waits for it,
        only who asks such a one."""
        with self._apart_lock:
            if self._apart is None:
                with self.reading() as trace:
                    path = trace.path  # of a zip where it was unpacked to
                self._apart = open_trace(path)
            self._apart.refresh()
            try:
                yield self._apart
            finally:
                give_back(self._apart)

    @contextmanager
    def reading(self) -> Iterator[Trace]:
        """The trace with what was recorded until a moment ago. One reader at a time: a refresh moves what others look
        at."""
        with self._lock:
            now = time.monotonic()
            if self._trace is None:
                self._trace, self._looked_s = open_trace(self.path), now
            elif now - self._looked_s >= FRESH_S:
                self._trace.refresh()
                self._looked_s = now
            try:
                yield self._trace
            finally:
                give_back(self._trace)

    @property
    def line(self) -> TrainerLine:
        if self._line is None:
            with self.reading() as trace:  # of a zip the trace knows where it was unpacked to
                self._line = self._line or TrainerLine(trace.path)
        return self._line

    def call(self, verb: str, **arguments: Any) -> Any:
        return self.line.call(verb, **arguments)

    def state(self, *, every_s: float | None = None) -> dict[str, Any]:
        """running, paused (and where), unresponsive, finished, interrupted, crashed or killed. Unresponsive is a
        training process that is there and says nothing: stopped, or too busy to answer; or one elsewhere that was
        not heard of for too long. `every_s`: it is also told how often somebody looks."""
        silent = False
        try:
            told = self.call("state", **({} if every_s is None else {"every_s": every_s}))
            if isinstance(told, dict) and isinstance(told.get("state"), str):
                return {**told, "attached": True}
        except ChannelSilent:
            silent = True
        except ChannelError:
            pass
        with self.reading() as trace:
            run = trace.run
            if not run.ended:
                return {**_unended(trace, silent=silent), "step": trace.last_step}
            broken = "interrupted" if run.interrupted else "crashed"
            state = broken if run.error or run.exit_code else "finished"
            return {"state": state, "attached": False, "step": trace.last_step}

    def findings(self) -> list[dict[str, Any]]:
        """What the analysing process has written; of a run that ended without one, found now and kept."""
        with self.reading() as trace:
            run_dir, over = trace.path, _is_over(trace)
            if (run_dir / "findings.jsonl").exists():
                return judgement.causes_first(trace.findings())
        return self._judge.recorded(run_dir).findings if over else []

    def verdict(self) -> dict[str, Any]:
        """By what was found; where that is nothing, of a run that is over by looking at all of it."""
        found = judgement.of_findings(self.findings())
        if found is not None:
            return found
        with self.reading() as trace:
            run_dir, over = trace.path, _is_over(trace)
        if not over:
            return judgement.SO_FAR
        return read_verdict(run_dir) or self._judge.recorded(run_dir).verdict

    def anomalies(self) -> dict[str, Any]:
        with self.reading() as trace:
            run_dir, last, ended = trace.path, trace.last_step, trace.run.ended
        return self._judge.unusual(run_dir, last, alive=not ended)

    def close(self) -> None:
        self._judge.close()
        self.trying.stop()
        if self._line is not None:
            self._line.close()
        with self._apart_lock, self._follow_lock, self._lock:
            for trace in (self._trace, self._followed, self._apart):
                if trace is not None:
                    trace.close()
            self._trace = self._followed = self._apart = None


def _is_over(trace: Trace) -> bool:
    return trace.run.ended or not goes_on(trace)


def _unended(trace: Trace, *, silent: bool) -> dict[str, Any]:
    """The state of a run without an end. Whether one that was recorded elsewhere was killed nobody can know: it goes
    on, or nothing was heard of it (`heard_s`, since 1970) for longer than should be."""
    heard = heard_of(trace.path)
    if heard is not None:
        state = "running" if heard.recently else "unresponsive"
        return {"state": state, "attached": False, "heard_s": heard.at_s}
    state = "unresponsive" if silent else "running" if goes_on(trace) else "killed"
    return {"state": state, "attached": silent}


class ServedRuns:
    """By name, in the order they were asked for. The first is meant where a request names none."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._runs: dict[str, ServedRun] = {}
        for path in paths:
            run = ServedRun(path)
            stem, number = run.name, 2
            while run.name in self._runs:
                run.name, number = f"{stem}-{number}", number + 1
            self._runs[run.name] = run

    def __iter__(self) -> Iterator[ServedRun]:
        return iter(self._runs.values())

    def open(self) -> None:
        for run in self:
            try:
                with run.reading():
                    pass
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UsageError(f"cannot read {run.path}: {error}") from None

    def get(self, name: str | None) -> ServedRun:
        if name is None:
            return next(iter(self._runs.values()))
        if name not in self._runs:
            raise UnknownRun(name, self._runs)
        return self._runs[name]

    def close(self) -> None:
        for run in self:
            run.close()
