"""The heatmap kept in memory is the heatmap of the files, also while the run grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import made_run, train

from neuraldbg.records import Kind
from neuraldbg.surfaces.web import data, grid
from neuraldbg.surfaces.web.grid import Grids
from neuraldbg.trace import Trace, open_trace

STEPS = st.one_of(st.none(), st.integers(0, 60))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    with made_run(tmp_path_factory.mktemp("grid") / "run") as run:
        train(run, nan_from=33)
        late = run.module("late", "Linear", 0)
        run.stats(late, Kind.ACTIVATION, 41, mean=-np.inf)
        run.end(steps=50)
    return open_trace(run.directory)


def same(trace: Trace, grids: Grids, metric: str, between: tuple[int | None, int | None], width: int) -> None:
    kept = grids.of(trace, data.metric_of(metric))
    assert kept is not None
    found, read = kept.heatmap(trace, metric, between, width), data.heatmap(trace, metric, between, width)
    assert found.layers == read.layers
    assert found.edges.tolist() == read.edges.tolist()
    assert np.array_equal(found.nan, read.nan)
    assert np.allclose(found.values, read.values, equal_nan=True)


@given(
    first=STEPS,
    last=STEPS,
    width=st.integers(1, 80),
    metric=st.sampled_from(["mean_activation", "grad_norm", "dead_ratio"]),
)
def test_any_part_of_it_is_as_the_files_say(
    broken: Trace, first: int | None, last: int | None, width: int, metric: str
) -> None:
    same(broken, Grids(), metric, (first, last), width)


def test_it_grows_with_the_run_and_takes_late_rows_of_recent_steps(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        sites = [run.module(f"fc{n}", "Linear", run.model()) for n in range(3)]
        grids, trace = Grids(), None
        for step in range(700):
            run.stats(sites[step % 2], Kind.ACTIVATION, step, mean=float(step % 7))
            if step % 50 == 49:
                run.stats(sites[2], Kind.ACTIVATION, step - 20, mean=99.0, nan_count=1)
                run.writer.flush()
                trace = trace or open_trace(run.directory)
                trace.refresh()
                same(trace, grids, "mean_activation", (None, None), 40)


def test_what_does_not_fit_is_answered_from_the_files(broken: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOST_CELLS", 100)
    assert Grids().of(broken, data.metric_of("mean_activation")) is None
    assert Grids().of(broken, data.metric_of("execution_time")) is None


def test_only_the_metrics_that_are_looked_at_are_kept(broken: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOST_CELLS", 400)
    grids = Grids()
    for metric in ("mean_activation", "std_activation", "min_activation"):
        assert grids.of(broken, data.metric_of(metric)) is not None
    assert len(grids._grids) == 1
