"""One layer can be looked at in any recorded step."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import made_run, train

from neuraldbg.analysis.layer_views import view_layer
from neuraldbg.errors import NotRecorded, UnknownLayer
from neuraldbg.trace import open_trace


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with made_run(tmp_path / "run") as run:
        train(run, steps=10, nan_from=6)
        run.end(steps=10)
    return run.directory


def test_a_layer_by_its_alias_with_its_parameters(run_dir: Path) -> None:
    with open_trace(run_dir) as trace:
        found = view_layer(trace, "Dense_1")
    assert (found.path, found.first_step, found.last_step) == ("fc", 0, 9)
    assert [(view.tensor, view.kind, view.step) for view in found.views] == [
        ("output", "activation", 9),
        ("weight", "gradient", 9),
        ("weight", "parameter", 9),
        ("weight", "update", 9),
    ]
    assert found.views[0].first_bad_step == 6


def test_a_past_step_and_one_kind(run_dir: Path) -> None:
    with open_trace(run_dir) as trace:
        found = view_layer(trace, "fc", step=3, kind="activation")
    (view,) = found.views
    assert (view.step, view.stats.nan_count, len(view.steps)) == (3, 0, 10)


def test_what_was_not_recorded_is_said(run_dir: Path) -> None:
    with open_trace(run_dir) as trace:
        with pytest.raises(NotRecorded, match="nothing of kind 'target' was recorded of fc"):
            view_layer(trace, "fc", kind="target")
        with pytest.raises(UnknownLayer, match="did you mean 'conv1'"):
            view_layer(trace, "covn1")
