"""Turns what the hooks see into rows and facts: sites and source lines interned, everything numbered in order."""

from __future__ import annotations

import itertools
import linecache
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import fields as fields_of
from functools import partial
from operator import attrgetter
from types import FrameType
from typing import Any

import numpy as np

from neuraldbg.capture.kernels import frameless
from neuraldbg.capture.kernels.elements import Row as Measured
from neuraldbg.capture.staging import Block, Staging
from neuraldbg.capture.torch.frames import Frames
from neuraldbg.records import Call, Kind, Phase, Site, SiteKind
from neuraldbg.trace import TraceWriter
from neuraldbg.trace.tables import CALL_CODE, CALLS, KIND_CODE, PHASE_CODE, SCALARS

_NAN = float("nan")
MOST_FILES = 32  # that are kept at a time
LONGEST_FILE = 200_000  # characters
_now = time.time_ns
_CALL = {call: CALL_CODE[call] for call in Call}
_OF_SITES = [field.name for field in fields_of(Site)]
_values_of = attrgetter(*_OF_SITES)


class Recorder:
    """Owns the numbering of one process: steps, sequence numbers, sites, source lines. Opens the trace at the first
    fact."""

    def __init__(self, open_writer: Callable[[], TraceWriter | None]) -> None:
        self._open_writer = open_writer
        self._writer: TraceWriter | None = None
        self._opened = False
        self.staging = Staging()
        self.frames = Frames()
        self.step = 0
        self.next_seq = itertools.count().__next__
        self.sites: dict[int, Site] = {}
        self._unwritten: dict[int, tuple[int, int, int]] = {}  # sites whose facts wait: wall_ns, step, seq
        self._series: dict[str, int] = {}
        self._naming = threading.Lock()
        self._sources: dict[tuple[str, int], int] = {}  # (file, line)
        self.muted = False
        self.latest: dict[str, float] = {}  # last value of each series
        self.call: Callable[..., int] = self._call
        self.scalar: Callable[..., None] = self._scalar
        self.source: Callable[..., int] = self._source
        if frameless.Rows is not None:
            self._use_c()

    def _use_c(self) -> None:
        """What is written at every step is written without a frame, as rows that the flush thread takes as they are."""
        frames, codes = self.frames, tuple(Call)
        asked = (self.series, frames.known_files, frames.is_user_file, self._number_of)
        rows = frameless.Rows(self, self.next_seq, codes, self.latest, self._series, *asked)

        def drain() -> dict[str, tuple[Block, int]]:
            calls, scalars, lost, lost_scalars = rows.drain()
            return {
                "calls": (np.frombuffer(calls, CALLS), lost),
                "scalars": (np.frombuffer(scalars, SCALARS), lost_scalars),
            }

        self.call, self.scalar, self.source = rows.call, rows.scalar, rows.source
        self.staging.blocks.append(drain)

    @property
    def writer(self) -> TraceWriter | None:
        if not self._opened and not self.muted:
            self._opened = True
            self._writer = self._open_writer()
            if self._writer is not None:
                self._writer.add_source(self.staging.drain)
        return self._writer

    def fact(self, type: str, **fields: Any) -> None:
        writer = self._writer if self._opened else self.writer
        if writer is not None:
            if self.frames.unread:
                self._keep_texts(writer)
            writer.whole_fact({"type": type, "wall_ns": _now(), "step": self.step, "seq": self.next_seq(), **fields})

    def _keep_texts(self, writer: TraceWriter) -> None:
        """The user's files as they are now: patches are made against these, also when the file is edited later."""
        unread, self.frames.unread = self.frames.unread, []
        for shown, filename in unread[:MOST_FILES]:
            text = "".join(linecache.getlines(filename))
            if text and len(text) <= LONGEST_FILE:
                writer.fact("source_file", step=self.step, seq=self.next_seq(), file=shown, text=text)

    def note(self, level: str, text: str) -> None:
        self.fact("note", level=level, text=text)

    # -- sites -----------------------------------------------------------------------------------------------------

    def add_site(self, path: str, kind: SiteKind, **fields: Any) -> int:
        with self._naming:  # the resources are recorded from a thread of their own
            number = len(self.sites)
            self.sites[number] = Site(number, path, kind, **fields)
        self._write_site(number, len(path))
        return number

    def refine_site(self, site_id: int, **fields: Any) -> None:
        """Add what was learnt later (shape, source line, flops)."""
        known = dict(zip(_OF_SITES, _values_of(self.sites[site_id]), strict=True))
        known.update(fields)
        self.sites[site_id] = Site(**known)
        self._write_site(site_id, len(known["path"]))

    def _write_site(self, number: int, length: int) -> None:
        """One fact for all that is learnt of a site before the flush thread comes to it."""
        writer = self._writer if self._opened else self.writer
        if writer is None:
            return
        if self.frames.unread:
            self._keep_texts(writer)
        when = _now(), self.step, self.next_seq()
        if self._unwritten.setdefault(number, when) is not when:
            return  # its fact waits
        if not writer.late_fact("site", partial(self._site_fact, number, when), length):
            self._unwritten.pop(number, None)

    def _site_fact(self, number: int, when: tuple[int, int, int]) -> dict[str, Any]:
        """May be asked for again, where it could not be written."""
        self._unwritten.pop(number, None)  # first: who refines it from here on writes another
        wall_ns, step, seq = when
        fact = {"type": "site", "wall_ns": wall_ns, "step": step, "seq": seq}
        site = self.sites[number]
        for name, value in zip(_OF_SITES, _values_of(site), strict=True):
            if value is not None:
                fact[name] = value
        fact["kind"] = site.kind._value_  # `value` is a frame of enum's
        del fact["rank"]
        return fact

    def series(self, name: str) -> int:
        known = self._series.get(name)
        if known is None:
            known = self._series[name] = self.add_site(name, SiteKind.SERIES)
        return known

    def _source(self, depth: int = 1) -> int:
        """The id of the user's line that is running now; -1 when there is none."""
        frame: FrameType | None = self.frames.user_frame(depth + 1)
        return -1 if frame is None else self._number_of(frame)

    def _number_of(self, frame: FrameType) -> int:
        key = (frame.f_code.co_filename, frame.f_lineno)
        known = self._sources.get(key)
        if known is None:
            known = self._sources[key] = len(self._sources)
            file = self.frames.display(frame.f_code.co_filename)
            self.fact("source", id=known, file=file, line=frame.f_lineno, function=frame.f_code.co_name)
        return known

    def line_of_source(self, number: int) -> str | None:
        """`train.py:42` of an id that `source` gave."""
        return next(
            (f"{self.frames.display(file)}:{line}" for (file, line), known in self._sources.items() if known == number),
            None,
        )

    # -- rows ------------------------------------------------------------------------------------------------------

    def _call(
        self, call: Call, site: int = -1, *, value: float = _NAN, aux: float = _NAN, source: int = -1, **rest: int
    ) -> int:
        seq, step, pass_id, digest, duration = self.next_seq(), self.step, -1, 0, -1
        if rest:
            get = rest.get
            step, pass_id = get("at_step", step), get("pass_id", -1)
            digest, duration = get("digest", 0), get("duration_ns", -1)
        self.staging.calls((step, seq, site, pass_id, _CALL[call], value, aux, digest, source, _now(), duration))
        return seq

    def _scalar(self, name: str, value: float, *, step: int | None = None, pass_id: int = -1) -> None:
        when = self.step if step is None else step
        self.latest[name] = value
        series = self._series.get(name)
        if series is None:
            series = self.series(name)
        self.staging.scalars((when, self.next_seq(), series, pass_id, value, _now()))

    def stats(
        self, site: int, where: tuple[Kind, Phase, int, int], measured: Measured, *, step: int | None = None
    ) -> None:
        """`where` = kind, phase, slot, pass id."""
        kind, phase, slot, pass_id = where
        when = self.step if step is None else step
        head = (when, self.next_seq(), site, pass_id, KIND_CODE[kind], PHASE_CODE[phase], slot)
        self.staging.stats((*head, *measured, time.time_ns()))

    def histogram(
        self, site: int, where: tuple[Kind, Phase, int, int], counted: tuple[int, int, int, int, bytes]
    ) -> None:
        """`counted` = values, values looked at, zeros, NaN or Inf, and the octaves of the others."""
        kind, phase, slot, pass_id = where
        head = (self.step, self.next_seq(), site, pass_id, KIND_CODE[kind], PHASE_CODE[phase], slot)
        self.staging.histograms((*head, *counted, time.time_ns()))

    def span(
        self, site: int, phase: Phase, times: tuple[int, int], *, pass_id: int = -1, depth: int = 0, **size: int
    ) -> None:
        """`times` = start and duration on the monotonic clock."""
        when = size.get("step", self.step)
        head = (when, self.next_seq(), site, pass_id, PHASE_CODE[phase], min(depth, 255))
        self.staging.spans((*head, *times, size.get("host_bytes", -1), size.get("device_bytes", -1)))

    def dropped(self) -> dict[str, int]:
        """Rows lost so far, on the way to the trace and in it."""
        lost = dict(self.staging.dropped)
        for table, count in (self._writer.dropped if self._writer is not None else {}).items():
            lost[table] = lost.get(table, 0) + count
        return lost

    # -- end -------------------------------------------------------------------------------------------------------

    def close(self, facts: Iterable[tuple[str, dict[str, Any]]] = ()) -> None:
        writer = self._writer
        if writer is None:
            return
        for type, fields in facts:
            self.fact(type, **fields)
        writer.close()
        self.staging.blocks.clear()
        self.muted = True
        self._writer = None

    def abandon(self) -> None:
        """In a forked child: the parent's trace is not ours to write."""
        self.muted = True
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
