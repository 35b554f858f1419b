"""The debugger's memory and disk do not grow with the number of steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from forkserver import ForkServer
from programs.truth import FOLDER

from neuraldbg import open_trace

STEPS = 100_000
MB = 1_000_000


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_hundred_thousand_steps_take_no_more_memory_than_ten_thousand(
    torch_server: ForkServer, tmp_path: Path
) -> None:
    program = str(FOLDER / "bad" / "many_steps.py")
    options = ["--headless", "--max-disk", "20MB", "--out", "run"]
    result = torch_server.neural("debug", *options, program, "--steps", str(STEPS), cwd=tmp_path, timeout=600)
    assert result.code == 0, result.stderr
    resident = {int(step): int(size) for _, step, size in map(str.split, result.stdout.splitlines())}
    assert resident[STEPS] - resident[STEPS // 10] < 20 * MB
    taken = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert 0 < taken <= 20 * MB
    with open_trace(tmp_path / "run") as trace:
        assert trace.ended
        assert int(trace.steps.max()) == STEPS - 1, "the end is still there, whatever had to go"
