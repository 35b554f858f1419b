"""Questions to a trace, and how it is opened."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from trace_making import calls, describe_net, new_run, scalars, stats

from neuraldbg.errors import TraceDamaged, TraceNotFound, UnknownLayer, UnknownName
from neuraldbg.records import Call, Kind, SiteKind
from neuraldbg.trace import TraceWriter, open_trace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ten updates; layers "0" and "2" with gradients, "0.weight" as parameter; a NaN in "2" at step 6."""
    folder = new_run(tmp_path)
    with TraceWriter(folder, threaded=False) as writer:
        describe_net(writer)
        for step in range(10):
            for site, kind in ((1, Kind.GRADIENT), (2, Kind.GRADIENT), (3, Kind.PARAMETER), (3, Kind.GRADIENT)):
                rows = stats(100 * step + 10 * site, 1, step=step, site=site, kind=kind)
                rows["l2"] = site * 100 + step
                rows["zero_count"] = site
                if (step, site) == (6, 2):
                    rows["nan_count"], rows["l2"] = 3, np.nan
                if (step, site) == (2, 1):
                    rows["nan_count"] = 1  # beside finite values
                writer.append("stats", rows)
            writer.append("calls", calls([100 * step + 50], Call.BACKWARD, step=step))
            writer.append("calls", calls([100 * step + 60], Call.STEP, step=step))
            writer.flush()
        writer.append("scalars", scalars(4, [1.0 / (n + 1) for n in range(10)]))
        writer.fact("end", exit_code=3, error="ValueError: no", duration_s=1.5, dropped={}, steps=10)
    return folder


def test_the_run_and_its_end_are_one(run: Path) -> None:
    with open_trace(run) as trace:
        assert (trace.run.id, trace.run.exit_code, trace.run.error, trace.run.duration_s) == (
            "run",
            3,
            "ValueError: no",
            1.5,
        )
        assert (trace.run.ended, trace.ended, trace.run.steps_kind, trace.run.steps) == (True, True, "update", 10)
        assert trace.steps.tolist() == list(range(10))
        assert trace.site("linear1").shape == (4, 8)


def test_the_history_of_a_layer_by_any_name(run: Path) -> None:
    with open_trace(run) as trace:
        for name in ("0", "linear1", "Dense_1", "fc1"):
            history = trace.history(name)
            assert history.steps.tolist() == list(range(10))
            assert history.l2.tolist() == history["l2"].tolist() == [100.0 + step for step in range(10)]
        assert trace.history("0", between=(3, 5)).steps.tolist() == [3, 4, 5]
        assert trace.history("0", between=(8, None)).steps.tolist() == [8, 9]
        assert set(trace.history("0", field="zero_ratio")) == {"step", "seq", "site", "rank", "zero_ratio"}
        assert trace.history("0", field="zero_ratio").zero_ratio.tolist() == [0.1] * 10
        assert trace.history("0", "parameter").layers == ["0.weight"] * 10  # its own parameters
        assert trace.history("0.weight", Kind.GRADIENT).l2[0] == 300.0
        assert len(trace.history("0", "activation")) == 0
        assert trace.history("loss").value.tolist() == [1.0 / (n + 1) for n in range(10)]
        assert dict(trace.history("loss").items()).keys() == {
            "step",
            "seq",
            "site",
            "pass_id",
            "value",
            "wall_ns",
            "rank",
        }


def test_wrong_names_answer_with_the_nearest(run: Path) -> None:
    with open_trace(run) as trace:
        with pytest.raises(UnknownLayer, match="did you mean 'linear"):
            trace.history("linaer1")
        with pytest.raises(UnknownName, match="no kind 'gradiant' in this run; did you mean 'gradient'"):
            trace.history("0", "gradiant")
        with pytest.raises(UnknownName, match="no field 'l3' in this run; did you mean 'l2'"):
            trace.history("0", field="l3")
        with pytest.raises(UnknownName, match="no table"):
            trace.table("statz")
        with pytest.raises(AttributeError, match="no column 'foo'"):
            _ = trace.history("0").foo


def test_one_step_one_window_and_the_first_bad_row(run: Path) -> None:
    with open_trace(run) as trace:
        assert trace.at(4).layers == ["0", "2", "0.weight", "0.weight"]
        assert trace.at(4, "parameter").l2.tolist() == [304.0]
        assert trace.at(4, Kind.SCALAR).value.tolist() == [0.2]
        first = trace.first(lambda row: row["nan_count"] > 1)
        assert first is not None
        assert (first["step"], first["layer"], first["kind"]) == (6, "2", "gradient")
        assert trace.first(lambda row: row["nan_count"] > 100) is None
        assert trace.first(lambda row: row["call"] == "step", table="calls") is not None
        window = trace.between(2, 4)
        assert window.steps.tolist() == [2, 3, 4]
        assert window.between(4, 9).history("0").steps.tolist() == [4]
        assert window.first(lambda row: row["nan_count"] > 1) is None


def test_a_window_knows_only_what_was_told_by_its_last_step(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run, threaded=False) as writer:
        for step in range(4):
            row = scalars(4, [1.0])
            row["step"], row["wall_ns"] = step, time.time_ns()
            writer.append("scalars", row)
            writer.fact("overhead", steps=step)
    with open_trace(run) as trace:
        assert [fact["steps"] for fact in trace.between(None, 1).told("overhead")] == [0, 1]
        assert len(trace.between(2, None).told("overhead")) == len(trace.told("overhead")) == 4
        assert len(trace.between(None, 3).told("overhead")) == 4  # there is no step after it
        assert len(trace.between(None, 1).facts("overhead")) == 4


def test_the_first_row_is_the_first_in_time_even_where_rows_came_late(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run, threaded=False) as writer:
        for step in (5, 9, 2, 7):
            writer.append("stats", stats(step * 10, 3, step=step))
            writer._flush_lane(writer._lanes["stats"], last=True)
    with open_trace(run) as trace:
        first = trace.first(lambda row: row["seq"] != 20)
        assert first is not None
        assert (first["step"], first["seq"]) == (2, 21)
        assert trace.steps.tolist() == [2, 5, 7, 9]


def test_top_ranks_layers_by_their_largest_value(run: Path) -> None:
    with open_trace(run) as trace:
        top = trace.top("l2", "gradient")
        assert [(row["layer"], row["step"], row["l2"]) for row in top] == [
            ("0.weight", 9, 309.0),
            ("2", 9, 209.0),
            ("0", 9, 109.0),
        ]
        assert len(trace.top("zero_ratio", "gradient", k=1)) == 1
        assert trace.top("l2", "activation") == []


def test_a_heatmap_pools_maxima_and_keeps_nan_apart(run: Path) -> None:
    with open_trace(run) as trace:
        heatmap = trace.heatmap("l2", "gradient", width=5)
        assert heatmap.layers == ["0", "2", "0.weight"]
        assert heatmap.edges.tolist() == [0, 2, 4, 6, 8, 10]
        assert heatmap.values[0].tolist() == [101.0, 103.0, 105.0, 107.0, 109.0]
        assert heatmap.values[1].tolist() == [201.0, 203.0, 205.0, 207.0, 209.0]
        assert heatmap.nan[1].tolist() == [False, False, False, True, False]
        assert heatmap.nan[0].tolist() == [False, True, False, False, False]
        fine = trace.heatmap("l2", "gradient", width=1000, between=(5, 7))
        assert fine.values.shape == (3, 3)
        assert np.isnan(fine.values[1, 1])
        assert fine.nan[1, 1]
        assert trace.heatmap("l2", "input").values.shape == (0, 0)


def test_a_run_without_updates_counts_backwards(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run, threaded=False) as writer, open_trace(run) as trace:
        describe_net(writer)
        for turn in range(3):
            writer.append("stats", stats(10 * turn, 1, step=0))
            writer.append("calls", calls([10 * turn + 5], Call.BACKWARD))
            writer.append("stats", stats(10 * turn + 6, 1, step=0))
        writer.flush()
        trace.refresh()
        assert trace.run.steps_kind == "backward"
        assert trace.history("0").steps.tolist() == [0, 1, 1, 2, 2, 3]
        assert trace.steps.tolist() == [0, 1, 2, 3]
        assert trace.at(2).seq.tolist() == [16, 20]
        assert trace.heatmap("l2", "gradient").values[0].tolist() == [0.0, 10.0, 20.0, 26.0]
        first = trace.first(lambda row: row["seq"] > 10)
        assert first is not None
        assert first["step"] == 2
        writer.append("calls", calls([40], Call.STEP_MANUAL))  # the first update: steps are updates from now on
        writer.flush()
        trace.refresh()
        assert trace.run.steps_kind == "update"
        assert trace.steps.tolist() == [0]


def test_ranks_are_one_run_with_common_sites(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run, threaded=False) as zero, open_trace(run) as trace:
        describe_net(zero)
        zero.append("stats", stats(0, 2, site=2))
        zero.flush()
        trace.refresh()
        with TraceWriter(run, threaded=False) as one:  # numbers the same layers otherwise, and has one more
            one.fact("site", id=0, path="loss", kind=SiteKind.SERIES)
            one.fact("site", id=1, path="net", kind=SiteKind.MODEL)
            one.fact("site", id=2, path="extra", kind=SiteKind.MODULE, op="ReLU", model=1)
            one.fact("site", id=3, path="2", kind=SiteKind.MODULE, op="Linear", model=1)
            one.fact("model", site=1, name="net")
            one.append("stats", stats(0, 3, site=3))
            one.append("stats", stats(3, 1, site=2))
            source = calls([9], Call.STEP)
            source["source"] = 5
            one.append("calls", source)
            one.fact("source", id=5, file="train.py", line=3)
        trace.refresh()
        assert trace.ranks == [0, 1]
        history = trace.history("2")
        assert history.rank.tolist() == [0, 0, 1, 1, 1]
        assert set(history.site.tolist()) == {2}
        assert trace.history("extra").rank.tolist() == [1]
        assert trace.facts("model")[0]["site"] == 0
        assert trace.table("calls")["source"].tolist() == [trace.facts("source")[0]["id"]]
        assert sorted(trace.canonical(site) for site in trace.sites) == ["0", "0.weight", "2", "extra", "loss", "net"]


def test_later_site_facts_add_and_do_not_erase(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run, threaded=False) as writer:
        describe_net(writer)
        writer.fact(
            "site", id=1, path="0", kind=SiteKind.MODULE, op="Linear", model=0, shape=None, flops=64, unheard_of=1
        )
        writer.fact("site", id=77, path="x", kind="a kind of later versions")
    with open_trace(run) as trace:
        assert (trace.site("0").shape, trace.site("0").flops) == ((4, 8), 64)


def test_findings_are_superseded_by_id(run: Path) -> None:
    with open_trace(run) as trace:
        assert trace.findings() == []
        lines = [{"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "a", "n": 2}]
        (run / "findings.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"id": "c", "cut')
        assert trace.findings() == [{"id": "a", "n": 2}, {"id": "b", "n": 1}]


@pytest.mark.parametrize("inside", ["run", ""])
def test_a_zip_is_a_run_and_leaves_nothing_behind(
    run: Path, tmp_path: Path, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", *((run.parent, "run") if inside else (run,)))
    with open_trace(archive) as trace:
        assert trace.history("0").l2[0] == 100.0
        assert any(scratch.iterdir())
    assert not any(scratch.iterdir())
    trace.close()
    dropped = open_trace(archive)
    assert any(scratch.iterdir())
    del dropped
    assert not any(scratch.iterdir())


def test_what_is_no_run_says_what_to_do(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TraceNotFound, match=r"`neural debug train\.py` records one"):
        open_trace(empty)
    with pytest.raises(TraceNotFound, match=f"no run at {tmp_path / 'absent'}; the latest one is {run}"):
        open_trace(tmp_path / "absent")
    with pytest.raises(TraceNotFound, match=f"the latest one is {run}"):
        open_trace(tmp_path)
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(TraceDamaged, match="neither a run directory nor a readable zip"):
        open_trace(text)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as packed:
        packed.writestr("readme.txt", "hello")
    with pytest.raises(TraceNotFound, match="zip a whole run directory"):
        open_trace(tmp_path / "other.zip")
    assert open_trace(run / "rank-00000").run.id == "run"
    assert open_trace(run / "run.json").run.id == "run"


def test_without_a_run_json_the_rest_is_served(run: Path) -> None:
    (run / "run.json").unlink()
    with open_trace(run) as trace:
        assert trace.damage is None
        assert trace.run.id == "run"
        assert len(trace.history("0")) == 10
    (run / "run.json").write_text('{"id": "x", "comm')
    with open_trace(run) as trace:
        assert "run.json cannot be read" in str(trace.damage)


def test_rows_of_a_site_whose_fact_is_lost_still_count(run: Path) -> None:
    (run / "rank-00000" / "facts-000000.ndt").unlink()
    with open_trace(run) as trace:
        assert trace.at(0).layers[0] == "site 1"
        assert trace.heatmap("l2", "gradient").layers == ["site 1", "site 2", "site 3"]
        assert not trace.ended


CHILD = """
import sys, time
import numpy as np
from neuraldbg.trace import TraceWriter
from neuraldbg.trace.tables import STATS
assert "torch" not in sys.modules
with TraceWriter(sys.argv[1], flush_interval_s=0.02) as writer:
    rows = np.zeros(50, STATS)
    for step in range(200):
        rows["step"] = step
        rows["seq"] = np.arange(50 * step, 50 * step + 50)
        writer.append("stats", rows)
        time.sleep(0.002)
    writer.fact("end", exit_code=0, error=None, duration_s=1.0, steps=200)
"""


def test_another_process_is_followed_to_its_end(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    trace = open_trace(run)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(run)])
    seen: list[int] = []
    facts: list[str] = []
    rounds = 0
    for news in trace.follow(interval_s=0.01, until=lambda: child.poll() is not None):
        rounds += 1
        facts += [fact["type"] for fact in news.facts]
        if "stats" in news.tables:
            seen += news.tables["stats"].seq.tolist()
    assert child.wait() == 0
    assert seen == list(range(10_000))
    assert facts == ["end"]
    assert rounds > 1
    assert list(trace.follow()) == []
    (everything,) = trace.follow(from_start=True)
    assert len(everything.tables["stats"]) == 10_000
    trace.close()
