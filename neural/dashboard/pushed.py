"""A run that is told instead of watched: what a loop pushes, written in the format every other run has.

One push of trace entries is one step. Numbers that a trace has a place for go there (time, memory, activation mean,
gradient norm, flops), every other one becomes a series `<layer>.<name>`.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import math
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from neuraldbg.errors import RunDirectoryError
from neuraldbg.records import Kind, Phase, SiteKind
from neuraldbg.trace import TraceWriter, create_run
from neuraldbg.trace.rundir import new_run_info
from neuraldbg.trace.tables import KIND_CODE, PHASE_CODE, SCALARS, SPANS, STATS

from .entries import number

log = logging.getLogger("neuraldbg")
LARGEST_FACT: Final = 64_000  # characters of pushed profiles that are kept in the run
_TYPE: Final = re.compile(r"(.+?)_?\d+$")
_IN_TABLES: Final = ("layer", "execution_time", "memory", "flops", "mean_activation", "grad_norm")


class PushedRun:
    """Opens its run directory at the first push. A disk that does not want it costs the record, never the loop."""

    def __init__(self, out: Path | None = None) -> None:
        self._out = out
        self._writer: TraceWriter | None = None
        self._directory: Path | None = None
        self._failed = False
        self._sites: dict[tuple[SiteKind, str], int] = {}
        self._flops: dict[str, int] = {}
        self._in_step: set[str] = set()
        self._seq = itertools.count().__next__
        self._began = 0.0
        self._lock = threading.RLock()
        self.step = 0

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    @property
    def directory(self) -> Path | None:
        """Where it is recorded; None where nothing was pushed yet or nothing could be written."""
        return self._directory

    def open(self) -> Path | None:
        with self._lock:
            if self._writer is None and not self._failed:
                try:
                    info = new_run_info(tuple(sys.argv), script=sys.argv[0] or None, budget="full")
                    self._directory = create_run(info, out=self._out)
                    self._writer = TraceWriter(self._directory)
                except RunDirectoryError as error:
                    self._failed = True
                    log.warning("what is pushed is not recorded: %s", error)
                else:
                    self._began = time.monotonic()
                    atexit.register(self.close)
            return self._directory

    def close(self) -> None:
        """Ends the run. A later push opens another one."""
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is None:
                return
            atexit.unregister(self.close)
            writer.fact("end", exit_code=0, error=None, duration_s=time.monotonic() - self._began, steps=self.step)
            writer.close()
            self._sites.clear()
            self._flops.clear()
            self._in_step.clear()
            self.step = 0

    def push(self, entries: Sequence[Mapping[str, Any]], *, growing: bool = False) -> None:
        """One step: what every layer was measured to be. A `growing` step ends when one of its layers comes again."""
        with self._lock:
            if self.open() is None or self._writer is None:
                return
            if self._in_step and (not growing or any(entry["layer"] in self._in_step for entry in entries)):
                self.step += 1
                self._in_step.clear()
            for entry in entries:
                self._push(self._writer, entry)
            if growing:
                self._in_step.update(entry["layer"] for entry in entries)
            else:
                self.step += 1

    def about(self, type: str, **fields: Any) -> None:
        """A fact about the run. What is too large to keep, the largest first, is named."""
        with self._lock:
            if self.open() is None or self._writer is None:
                return
            sizes = {name: len(json.dumps(value, default=str)) for name, value in fields.items()}
            left_out: list[str] = []
            while sizes and sum(sizes.values()) > LARGEST_FACT:
                left_out.append(max(sizes, key=lambda name: sizes[name]))
                del sizes[left_out[-1]]
            kept = {name: fields[name] for name in sizes} | ({"left_out": left_out} if left_out else {})
            self._writer.fact(type, step=self.step, **json.loads(json.dumps(kept, default=str)))

    def span(self, layer: str, start_ns: int, duration_ns: int, depth: int) -> None:
        """A timed call, where a run is open."""
        with self._lock:
            if self._writer is not None:
                self._span(self._writer, layer, start_ns, duration_ns, depth=depth)

    def _push(self, writer: TraceWriter, entry: Mapping[str, Any]) -> None:
        layer = entry["layer"]
        seconds, megabytes = number(entry.get("execution_time")), number(entry.get("memory"))
        if seconds is not None or megabytes is not None:
            size = -1 if megabytes is None or not math.isfinite(megabytes) else int(megabytes * 1e6)
            lasted = -1 if seconds is None or not math.isfinite(seconds) else int(seconds * 1e9)
            self._span(writer, layer, -1, lasted, host_bytes=size)
        flops = number(entry.get("flops"))
        if flops is not None and math.isfinite(flops) and self._flops.get(layer) != int(flops):
            self._flops[layer] = int(flops)
            self._tell_site(writer, SiteKind.MODULE, layer)
        self._stats(writer, layer, Kind.ACTIVATION, "mean", entry.get("mean_activation"))
        self._stats(writer, layer, Kind.GRADIENT, "l2", entry.get("grad_norm"))
        for name, value in entry.items():
            told = number(value) if name not in _IN_TABLES else None
            if told is not None:
                self._scalar(writer, f"{layer}.{name}", told)

    def _site(self, writer: TraceWriter, kind: SiteKind, path: str) -> int:
        if (kind, path) not in self._sites:
            self._sites[kind, path] = len(self._sites)
            self._tell_site(writer, kind, path)
        return self._sites[kind, path]

    def _tell_site(self, writer: TraceWriter, kind: SiteKind, path: str) -> None:
        known = self._sites.setdefault((kind, path), len(self._sites))
        fields: dict[str, Any] = {}
        if kind is SiteKind.MODULE:
            named = _TYPE.fullmatch(path)
            fields = {"op": named[1] if named else path, "flops": self._flops.get(path)}
        given = {key: value for key, value in fields.items() if value is not None}
        writer.fact("site", id=known, path=path, kind=kind.value, **given)

    def _row(self, dtype: np.dtype[np.void], site: int) -> Any:
        row = np.zeros(1, dtype)
        row["step"], row["seq"], row["site"], row["pass_id"] = self.step, self._seq(), site, -1
        if "wall_ns" in (dtype.names or ()):
            row["wall_ns"] = time.time_ns()
        return row

    def _span(self, writer: TraceWriter, layer: str, start_ns: int, duration_ns: int, **more: int) -> None:
        row = self._row(SPANS, self._site(writer, SiteKind.MODULE, layer))
        row["phase"], row["start_ns"], row["duration_ns"] = PHASE_CODE[Phase.FORWARD], start_ns, duration_ns
        row["host_bytes"], row["device_bytes"] = more.get("host_bytes", -1), -1
        row["depth"] = min(more.get("depth", 0), 255)
        writer.append("spans", row)

    def _stats(self, writer: TraceWriter, layer: str, kind: Kind, field: str, value: Any) -> None:
        """Only what was told is known: the other statistics are nan, the tensor's size is 0."""
        told = number(value)
        if told is None:
            return
        row = self._row(STATS, self._site(writer, SiteKind.MODULE, layer))
        row["kind"] = KIND_CODE[kind]
        row["phase"] = PHASE_CODE[Phase.FORWARD if kind is Kind.ACTIVATION else Phase.BACKWARD]
        for name in ("mean", "std", "min", "max", "l2"):
            row[name] = np.nan
        row[field] = told
        row["nan_count"], row["inf_count"] = math.isnan(told), math.isinf(told)
        writer.append("stats", row)

    def _scalar(self, writer: TraceWriter, name: str, value: float) -> None:
        row = self._row(SCALARS, self._site(writer, SiteKind.SERIES, name))
        row["value"] = value
        writer.append("scalars", row)
