"""The debugger's memory and disk do not grow with the number of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forkserver import ForkServer
from programs.truth import FOLDER

from neuraldbg import open_trace

pytestmark = pytest.mark.slow
STEPS = 100_000
MB = 1_000_000


@pytest.fixture(scope="module")
def long_run(torch_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("long")
    program = str(FOLDER / "bad" / "many_steps.py")
    options = ["--headless", "--max-disk", "20MB", "--out", str(folder / "run")]
    result = torch_server.neural("debug", *options, program, "--steps", str(STEPS), cwd=folder, timeout=280)
    assert result.code == 0, result.stderr
    return result, folder / "run"


def test_the_trainer_is_no_larger_after_100_000_steps_than_after_10_000(long_run: Any) -> None:
    result, _ = long_run
    at = {int(step): int(size) for _, step, size in map(str.split, result.stdout.splitlines())}
    assert at[STEPS] - at[STEPS // 10] < 20 * MB


def test_the_trace_stays_within_the_disk_it_may_take(long_run: Any) -> None:
    _, run = long_run
    taken = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    assert 0 < taken <= 20 * MB


def test_the_end_of_the_run_is_still_there(long_run: Any) -> None:
    _, run = long_run
    with open_trace(Path(run)) as trace:
        assert trace.ended
        assert int(trace.steps.max()) == STEPS - 1
