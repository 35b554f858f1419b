"""Losses of two runs over the epochs of their data and over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_runs import MadeRun, made_run

from neuraldbg import Trace, open_trace
from neuraldbg.analysis.alignment import aligned, epochs, positions
from neuraldbg.records import Call, SiteKind

SECOND = 10**9


def trained(folder: Path, *, steps: int, batches: int | None, seconds: float = 1.0) -> Trace:
    """A run with so many batches in an epoch (None: without a loader), a step every so many seconds."""
    with made_run(folder) as run:
        loader = _loader(run, batches) if batches else None
        loss = run.site("loss", SiteKind.SERIES)
        for step in range(steps):
            if loader is not None:
                run.call(Call.BATCH, step, loader)
            run._row("scalars", step, loss, value=100.0 - step, wall_ns=int((5 + step * seconds) * SECOND))
        run.end(steps=steps)
    return open_trace(folder)


def _loader(run: MadeRun, batches: int) -> int:
    site = run.site("loader", SiteKind.LOADER)
    run.writer.fact("loader", site=site, name="loader", length=batches * 4, batch_size=4)
    return site


def test_an_epoch_of_one_run_lies_on_the_same_epoch_of_the_other(tmp_path: Path) -> None:
    with trained(tmp_path / "a", steps=20, batches=10) as a, trained(tmp_path / "b", steps=10, batches=5) as b:
        found = aligned(a, b, "epoch")
    assert found.unknown is None
    places = np.array([place for place, _, _ in found.loss])
    at = int(np.argmin(abs(places - 1.0)))
    assert found.loss[at][0] == pytest.approx(1.0, abs=0.01)
    assert found.steps[at] in (9, 10)
    assert found.loss[at][1] == 100.0 - found.steps[at]
    assert found.loss[at][2] in (95.0, 96.0)


def test_over_time_each_run_has_its_last_loss_until_then_and_none_after_its_end(tmp_path: Path) -> None:
    with trained(tmp_path / "a", steps=11, batches=None, seconds=1) as a:
        with trained(tmp_path / "b", steps=11, batches=None, seconds=0.5) as b:
            found = aligned(a, b, "time")
    assert (found.loss[0], found.loss[-1]) == ((0.0, 100.0, 100.0), (10.0, 90.0, None))
    middle = found.loss[100]  # 2.506 s
    assert (middle[1], middle[2], found.steps[100]) == (98.0, 95.0, 2)


def test_the_measured_length_of_an_epoch_counts_more_than_the_one_said(tmp_path: Path) -> None:
    with trained(tmp_path / "a", steps=6, batches=6) as trace:
        assert epochs(trace, np.array([0, 3])).tolist() == [0.0, 0.5]  # type: ignore[union-attr]
    with made_run(tmp_path / "b") as run:
        loader = _loader(run, 6)
        run.writer.fact("loader_rows", site=loader, iterators=2, epoch_batches=3)
        for step in range(6):
            run.call(Call.BATCH, step, loader)
    with open_trace(tmp_path / "b") as trace:
        assert epochs(trace, np.array([0, 3])).tolist() == [0.0, 1.0]  # type: ignore[union-attr]


def test_what_a_run_does_not_tell_is_not_known(tmp_path: Path) -> None:
    with trained(tmp_path / "a", steps=3, batches=3) as a, trained(tmp_path / "b", steps=3, batches=None) as b:
        assert aligned(a, b, "epoch").unknown == "run B used no DataLoader whose length is known"
        assert positions(b, "epoch") is None
    with made_run(tmp_path / "c") as run:
        run.end(steps=0)
    with open_trace(tmp_path / "c") as empty:
        assert aligned(empty, empty, "time").unknown == "run A has no loss with a time"
