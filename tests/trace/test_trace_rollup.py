"""Roll-ups: the same answers as the rows themselves give, from files that may be torn, late or missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from trace_making import calls, describe_net, new_run, scalars

from neuraldbg.errors import UnknownLayer, UnknownName
from neuraldbg.records import Call, Kind
from neuraldbg.trace import Trace, TraceWriter, open_trace, pieces, rollup_files
from neuraldbg.trace.rolling import LEVELS
from neuraldbg.trace.rollup import heatmap, series
from neuraldbg.trace.tables import KIND_CODE, STATS


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Roll-ups of a few rows, always used: what a long run has, in little time."""
    monkeypatch.setattr(rollup_files, "LEAST_ROWS", 4)
    monkeypatch.setattr(rollup_files, "MOST_ROWS", 64)
    monkeypatch.setattr(rollup_files, "FAN", 2)
    monkeypatch.setattr(pieces, "MOST_ROWS", 0)
    monkeypatch.setattr(pieces, "MOST_ROWS_OF_ONE_LAYER", 0)
    return


def rows_of(steps: NDArray[np.int64], values: NDArray[np.float64], sites: NDArray[np.int64]) -> NDArray[np.void]:
    rows = np.zeros(len(steps), STATS)
    rows["step"], rows["l2"], rows["site"] = steps, values, sites
    rows["seq"] = np.arange(len(steps))
    rows["kind"] = np.where(np.arange(len(steps)) % 3 == 0, KIND_CODE[Kind.ACTIVATION], KIND_CODE[Kind.GRADIENT])
    rows["count"] = 10
    return rows


def write(run: Path, *blocks: NDArray[np.void]) -> None:
    with TraceWriter(run, threaded=False) as writer:
        describe_net(writer)
        writer.append("calls", calls([0], Call.STEP))
        for block in blocks:
            writer.append("stats", block)
            writer.flush()


def long_run(folder: Path, *, steps: int = 3_000, name: str = "run") -> tuple[Path, NDArray[np.void]]:
    rng = np.random.default_rng(1)
    numbers = np.repeat(np.arange(steps), 2)
    rows = rows_of(numbers, rng.normal(size=len(numbers)), np.tile([1, 2], steps))
    rows["l2"][rng.integers(0, len(rows), 20)] = np.nan
    run = new_run(folder, name)
    write(run, *np.array_split(rows, 7))
    return run, rows


def agrees(trace: Trace, rows: NDArray[np.void], between: tuple[int | None, int | None], width: int) -> None:
    """The heatmap and the series of a layer are what the rows give in the same columns."""
    mine = rows[rows["kind"] == KIND_CODE[Kind.GRADIENT]]
    found = heatmap(trace, "l2", "gradient", width, between)
    assert len(found.edges) <= width + 1
    for row, site in enumerate(found.sites):
        of_site = mine[mine["site"] == site.id]
        for column, inside in enumerate(in_columns(of_site, found.edges)):
            np.testing.assert_equal(found.values[row, column], largest(inside["l2"]))
            assert found.nan[row, column] == bool(np.isnan(inside["l2"]).any() or (inside["nan_count"] > 0).any())
            plus = (inside["l2"] == np.inf).any() or (inside["inf_count"] > 0).any()
            assert found.inf[row, column] == (1 if plus else -1 if (inside["l2"] == -np.inf).any() else 0)
    curve = series(trace, "grad_norm", "0", between, width)
    of_layer = mine[mine["site"] == 1]
    filled = [each["l2"] for each in in_columns(of_layer, curve.edges)] if len(curve.edges) else []
    for at, values in enumerate(values for values in filled if len(values)):
        known = values[~np.isnan(values)]
        np.testing.assert_equal((curve.low[at], curve.high[at]), (-largest(-values), largest(values)))
        assert (curve.count[at], curve.nan[at]) == (len(known), len(values) - len(known))
        if len(known) and np.isfinite(known).all():
            assert curve.mean[at] == pytest.approx(known.mean(), rel=1e-9, abs=1e-9 * np.abs(known).max())
    low, high = between
    wanted = (mine["step"] >= (low or 0)) & (mine["step"] <= (10**9 if high is None else high))
    assert found.edges.size == 0 or set(mine["site"][wanted]) == {site.id for site in found.sites}
    assert int(curve.count.sum() + curve.nan.sum()) == int((wanted & (mine["site"] == 1)).sum())


def in_columns(rows: NDArray[np.void], edges: NDArray[np.int64]) -> list[NDArray[np.void]]:
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return [rows[(rows["step"] >= low) & (rows["step"] < high)] for low, high in pairs]


def largest(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else float("nan")


@settings(max_examples=60)
@given(data=st.data())
def test_roll_ups_equal_what_the_rows_give(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 300))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    last = data.draw(st.sampled_from([10, 100, 2_000, 40_000]))
    steps = np.sort(rng.integers(0, last + 1, count))
    late = rng.random(count) < 0.1
    steps[late] = np.maximum(steps[late] - rng.integers(0, 200), 0)  # numbers of a device arrive later than others
    odd = [np.nan, np.inf, -np.inf, 0.0, 1e300]
    values = np.where(rng.random(count) < 0.1, rng.choice(odd, count), rng.normal(size=count))
    rows = rows_of(steps, values, rng.integers(1, 3, count))
    rows["nan_count"] = rng.random(count) < 0.05
    rows["inf_count"] = rng.random(count) < 0.05
    run = new_run(tmp_path_factory.mktemp("any"))
    parts = data.draw(st.integers(1, 5))
    with TraceWriter(run, threaded=False) as writer:
        describe_net(writer)
        writer.append("calls", calls([0], Call.STEP))
        with open_trace(run) as trace:
            for part in np.array_split(rows, parts):
                writer.append("stats", part)
                writer.flush()
                trace.refresh()
                trace.rollups.update()
            low = data.draw(st.none() | st.integers(0, last))
            high = data.draw(st.none() | st.integers(low or 0, last + 10))
            agrees(trace, rows, (low, high), data.draw(st.integers(1, 30)))
            agrees(trace, rows, (None, None), data.draw(st.sampled_from([1, 3, 1000])))


@pytest.mark.parametrize("width", [1, 2, 7, 1000])
@pytest.mark.parametrize("between", [(None, None), (100, 2_900), (64, 127), (1_023, 1_025), (0, 10**6)])
def test_every_level_is_used_and_none_lies(tmp_path: Path, between: tuple[int | None, int | None], width: int) -> None:
    run, rows = long_run(tmp_path, steps=3_000)
    with open_trace(run) as trace:
        assert trace.rollups.update() > 5_000
        files = trace.rollups._files[0]
        assert len(files.of("stats", LEVELS[0])) > len(files.of("stats", LEVELS[1])) > 0
        agrees(trace, rows, between, width)


def test_a_roll_up_is_found_again_by_the_next_who_opens_the_run(tmp_path: Path) -> None:
    run, rows = long_run(tmp_path)
    with open_trace(run) as trace:
        first = trace.rollups.update()
        assert trace.rollups.update() == 0
    with open_trace(run) as again:
        assert again.rollups.update() == 0
        assert first > 5_000
        agrees(again, rows, (None, None), 20)
    assert [path.name for path in run.rglob("rollup-*")] == ["rollup-000000.ndt"]


@pytest.mark.parametrize("damage", ["cut", "wrong", "no header", "other file"])
def test_a_torn_roll_up_is_ignored_and_made_again(tmp_path: Path, damage: str) -> None:
    run, rows = long_run(tmp_path)
    with open_trace(run) as trace:
        whole = trace.rollups.update()
    file = next(run.rglob("rollup-*"))
    content = bytearray(file.read_bytes())
    if damage == "wrong":
        content[len(content) // 3] ^= 0xFF
    kept = {"cut": content[: len(content) // 3], "no header": content[:30], "other file": b"hello" * 100}
    file.write_bytes(kept.get(damage, content))
    with open_trace(run) as trace:
        agrees(trace, rows, (None, None), 20)
        assert trace.damage is None  # the run itself is sound
        made_again = trace.rollups.update()
        assert 0 < made_again <= whole
        agrees(trace, rows, (100, 2_000), 20)
    with open_trace(run) as trace:
        assert trace.rollups.update() == 0
        agrees(trace, rows, (None, None), 5)


def test_a_live_run_goes_on_where_its_roll_up_ends(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    rows = rows_of(np.arange(2_000), np.arange(2_000.0), np.full(2_000, 1))
    with TraceWriter(run, threaded=False) as writer, open_trace(run) as trace:
        describe_net(writer)
        writer.append("calls", calls([0], Call.STEP))
        for begin in range(0, 2_000, 130):
            writer.append("stats", rows[begin : begin + 130])
            writer.flush()
            trace.refresh()
            trace.rollups.update()
            agrees(trace, rows[: begin + 130], (None, None), 10)
    assert [path.name for path in run.rglob("rollup-*")] == ["rollup-000000.ndt"]


def test_two_viewers_of_a_run_do_not_count_anything_twice(tmp_path: Path) -> None:
    run, rows = long_run(tmp_path)
    with open_trace(run) as one, open_trace(run) as other:
        assert one.rollups.update() > 0
        assert other.rollups.update() == 0
        agrees(one, rows, (None, None), 20)
        agrees(other, rows, (None, None), 20)


def test_what_was_rolled_up_outlives_its_rows(tmp_path: Path) -> None:
    run, rows = long_run(tmp_path)
    with open_trace(run) as trace:
        trace.rollups.update()
        before = heatmap(trace, "l2", "gradient", 1000)
    for segment in run.rglob("segment-*"):
        segment.unlink()
    with open_trace(run) as trace:
        after = heatmap(trace, "l2", "gradient", 1000)
    kept = after.values.shape[1]
    np.testing.assert_array_equal(after.values[:, : kept - 1], before.values[:, : kept - 1])
    assert len(rows) > 5_000
    assert kept > 40


def test_a_folder_that_cannot_be_written_is_served_from_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, rows = long_run(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rollup_files.GrowingFile, "write", full)
    with open_trace(run) as trace:
        assert trace.rollups.update() == 0
        agrees(trace, rows, (None, None), 20)


def test_a_short_run_gets_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    run, _ = long_run(tmp_path, steps=200)
    with open_trace(run) as trace:
        assert trace.rollups.update() == 0
        assert heatmap(trace, "l2", "gradient").values.shape == (2, 200)
        np.testing.assert_array_equal(
            heatmap(trace, "l2", "gradient", 50).values, trace.heatmap("l2", "gradient", 50).values
        )
    assert list(run.rglob("rollup*")) == []


def test_a_run_without_updates_is_answered_from_its_rows(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    rows = rows_of(np.zeros(400, np.int64), np.arange(400.0), np.full(400, 1))
    with TraceWriter(run, threaded=False) as writer:
        describe_net(writer)
        writer.append("stats", rows)
        writer.append("calls", calls(list(range(0, 400, 4)), Call.BACKWARD))
    with open_trace(run) as trace:
        assert trace.rollups.update() == 0
        assert series(trace, "gradient.l2", "0", points=10).count.sum() == 266
        assert heatmap(trace, "l2", "gradient", 10).edges.tolist()[-1] == 101


def test_the_series_of_a_run_and_their_units(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with TraceWriter(run, threaded=False) as writer:
        describe_net(writer)
        writer.append("calls", calls([0], Call.STEP))
        writer.append("scalars", scalars(4, [float(n) for n in range(500)]))
    with open_trace(run) as trace:
        trace.rollups.update()
        loss = series(trace, "loss", points=4)
        assert loss.high.max() == 499
        assert loss.count.sum() == 500
        assert loss.mean @ loss.count == pytest.approx(sum(range(500)))


def test_unknown_names_answer_with_the_nearest(tmp_path: Path) -> None:
    run, _ = long_run(tmp_path, steps=70)
    with open_trace(run) as trace:
        with pytest.raises(UnknownName, match="grad_norm"):
            series(trace, "grad_nrm", "0")
        with pytest.raises(UnknownName, match="loss"):
            series(trace, "losss")
        with pytest.raises(UnknownName, match="l2"):
            heatmap(trace, "l3", "gradient")
        with pytest.raises(UnknownLayer):
            series(trace, "grad_norm", "nowhere")
