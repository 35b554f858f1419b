"""What the server asks of a trace: the newest step, several columns at once, and its memory back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
from made_runs import made_run, train

from neuraldbg.records import Kind
from neuraldbg.trace import TraceWriter, create_run, open_trace
from neuraldbg.trace.tables import STATS


def test_the_newest_step_of_a_table_and_of_all(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.writer.flush()
        empty = open_trace(run.directory)
        assert (empty.last_step, empty.last_step_in("stats")) == (None, None)
        train(run, steps=4)
        run.scalar("loss", 9, 1.0)
        run.end()
    trace = open_trace(run.directory)
    assert (trace.last_step, trace.last_step_in("stats"), trace.last_step_in("scalars")) == (9, 3, 9)


def test_the_newest_step_where_backwards_are_counted(tmp_path: Path) -> None:
    from neuraldbg.records import Call

    with made_run(tmp_path / "run") as run:
        site = run.module("fc", "Linear", run.model())
        for _ in range(5):
            run.stats(site, Kind.ACTIVATION, 0)
            run.call(Call.BACKWARD, 0)
        run.end()
    assert open_trace(run.directory).last_step_in("stats") == 4


def test_several_fields_of_a_history(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=3)
        run.end()
    rows = open_trace(run.directory).history("fc", "activation", ("mean", "nan_count"))
    assert rows.mean.tolist() == [0.25] * 3
    assert set(rows) == {"step", "seq", "site", "rank", "mean", "nan_count"}


def test_memory_is_given_back_and_the_numbers_stay(tmp_path: Path) -> None:
    from made_runs import a_run_info

    directory = create_run(a_run_info(), out=tmp_path / "large")
    rows = np.zeros(10_000, STATS)
    rows["kind"], rows["l2"] = 1, 3.0
    with TraceWriter(directory, threaded=False) as writer:
        for step in range(60):
            rows["step"] = step
            writer.append("stats", rows)
            writer.flush()
    trace = open_trace(directory)
    assert trace.table("stats", ["l2"])["l2"].sum() == 3.0 * 600_000
    before = psutil.Process().memory_info().rss
    trace.release()
    assert before - psutil.Process().memory_info().rss > 30e6
    assert trace.table("stats", ["l2"])["l2"].sum() == 3.0 * 600_000
