from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import made_run, train, two_runs


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of five steps that has not ended."""
    with made_run(tmp_path / "run") as run:
        train(run, steps=5)
    return run.directory


@pytest.fixture
def live(run_dir: Path) -> Iterator[Any]:
    """A training that can be stopped, and the door of its server."""
    from servers import serving, training

    with training(run_dir) as trained, serving(run_dir) as door:
        yield trained, door


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory with two finished runs, `good` and, newer, `broken`."""
    return two_runs(tmp_path)
