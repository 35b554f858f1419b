"""The training never waits, never sees a disk error, and what was written can be read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from trace_making import calls, describe_net, new_run, scalars, stats

from neuraldbg.errors import RunDirectoryError
from neuraldbg.records import Call, RunInfo, SiteKind
from neuraldbg.trace import TraceWriter, create_run, open_trace
from neuraldbg.trace import writer as writer_module
from neuraldbg.trace.tables import CALLS


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def files(writer: TraceWriter) -> list[str]:
    return sorted(path.name for path in writer.directory.iterdir() if path.suffix == ".ndt")


def test_the_flush_thread_writes_by_itself_and_a_reader_sees_it_meanwhile(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run, flush_interval_s=0.01) as writer, open_trace(run) as trace:
        describe_net(writer)
        writer.append("stats", stats(0, 100))
        wait_until(lambda: trace.refresh() and len(trace.table("stats")["seq"]) == 100)
        assert not trace.ended


def test_who_watches_does_not_wait_for_the_writers_own_pace(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run, flush_interval_s=3600) as writer:
        writer.watched(0.01)
        for already in (0, 100, 200):
            writer.append("stats", stats(already, 100))
            wait_until(lambda already=already: writer.written["stats"] == already + 100)


def test_the_pace_of_who_watches_is_bounded_and_ends_with_him(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run, flush_interval_s=3600) as writer:
        assert writer._turn_s() == 3600
        writer.watched(0)
        assert writer._turn_s() == writer_module.SOONEST_S
        writer.watched(7200)
        assert writer._turn_s() == 3600
        writer.watched(0.1)
        assert writer._turn_s() == pytest.approx(0.08)  # a little ahead of him
        monkeypatch.setattr(writer, "_watched", (0.1, time.monotonic() - 1))
        assert writer._turn_s() == 3600


def test_what_a_write_takes_does_not_slow_the_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of its own: every wait ends when it should, and a write takes a while."""

    class Clock:
        now, writes, taking = 0.0, [], 0.03

        def monotonic(self) -> float:
            return self.now

        def wait(self, timeout: float) -> None:
            self.now += timeout
            self.writes.append(self.now)

        def is_set(self) -> bool:
            return False

        clear = set = is_set

    writer = TraceWriter(new_run(tmp_path), flush_interval_s=0.1, threaded=False)
    clock = Clock()

    def flush() -> None:
        clock.now += clock.taking
        clock.taking = 0.5 if len(clock.writes) == 5 else 0.03
        writer._stop = len(clock.writes) == 8

    with monkeypatch.context() as patched:
        patched.setattr(writer_module, "time", clock)
        patched.setattr(writer, "_wake", clock)
        patched.setattr(writer, "_flush", flush)
        writer._run()
    writer._stop = False
    writer.close()
    gaps = [round(after - before, 6) for before, after in pairwise(clock.writes)]
    assert gaps[:4] == [0.1] * 4
    assert gaps[5] == 0.5 + 0.05  # after a long one it rests


def test_a_full_ring_drops_and_counts_and_says_so_in_the_trace(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = TraceWriter(run, ring_rows=100, threaded=False)
    assert writer.append("stats", stats(0, 70)) == 70
    assert writer.append("stats", stats(70, 70)) == 30
    assert writer.append("stats", stats(140, 10)) == 0
    assert writer.dropped["stats"] == 50
    writer.flush()
    assert writer.append("stats", stats(150, 100)) == 100
    writer.close()
    with open_trace(run) as trace:
        assert trace.table("stats")["seq"].tolist() == [*range(100), *range(150, 250)]
        assert trace.dropped["stats"] == 50
        assert trace.dropped["spans"] == 0


def test_the_ring_goes_round_without_mixing_rows(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = TraceWriter(run, ring_rows=100, threaded=False)
    lane = writer._lanes["stats"]
    for first in range(0, 3000, 60):
        assert writer.append("stats", stats(first, 60)) == 60
        writer._chunk_rows = 50  # leaves rows behind, so that the next ones wrap
        writer._flush_lane(lane, last=False)
        writer._flush_lane(lane, last=False)
    writer.close()
    with open_trace(run) as trace:
        assert trace.table("stats")["seq"].tolist() == list(range(3000))


def test_close_writes_everything_and_may_be_called_again(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = TraceWriter(run, flush_interval_s=60)
    writer.append("stats", stats(0, 10))
    writer.fact("note", level="info", text="hello", shape=(1, 2), kind=SiteKind.MODEL, norm=np.float32(0.5))
    writer.close()
    writer.close()
    assert writer.append("stats", stats(10, 10)) == 0
    writer.fact("note", text="too late")
    writer.flush()
    assert files(writer) == ["facts-000000.ndt", "segment-000000.ndt"]
    assert not (writer.directory / "ballast").exists()
    with open_trace(run) as trace:
        (note,) = trace.facts("note")
        assert (note["text"], note["shape"], note["kind"], note["norm"], note["rank"]) == (
            "hello",
            [1, 2],
            "model",
            0.5,
            0,
        )
        assert len(trace.table("stats")["seq"]) == 10


def test_rows_of_the_wrong_shape_are_the_callers_mistake(tmp_path: Path) -> None:
    with TraceWriter(new_run(tmp_path), threaded=False) as writer, pytest.raises(TypeError, match="rows of stats"):
        writer.append("stats", np.zeros(3, CALLS))


def test_few_rows_at_a_time_are_journalled_and_then_become_one_chunk(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = TraceWriter(run, threaded=False)
    trace = open_trace(run)
    for first in range(0, 8190, 10):
        writer.append("stats", stats(first, 10))
        writer.flush()
    assert files(writer) == ["journal-stats-000000.ndt"]
    trace.refresh()
    assert trace.table("stats")["seq"].tolist() == list(range(8190))
    writer.append("stats", stats(8190, 10))
    writer.flush()
    assert files(writer) == ["segment-000000.ndt"]
    for first in range(8200, 8300, 10):
        writer.append("stats", stats(first, 10))
        writer.flush()
    assert files(writer) == ["journal-stats-000001.ndt", "segment-000000.ndt"]
    trace.refresh()  # the old reader and a new one agree
    assert trace.table("stats")["seq"].tolist() == list(range(8300))
    with open_trace(run) as fresh:
        assert fresh.table("stats")["seq"].tolist() == list(range(8300))
        assert len(fresh._ranks.views[0].reader.chunks["stats"]) == 11
        assert fresh.damage is None
    writer.close()
    trace.close()


def test_a_journal_that_vanishes_between_listing_and_opening_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    writer = TraceWriter(run, threaded=False)
    for first in range(0, 4000, 1000):
        writer.append("stats", stats(first, 1000))
        writer.flush()
    trace = open_trace(run)
    for first in range(4000, 8000, 1000):
        writer.append("stats", stats(first, 1000))
        writer.flush()
    real_listing = os.listdir

    def listing_then_consolidation(path: Path) -> list[str]:
        names = real_listing(path)
        writer.append("stats", stats(8000, 1000))
        writer.flush()
        return names

    with monkeypatch.context() as patch:
        patch.setattr("neuraldbg.trace.reader.os.listdir", listing_then_consolidation)
        trace._ranks.views[0].reader.refresh()
    assert not (writer.directory / "journal-stats-000000.ndt").exists()
    seen = trace.table("stats")["seq"].tolist()
    assert seen == list(range(len(seen)))
    assert len(seen) >= 9000
    writer.close()


def test_facts_come_before_rows_and_outlive_eviction(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = TraceWriter(run, max_disk_bytes=2_000_000, threaded=False)
    describe_net(writer)
    for chunk in range(40):
        writer.append("stats", stats(5000 * chunk, 5000))
        writer.append("calls", calls([5000 * chunk], Call.BACKWARD))
        writer.append("calls", calls([5000 * chunk + 1] * 4999, Call.CLIP))
        writer.flush()
        on_disk = sum(path.stat().st_size for path in writer.directory.glob("*.ndt"))
        assert on_disk < 3_500_000
    writer.close()
    with open_trace(run) as trace:
        rows = trace.table("stats")["seq"]
        assert trace.damage is None
        assert [site.path for site in trace.sites] == ["net", "0", "2", "0.weight", "loss"]
        assert rows.tolist() == list(range(200_000 - len(rows), 200_000))  # the newest are there, in order
        assert trace.evicted["stats"] == 200_000 - len(rows) > 0
        assert trace.run.steps_kind == "backward"
        assert trace.steps[-1] == 40  # backwards in evicted segments still count


def test_a_reader_lets_evicted_segments_go(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = TraceWriter(run, max_disk_bytes=2_000_000, threaded=False)
    trace = open_trace(run)
    for chunk in range(10):
        writer.append("stats", stats(5000 * chunk, 5000))
        writer.flush()
        trace.refresh()
    with open_trace(run) as fresh:
        assert trace.table("stats")["seq"].tolist() == fresh.table("stats")["seq"].tolist()
    writer.close()


def test_rows_of_a_source_that_fit_no_table_cost_only_themselves(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = TraceWriter(run, threaded=False)
    waiting = [stats(0, 1), np.zeros(2, CALLS), stats(1, 1)]
    writer.add_source(lambda sink: sink.append("stats", waiting.pop(0)) and None)
    for _ in range(2):
        writer.flush()
    writer.close()
    assert "rows that do not fit their table were lost" in str(writer.error)
    with open_trace(run) as trace:
        assert trace.table("stats")["seq"].tolist() == [0, 1]


def test_a_source_may_hand_over_more_than_the_ring_holds(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = TraceWriter(run, ring_rows=1000, threaded=False)
    waiting = [stats(0, 25_000), stats(25_000, 10)]
    writer.add_source(lambda sink: [sink.append("stats", waiting.pop(0)) for _ in waiting[:]] and None)
    writer.close()
    assert writer.dropped["stats"] == 0
    with open_trace(run) as trace:
        assert trace.table("stats")["seq"].tolist() == list(range(25_010))


def test_many_threads_may_append(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run, flush_interval_s=0.005) as writer:

        def produce(site: int) -> None:
            for first in range(0, 2000, 20):
                writer.append("stats", stats(first, 20, site=site))

        threads = [threading.Thread(target=produce, args=(site,)) for site in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with open_trace(run) as trace:
        for site in range(4):
            assert trace.table("stats", ["seq"], site=site)["seq"].tolist() == list(range(2000))


def test_ranks_are_claimed_one_after_the_other(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run) as first, TraceWriter(run) as second, TraceWriter(run, rank=7) as seventh:
        assert [first.rank, second.rank, seventh.rank] == [0, 1, 7]
        with pytest.raises(RunDirectoryError, match="--out DIR"):
            TraceWriter(run, rank=7)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=f"cannot write into {tmp_path / 'file'}: "):
        TraceWriter(tmp_path / "file")


def test_run_directories_never_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    info = RunInfo("20260101-000000-train", ("train.py",), None, {}, "2026-01-01T00:00:00Z")
    runs = [create_run(info, out=None) for _ in range(3)]
    assert [run.name for run in runs] == [info.id, f"{info.id}-2", f"{info.id}-3"]
    assert open_trace(runs[1]).run.id == f"{info.id}-2"
    with pytest.raises(RunDirectoryError, match="is not empty"):
        create_run(info, out=runs[0])
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="choose another with --out DIR"):
        create_run(info, out=tmp_path / "file" / "run")


def test_a_fact_is_what_it_was_when_it_was_told(tmp_path: Path) -> None:
    """Also where its line is made later, by the thread that writes."""
    run = new_run(tmp_path)
    with TraceWriter(run, flush_interval_s=3600) as writer:
        flat, nested, table = [1, 2], [[1], [2]], {"a": 1}
        writer.fact("note", text="first", flat=flat, shape=(3, 4))
        writer.fact("note", text="second", nested=nested)
        writer.fact("note", text="third", table=table, norm=float("inf"))
        flat.append(3)
        nested[0].append(3)
        table["b"] = 2
    with open_trace(run) as trace:
        first, second, third = trace.facts("note")
    assert (first["text"], first["flat"], first["shape"]) == ("first", [1, 2], [3, 4])
    assert (second["text"], second["nested"]) == ("second", [[1], [2]])
    assert (third["text"], third["table"], third["norm"]) == ("third", {"a": 1}, float("inf"))


def test_the_facts_buffer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "FACTS_BUFFER_BYTES", 1000)
    with TraceWriter(new_run(tmp_path), threaded=False) as writer:
        for _ in range(100):
            writer.fact("note", text="x" * 50)
        assert 80 < writer.dropped["facts"] < 100


def test_a_forked_child_writes_nothing_and_the_parents_trace_is_whole(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = TraceWriter(run, threaded=False)
    writer.append("stats", stats(0, 100))
    writer.flush()
    writer.append("stats", stats(100, 100))
    for abandons in (True, False):
        child = os.fork()
        if child == 0:
            try:
                if abandons:
                    writer.abandon()
                writer.append("stats", stats(900, 50))
                writer.fact("note", text="from the child")
                writer.flush()
                writer.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    writer.append("stats", stats(200, 100))
    writer.close()
    with open_trace(run) as trace:
        assert trace.table("stats")["seq"].tolist() == list(range(300))
        assert trace.facts("note") == []
        assert trace.damage is None


def test_series_and_spans_have_their_own_tables(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run) as writer:
        describe_net(writer)
        writer.append("scalars", scalars(4, [3.0, 2.0, float("nan")]))
    with open_trace(run) as trace:
        assert trace.history("loss").value[:2].tolist() == [3.0, 2.0]
