"""The debugger's memory and disk do not grow with the number of steps."""

from __future__ import annotations

import sys
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


FAULTS = """
import resource, torch
from torch import nn
torch.set_num_threads(1)
parts = [part for _ in range(19) for part in (nn.Linear(256, 256), nn.ReLU())]
model = nn.Sequential(*parts, nn.Linear(256, 10))
x, y = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(80):
    if step == 20:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    rows = slice(step % 64 * 64, (step % 64 + 1) * 64)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts page faults of threads")
def test_gradients_have_the_places_on_the_heap_that_they_had_without_us(
    torch_server: ForkServer, tmp_path: Path
) -> None:
    """Where what we keep lay among them, their 5 MB were given back and asked for again at each step: 1,200 pages."""
    (tmp_path / "train.py").write_text(FAULTS, encoding="utf-8")
    result = torch_server.neural("debug", "--headless", "--out", "run", "train.py", cwd=tmp_path, timeout=120)
    assert result.code == 0, result.stderr
    assert int(result.stdout) < 60 * 100
