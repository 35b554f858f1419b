"""Writes a trace beside a training loop: rows are copied into rings, a thread turns them into chunks.

The training thread never waits for a disk. What cannot be written is dropped and counted.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.records import Call
from neuraldbg.trace.facts import FactBuffer
from neuraldbg.trace.files import GrowingFile
from neuraldbg.trace.format import ChunkEncoder, encode_file_header
from neuraldbg.trace.ring import Ring
from neuraldbg.trace.rundir import claim_rank
from neuraldbg.trace.tables import CALL_CODE, TABLES

SEGMENT_BYTES: Final = 64_000_000
JOURNAL_BELOW_ROWS: Final = 1_024  # a smaller flush goes to the journal first
CONSOLIDATE_ROWS: Final = 8_192  # journalled rows of a table that become one chunk of a segment
SMALLEST_CHUNK_ROWS: Final = 512  # what a full disk is tried with
FACTS_BUFFER_BYTES: Final = 16_000_000
FACTS_CHUNK_BYTES: Final = 1_000_000
CHUNK_BYTES: Final = 524_288  # of memory, at first
BALLAST_BYTES: Final = 65_536  # given back on a full disk at close, so that the end and the drops can be told
FIRST_RETRY_S: Final = 0.2
LAST_RETRY_S: Final = 5.0
YOUNG_S: Final = 5.0  # a run that ends soon after it began is not to lose much: so long it writes every EARLY_S
EARLY_S: Final = 0.2
USUAL_S: Final = 1.0
SOONEST_S: Final = 0.05  # who watches may have it no more often
AHEAD: Final = 0.8  # of the time between two looks
WATCHED_S: Final = 3.0  # so long after the last word of who watches
JOIN_S: Final = 5.0  # a write that hangs on a network disk may cost the close this much, not more

_UPDATE_CODES: Final = (CALL_CODE[Call.STEP], CALL_CODE[Call.STEP_MANUAL])


class _Lane:
    """One table on its way to the disk: ring, then journal while rows are few, then segments."""

    def __init__(self, table: str, capacity: int, journal: GrowingFile) -> None:
        self.table = table
        self.ring = Ring(TABLES[table], _room(table, capacity))
        self.journal = journal
        self.journalled: NDArray[np.void] = np.empty(CONSOLIDATE_ROWS, TABLES[table])
        self.journalled_rows = 0
        self.first_row = 0  # number of the first row that is in no segment yet

    def remember(self, blocks: list[NDArray[np.void]]) -> None:
        """Keeps journalled rows until they fill a chunk."""
        opaque = self.ring.opaque
        for block in blocks:
            end = self.journalled_rows + len(block)
            self.journalled.view(opaque)[self.journalled_rows : end] = block.view(opaque)
            self.journalled_rows = end

    @property
    def written(self) -> int:
        return self.first_row + self.journalled_rows


def _room(table: str, ring_rows: int) -> int:
    """Histograms are few and large, and the first to be done without."""
    return max(64, ring_rows // 16) if table == "histograms" else ring_rows


class TraceWriter:
    """Writes the trace of one process. No method raises because of the disk: see `.error` and `.dropped`."""

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        rank: int | None = None,
        max_disk_bytes: int = 2_000_000_000,
        flush_interval_s: float | None = None,
        ring_rows: int = 65_536,
        threaded: bool = True,
    ) -> None:
        self.rank, self.directory = claim_rank(Path(run_dir), rank)
        self.bytes_written, self._facts_written = 0, 0
        self.error: str | None = None
        self._pid = os.getpid()
        header = encode_file_header(rank=self.rank, pid=self._pid, created_ns=time.time_ns())  # once, before a training
        self._max_disk_bytes = max_disk_bytes
        self._segment_bytes = min(SEGMENT_BYTES, max(max_disk_bytes // 8, 65_536))
        self._segments = GrowingFile(self.directory, "segment", header)
        self._facts_file = GrowingFile(self.directory, "facts", header)
        self._lanes = {
            table: _Lane(table, ring_rows, GrowingFile(self.directory, f"journal-{table}", header)) for table in TABLES
        }
        self._segment_tally: dict[Path, dict[str, int]] = {}
        self._evicted: dict[str, int] = {}
        self._encoder = ChunkEncoder(CHUNK_BYTES)
        self._chunk_rows = ring_rows
        self._facts = FactBuffer(FACTS_BUFFER_BYTES)
        self._reported = self.dropped
        self._flush_lock = threading.Lock()
        self._retry_s, self._retry_at = FIRST_RETRY_S, 0.0
        self._closed = self._stop = False
        self._wake = threading.Event()
        self._ballast = self.directory / "ballast"
        self._young_s, self._interval_s = (EARLY_S, USUAL_S) if flush_interval_s is None else 2 * (flush_interval_s,)
        self._watched, self._began_s = (self._interval_s, 0.0), time.monotonic()  # how often, until when
        self._thread: threading.Thread | None = None
        self._sources: list[Callable[[TraceWriter], None]] = []
        self._draining = 0  # the thread that is in a source now
        self._start(threaded)

    def _start(self, threaded: bool) -> None:
        with suppress(OSError):
            self._ballast.write_bytes(os.urandom(BALLAST_BYTES))
        if threaded:
            self._thread = threading.Thread(target=self._run, name="neuraldbg-trace", daemon=True)
            self._thread.start()

    def append(self, table: str, rows: NDArray[np.void]) -> int:
        """Copies rows into the ring of `table`; returns how many were accepted. Never waits for the disk."""
        lane = self._lanes[table]
        ring = lane.ring
        if rows.dtype != ring.dtype:
            raise TypeError(
                f"rows of {table} have the dtype neuraldbg.trace.tables.TABLES[{table!r}], not {rows.dtype}"
            )
        if self._closed or os.getpid() != self._pid:
            return 0
        accepted = ring.append(rows)
        if accepted < len(rows) and self._draining == threading.get_ident():
            accepted += self._append_while_writing(lane, rows[accepted:])
        if accepted < len(rows):
            ring.refuse(len(rows) - accepted)
        if len(ring) * 2 > ring.capacity and not self._wake.is_set() and time.monotonic() >= self._retry_at:
            self._wake.set()
        return accepted

    def add_source(self, drain: Callable[[TraceWriter], None]) -> None:
        """`drain` is called before each flush, in the flush thread: it hands over rows that wait elsewhere."""
        self._sources.append(drain)

    def fact(self, type: str, **fields: Any) -> None:
        """Records a JSON object. Facts have their own buffer and go to the disk before rows."""
        if self._closed or os.getpid() != self._pid:
            return
        self._facts.put(type, fields)

    def whole_fact(self, fact: dict[str, Any]) -> None:
        """The same of a dict that is given away, with `type` and `wall_ns` in it."""
        if not self._closed and os.getpid() == self._pid:
            self._facts.put_whole(fact)

    def late_fact(self, type: str, fields: Callable[[], dict[str, Any]], size: int) -> bool:
        """A fact at this place in the row, whose fields are asked for when it is written, by the flush thread. `size`
        is about that of its texts. False where there will be none."""
        alive = not self._closed and os.getpid() == self._pid
        return alive and self._facts.put_later(type, fields, size)

    @property
    def dropped(self) -> dict[str, int]:
        """Rows lost so far, by table."""
        return {**{table: lane.ring.refused for table, lane in self._lanes.items()}, "facts": self._facts.dropped}

    @property
    def written(self) -> dict[str, int]:
        """Rows whose `write()` has returned, by table."""
        return {**{table: lane.written for table, lane in self._lanes.items()}, "facts": self._facts_written}

    def flush(self) -> None:
        """Writes what is waiting now; after a failed write not before its retry is due."""
        if self._closed or os.getpid() != self._pid or not self._flush_lock.acquire(timeout=JOIN_S):
            return
        try:
            self._flush()
        finally:
            self._flush_lock.release()

    def watched(self, every_s: float) -> None:
        """Somebody watches who would see what is new this often: for a moment the thread writes at that pace, where its
        own is slower, and a little faster, so that none of their looks falls between two writes."""
        (_, until_s), now = self._watched, time.monotonic()
        self._watched = max(AHEAD * every_s, SOONEST_S), now + WATCHED_S
        if until_s < now and every_s < self._interval_s:
            self._wake.set()  # it sleeps at its own pace

    def _turn_s(self) -> float:
        every_s, until_s = self._watched
        now = time.monotonic()
        own_s = self._young_s if now - self._began_s < YOUNG_S else self._interval_s
        return min(own_s, every_s) if now < until_s else own_s

    def close(self) -> None:
        """Writes everything, ends the thread, closes the files. A second call does nothing."""
        if self._stop:
            return
        if os.getpid() != self._pid:
            self.abandon()
            return
        self._stop = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)
        if not self._flush_lock.acquire(timeout=JOIN_S):
            self._closed = True
            return  # the thread hangs in a write; it is a daemon and dies with the process
        try:
            self._finish()
        finally:
            self._closed = True
            self._flush_lock.release()

    def abandon(self) -> None:
        """In a forked child: forgets everything and writes nothing. The parent's files are not touched."""
        self._closed = self._stop = True
        self._thread = None
        for file in self._files():
            file.close()
        self._facts.forget()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            now, turn_s = time.monotonic(), self._turn_s()
            due = max(due + turn_s, now + turn_s / 2)  # by the clock: what a flush takes does not add up, but it rests
            self._wake.wait(due - now)
            if self._wake.is_set():
                due = time.monotonic()
            self._wake.clear()
            if self._stop:
                return
            with self._flush_lock:
                self._flush()

    def _files(self) -> Iterable[GrowingFile]:
        return (self._segments, self._facts_file, *(lane.journal for lane in self._lanes.values()))

    def _flush(self, *, last: bool = False) -> bool:
        """One round: facts, rows, eviction. False when the disk refused."""
        self._drain_sources()
        if last:
            self._closed = True  # nothing may come in behind the last round

        def everything() -> None:
            self._report_drops()
            self._flush_facts()
            for lane in self._lanes.values():
                self._flush_lane(lane, last=last)
            self._evict()

        return self._try(everything, now=last)

    def _try(self, write: Callable[[], None], *, now: bool = False) -> bool:
        """Writes unless a retry is not due yet. A failure is noted, and the next try is later and smaller."""
        if not now and time.monotonic() < self._retry_at:
            return False
        try:
            write()
        except (OSError, MemoryError) as error:
            name = errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)
            self.error = f"{name}: {getattr(error, 'strerror', None) or error} while writing {self.directory}"
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)
            self._chunk_rows = max(self._chunk_rows // 2, SMALLEST_CHUNK_ROWS)
            return False
        self._retry_s = FIRST_RETRY_S
        return True

    def _drain_sources(self) -> None:
        """Asks every source. Rows that fit no table are lost, as `.error` says; any other failure is its owner's."""
        self._draining = threading.get_ident()
        try:
            for drain in self._sources:
                try:
                    drain(self)
                except (TypeError, ValueError, OverflowError) as error:
                    self.error = f"rows that do not fit their table were lost: {error}"
        finally:
            self._draining = 0

    def _append_while_writing(self, lane: _Lane, rows: NDArray[np.void]) -> int:
        """A source may hand over more than the ring holds: the thread that would empty it is the one that asks."""
        done = 0
        while done < len(rows) and self._try(lambda: self._flush_lane(lane, last=False)):
            done += lane.ring.append(rows[done:])
        return done

    def _report_drops(self) -> None:
        dropped = self.dropped
        if dropped != self._reported:
            self._facts.put("dropped", {"rows": dropped, "error": self.error}, instead=True)
            self._reported = dropped

    def _write(self, file: GrowingFile, chunk: memoryview) -> None:
        file.write(chunk)
        self.bytes_written += len(chunk)

    def _flush_facts(self) -> None:
        while lines := self._facts.oldest(FACTS_CHUNK_BYTES):
            self._write_facts(lines)

    def _write_facts(self, lines: list[bytes]) -> None:
        self._write(self._facts_file, self._encoder.facts(lines, self._facts_written))
        self._facts_written += len(lines)
        self._facts.release(len(lines))

    def _flush_lane(self, lane: _Lane, *, last: bool) -> None:
        blocks = lane.ring.waiting(self._chunk_rows)
        while blocks or (last and lane.journalled_rows):
            count = sum(map(len, blocks))
            total = lane.journalled_rows + count
            if last or count >= JOURNAL_BELOW_ROWS or total >= CONSOLIDATE_ROWS:
                before = [lane.journalled[: lane.journalled_rows]] if lane.journalled_rows else []
                self._to_segment(lane, before + blocks)
                lane.first_row += total
                lane.journalled_rows = 0
                lane.ring.release(count)
                lane.journal.discard()
            else:
                self._write(lane.journal, self._encoder.rows(lane.table, blocks, lane.written))
                lane.remember(blocks)
                lane.ring.release(count)
            self._chunk_rows = min(self._chunk_rows * 2, lane.ring.capacity)
            if count < lane.ring.capacity // 2 and not last:
                return  # a short round: what came meanwhile belongs to the next one
            blocks = lane.ring.waiting(self._chunk_rows)

    def _to_segment(self, lane: _Lane, blocks: list[NDArray[np.void]]) -> None:
        self._write(self._segments, self._encoder.rows(lane.table, blocks, lane.first_row))
        path = self._segments.path
        assert path is not None
        tally = self._segment_tally.setdefault(path, {})
        tally[lane.table] = tally.get(lane.table, 0) + sum(map(len, blocks))
        if lane.table == "calls":
            for block in blocks:
                codes = np.bincount(block["call"], minlength=256)
                tally["backwards"] = tally.get("backwards", 0) + int(codes[CALL_CODE[Call.BACKWARD]])
                tally["updates"] = tally.get("updates", 0) + int(codes[list(_UPDATE_CODES)].sum())
        if self._segments.size >= self._segment_bytes:
            self._segments.rotate()

    def _evict(self) -> None:
        """Deletes the oldest closed segments while the files are over the limit, and says so in a fact."""
        before = dict(self._evicted)
        while sum(file.total_bytes for file in self._files()) > self._max_disk_bytes:
            path = self._segments.remove_oldest()
            if path is None:
                break
            for name, count in self._segment_tally.pop(path, {}).items():
                self._evicted[name] = self._evicted.get(name, 0) + count
        if self._evicted != before:
            self._facts.put("evicted", {"rows": dict(self._evicted)})

    def _finish(self) -> None:
        complete = self._flush(last=True)
        for lane in self._lanes.values():
            lane.ring.refuse(len(lane.ring))
            lane.ring.release(len(lane.ring))
        with suppress(OSError):
            self._ballast.unlink()
        try:
            self._report_drops()
            urgent = self._facts.bring_forward(("end", "dropped"))
            if not complete and urgent:  # the disk is full: with the ballast gone, first what a reader misses most
                self._write_facts(self._facts.oldest(FACTS_CHUNK_BYTES)[:urgent])
            self._flush_facts()
        except (OSError, MemoryError):
            self._facts.give_up()
        finally:
            for file in self._files():
                file.close()
