"""Runs that lie elsewhere, seen from here: what goes on is not called dead, and what is too large is seen in part."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import neural
from made_runs import MadeRun, made_run, train
from recorded import rows_and_facts

sys.path.append(str(Path(__file__).parents[1] / "surfaces"))
from servers import asking

from neuraldbg.records import SiteKind
from neuraldbg.store import choosing, parts
from neuraldbg.store.cache import RunCache
from neuraldbg.store.exporting import export_run
from neuraldbg.store.manifest import open_dataset
from neuraldbg.store.places import open_place
from neuraldbg.store.shipping import Shipper
from neuraldbg.trace import open_trace
from neuraldbg.trace.tables import TABLES


def state_of(run: Path) -> dict[str, Any]:
    with asking(run) as client:
        told: dict[str, Any] = client.get("/api/state").json()
    return told


def silent_for(place: Path, seconds: float) -> None:
    """As if its last sign of life were so old."""
    manifest = place / "rank-00000" / "manifest.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "written_s": time.time() - seconds}))


def test_a_run_that_goes_on_elsewhere_is_running_until_nothing_is_heard_of_it(tmp_path: Path) -> None:
    cache = RunCache(tmp_path / "cache", 10**9)
    with made_run(tmp_path / "run", pid=1) as run:
        shipper = Shipper(run.directory, str(tmp_path / "there"), every_s=1)
        shipper.begin()
        train(run, steps=5)
        run.writer.flush()
        shipper.tend()
        seen = state_of(cache.fetch(tmp_path / "there").path)
        assert (seen["state"], seen["attached"], seen["step"]) == ("running", False, 4)
        assert abs(seen["heard_s"] - time.time()) < 60
        silent_for(tmp_path / "there", 300)
        fetched = cache.fetch(tmp_path / "there")
        assert state_of(fetched.path)["state"] == "unresponsive"
        (note,) = fetched.notes
        assert note.startswith("it has not ended there; its last sign of life came 30")
        run.end(steps=5)
    assert shipper.finish(seconds=30)
    ended = cache.fetch(tmp_path / "there")
    assert ended.notes == ()
    assert state_of(ended.path) == {"state": "finished", "attached": False, "step": 4}


def test_a_report_of_a_run_that_goes_on_elsewhere_says_so(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        shipper = Shipper(run.directory, str(tmp_path / "there"), every_s=1)
        train(run, steps=5)
        run.writer.flush()
        shipper.tend()
    result = neural("report", "there", cwd=tmp_path, NEURALDBG_CACHE_DIR=str(tmp_path / "cache"))
    assert "it has not ended there; its last sign of life came" in result.stderr
    assert "still running" in result.stdout
    assert "killed" not in result.stdout + result.stderr


def test_a_rank_that_has_nothing_to_ship_still_gives_a_sign_of_life(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        shipper = Shipper(run.directory, str(tmp_path / "there"), every_s=0)
        train(run, steps=2)
        run.writer.flush()
        shipper.tend()
        silent_for(tmp_path / "there", 300)
        shipper.tend()
        heard = open_dataset(open_place(tmp_path / "there")).heard_s
    assert heard is not None
    assert time.time() - heard[0] < 60


# -- more than the cache holds -----------------------------------------------------------------------------------------


def add_steps(run: MadeRun, first: int, end: int, rows_a_step: int = 2_000) -> None:
    for step in range(first, end):
        rows = np.zeros(rows_a_step, TABLES["stats"])
        rows["step"], rows["seq"] = step, step * rows_a_step + np.arange(rows_a_step)
        run.writer.append("stats", rows)
        run.writer.flush()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 1_000_000)


def disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_of_a_run_beyond_the_limit_some_older_steps_are_fetched_too(tmp_path: Path, small_parts: None) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=3)
        add_steps(run, 0, 40)
    export_run(run.directory, open_place(tmp_path / "data"))
    fetched = RunCache(tmp_path / "cache", 3_000_000).fetch(tmp_path / "data")
    assert disk(tmp_path / "cache") < 3_000_000
    (note,) = fetched.notes
    with open_trace(fetched.path) as trace:
        rows = trace.table("stats", ("step", "seq"))
        assert trace.damage is None
    steps = np.unique(rows["step"])
    newest = int(steps[np.flatnonzero(np.diff(steps) > 1)[-1] + 1])
    apart = int(np.diff(steps)[0])
    assert steps.max() == 39
    assert steps.min() == 0
    assert apart > 1
    assert set(steps[steps < newest] % apart) == {0}
    assert f"of older steps only every {apart}th was fetched" in note
    whole = rows_and_facts(run.directory)["stats"]
    kept = np.isin(np.frombuffer(whole["step"], np.int64), steps)
    recorded = np.frombuffer(whole["seq"], np.int64)[kept]
    assert set(rows["seq"].tolist()) <= set(recorded.tolist())


def test_without_duckdb_the_newest_steps_are_fetched_and_the_extra_is_named(
    tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "is_installed", lambda _: False)
    with made_run(tmp_path / "run") as run:
        train(run, steps=3)
        add_steps(run, 0, 40)
    export_run(run.directory, open_place(tmp_path / "data"))
    fetched = RunCache(tmp_path / "cache", 3_000_000).fetch(tmp_path / "data")
    (note,) = fetched.notes
    with open_trace(fetched.path) as trace, open_trace(run.directory) as whole:
        steps = trace.table("stats", ("step",))["step"]
        left_out = len(whole.table("stats", ("step",))["step"]) - len(steps)
        assert trace.damage is None
        assert len(trace.table("scalars")["step"]) == len(whole.table("scalars")["step"])
    assert steps.max() == 39
    assert f"{left_out:,} rows of older steps were not fetched" in note
    assert "neural-debugger[duckdb]" in note


def test_the_limit_holds_for_long_series_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 100_000)
    with made_run(tmp_path / "run") as run:
        train(run, steps=3)
        series = np.zeros(2_000, TABLES["scalars"])
        for first in range(0, 40_000, 2_000):
            series["step"], series["site"] = np.arange(first, first + 2_000), run.site("loss", SiteKind.SERIES)
            run.writer.append("scalars", series)
            run.writer.flush()
    export_run(run.directory, open_place(tmp_path / "data"))
    assert disk(run.directory) > 1_500_000
    fetched = RunCache(tmp_path / "cache", 500_000).fetch(tmp_path / "data")
    assert disk(tmp_path / "cache") < 500_000
    assert len(fetched.notes) >= 1
    with open_trace(fetched.path) as trace:
        assert trace.damage is None
        assert trace.last_step == 39_999


def test_a_run_that_grows_beyond_the_limit_is_not_fetched_anew_each_time(tmp_path: Path, small_parts: None) -> None:
    cache, anew = RunCache(tmp_path / "cache", 4_000_000), 0
    kept: set[str] = set()
    with made_run(tmp_path / "run") as run:
        shipper = Shipper(run.directory, str(tmp_path / "there"), every_s=0)
        train(run, steps=3)
        for step in range(0, 60, 2):
            add_steps(run, step, step + 2)
            shipper.tend()
            path = cache.fetch(tmp_path / "there").path
            now = {f"{file.name} {file.stat().st_ino}" for file in path.rglob("segment-*.ndt")}
            anew += not kept <= now
            kept = now
            assert disk(tmp_path / "cache") < 4_500_000
    with open_trace(path) as trace:
        assert trace.last_step == 59
        assert trace.damage is None
    assert 1 <= anew <= 12, "now and then, not at each of thirty looks"
