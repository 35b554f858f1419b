"""Killed, out of space, out of luck: what was written is read, what was lost is counted, and nobody waits."""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_making import describe_net, new_run, stats

from neuraldbg.trace import TraceWriter, open_trace
from neuraldbg.trace import writer as writer_module

REPORT = struct.Struct("<qq")  # rows so far, CLOCK_MONOTONIC in ns

WRITER = """
import os, random, struct, sys, time
import numpy as np
from neuraldbg.trace import TraceWriter
from neuraldbg.trace.tables import STATS
assert "torch" not in sys.modules
run, reports, threaded, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "threaded", int(sys.argv[4])
chance = random.Random(seed)
writer = TraceWriter(run, threaded=threaded, max_disk_bytes=10_000_000_000)
total = 0
while True:
    count = chance.choice([1, 20, 150, 150, 150, 5000])
    rows = np.zeros(count, STATS)
    rows["seq"] = np.arange(total, total + count)
    rows["l2"] = rows["seq"]
    total += writer.append("stats", rows)
    if threaded:
        time.sleep(0.004)
    else:
        writer.flush()
        assert writer.written["stats"] == total
    os.write(reports, struct.pack("<qq", total, time.monotonic_ns()))
"""


Started = tuple[Path, Path, "subprocess.Popen[bytes]"]


@pytest.fixture
def start_writer(tmp_path: Path) -> Iterator[Callable[[int, str], Started]]:
    """Starts a writer that goes on until it is killed; none outlives the test."""
    children: list[subprocess.Popen[bytes]] = []

    def start(number: int, mode: str) -> Started:
        run = new_run(tmp_path, f"run{number}")
        reports = tmp_path / f"reports{number}"
        with open(reports, "wb") as file:  # a file, not a pipe: a full pipe would hold the writer up
            command = [sys.executable, "-c", WRITER, str(run), str(file.fileno()), mode, str(number)]
            children.append(subprocess.Popen(command, pass_fds=[file.fileno()]))
        return run, reports, children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


def kill(child: subprocess.Popen[bytes]) -> int:
    now = time.monotonic_ns()
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    return now


def wait_for_report(path: Path) -> None:
    while not path.stat().st_size:
        time.sleep(0.005)


def read_reports(path: Path) -> list[tuple[int, int]]:
    data = path.read_bytes()
    return list(REPORT.iter_unpack(data[: len(data) - len(data) % REPORT.size]))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(8))
def test_ten_kills_lose_no_row_whose_write_had_returned(
    start_writer: Callable[[int, str], Started], batch: int
) -> None:
    chance = random.Random(batch)
    started = [start_writer(10 * batch + n, "alone") for n in range(10)]
    for run, reports, child in started:
        wait_for_report(reports)
        time.sleep(chance.uniform(0, 0.1))
        kill(child)
        with open_trace(run) as trace:
            rows = trace.table("stats", ["seq", "l2"])
            assert rows["seq"].tolist() == list(range(len(rows["seq"])))
            assert (rows["l2"] == rows["seq"]).all()
            assert len(rows["seq"]) >= read_reports(reports)[-1][0]
            assert not trace.ended


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(2))
def test_ten_kills_with_the_flush_thread_lose_nothing_older_than_two_seconds(
    start_writer: Callable[[int, str], Started], batch: int
) -> None:
    chance = random.Random(batch)
    started = [start_writer(100 + 10 * batch + n, "threaded") for n in range(10)]
    for _, reports, _ in started:
        wait_for_report(reports)
    time.sleep(2.2)
    for run, reports, child in started:
        time.sleep(chance.uniform(0, 0.1))
        killed = kill(child)
        due = [rows for rows, when in read_reports(reports) if when < killed - 2_000_000_000]
        assert due
        with open_trace(run) as trace:
            rows = trace.table("stats", ["seq"])["seq"]
            assert rows.tolist() == list(range(len(rows)))
            assert len(rows) >= due[-1]


def test_an_exit_without_close_neither_blocks_nor_loses_what_was_flushed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    script = (
        "import sys, numpy as np\nfrom neuraldbg.trace import TraceWriter\nfrom neuraldbg.trace.tables import STATS\n"
        "w = TraceWriter(sys.argv[1]); w.append('stats', np.zeros(7, STATS)); w.flush()\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(run)], check=False, timeout=60).returncode == 0
    with open_trace(run) as trace:
        assert len(trace.table("stats")["seq"]) == 7


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 4 MB. Where mounting is forbidden, the file-size limit below is the real full-disk error."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mount is not permitted here; test_a_file_size_limit_... covers failing writes")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    with open(disk / "filler", "wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries a failing disk again at once."""
    monkeypatch.setattr(writer_module, "FIRST_RETRY_S", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_full_disk_drops_and_counts_and_recording_resumes_with_space(small_disk: Path) -> None:
    run = new_run(small_disk)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(2_800_000))
    writer = TraceWriter(run, ring_rows=8192, threaded=False)
    describe_net(writer)
    appended = 0
    while not writer.dropped["stats"]:
        writer.append("stats", stats(appended, 1000))
        appended += 1000
        writer.flush()
    assert str(writer.error).startswith("ENOSPC: No space left on device")
    for _ in range(20):  # trying again and again leaves no heap of torn files
        writer.flush()
    assert len(list(writer.directory.iterdir())) < 8
    with open_trace(run) as trace:
        kept = trace.table("stats")["seq"].tolist()
        assert kept == list(range(writer.written["stats"]))
        assert len(kept) > 1000
        filler.unlink()
        for _ in range(5):
            writer.append("stats", stats(appended, 1000))
            appended += 1000
            writer.flush()
        writer.close()
        trace.refresh()
        rows = trace.table("stats")["seq"].tolist()
    assert rows == sorted(set(rows))
    assert rows[-1] == appended - 1
    assert len(rows) == writer.written["stats"] == appended - writer.dropped["stats"]
    with open_trace(run) as trace:
        assert trace.table("stats")["seq"].tolist() == rows
        assert trace.dropped == writer.dropped
        assert trace.damage is None  # the torn chunk was written again elsewhere


@pytest.mark.usefixtures("impatient")
def test_a_disk_that_stays_full_still_tells_the_end_and_the_drops(small_disk: Path) -> None:
    run = new_run(small_disk)
    writer = TraceWriter(run, ring_rows=8192)
    describe_net(writer)
    writer.flush()
    for first in range(0, 100_000, 1000):
        writer.append("stats", stats(first, 1000))
        if first % 10_000 == 0:
            writer.flush()
    for _ in range(500):
        writer.fact("note", level="info", text="x" * 1000)
    fill(small_disk)
    writer.fact("end", exit_code=0, error=None, duration_s=1.0, steps=5)
    writer.close()
    with open_trace(run) as trace:
        assert trace.ended
        assert trace.run.exit_code == 0
        assert trace.dropped["stats"] == writer.dropped["stats"] > 0
        rows = trace.table("stats")["seq"].tolist()
        assert rows == sorted(set(rows))
        assert len(rows) == writer.written["stats"] == 100_000 - writer.dropped["stats"]


LIMITED = """
import resource, signal, sys
import numpy as np
from neuraldbg.trace import TraceWriter, writer
from neuraldbg.trace.tables import STATS
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
writer.FIRST_RETRY_S = 0.0
w = TraceWriter(sys.argv[1], ring_rows=8192, threaded=False)
for first in range(0, 60_000, 1000):
    rows = np.zeros(1000, STATS)
    rows["seq"] = np.arange(first, first + 1000)
    assert w.append("stats", rows) == 1000
    w.flush()
w.close()
assert w.error.startswith("EFBIG"), w.error
assert not any(w.dropped.values()), w.dropped
"""


def test_a_file_size_limit_tears_chunks_and_none_is_lost(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(run)], check=False, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert len(list((run / "rank-00000").glob("segment-*"))) > 3
    with open_trace(run) as trace:
        assert trace.table("stats")["seq"].tolist() == list(range(60_000))
        assert trace.damage is None


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), code=st.sampled_from([errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.ESTALE]))
def test_writes_that_fail_or_fall_short_at_random_never_mix_lose_or_repeat_rows(seed: int, code: int) -> None:
    chance = random.Random(seed)
    real_write = os.write

    def unlucky(fd: int, data: memoryview) -> int:
        fate = chance.random()
        if fate < 0.15:
            real_write(fd, data[: chance.randrange(len(data))])
            raise OSError(code, os.strerror(code))
        return real_write(fd, data[: chance.randrange(1, len(data) + 1)] if fate < 0.4 else data)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        run = new_run(Path(folder))
        patch.setattr(writer_module, "FIRST_RETRY_S", 0.0)
        writer = TraceWriter(run, ring_rows=4096, threaded=False)
        patch.setattr("neuraldbg.trace.files.os.write", unlucky)
        describe_net(writer)
        appended = accepted = 0
        for _ in range(60):
            count = chance.choice([1, 300, 2000])
            accepted += writer.append("stats", stats(appended, count))
            appended += count
            writer.flush()
            writer._retry_at = 0.0
        patch.undo()
        writer.close()
        with open_trace(run) as trace:
            rows = trace.table("stats")["seq"].tolist()
            assert rows == sorted(set(rows))
            assert len(rows) == writer.written["stats"] == accepted
            assert writer.dropped["stats"] == trace.dropped["stats"] == appended - accepted
            assert len(trace.sites) == 5
            assert trace.damage is None
