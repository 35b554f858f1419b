from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import made_run, train


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory with two finished runs, `good` and, newer, `broken`."""
    for name, nan_from in (("good", None), ("broken", 33)):
        with made_run(tmp_path / "neuraldbg_runs" / name) as run:
            train(run, nan_from=nan_from)
            run.end(steps=50)
    return tmp_path
