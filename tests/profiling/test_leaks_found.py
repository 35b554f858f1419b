"""Leaks that are there are found with their line; programs that are well have none."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import made_run

from neuraldbg.analysis.leaks import leak_in, trend
from neuraldbg.analysis.leaks import leaks as leaks_in
from neuraldbg.trace import open_trace

pytest.importorskip("torch")

LEAKS = {
    "list of graphs": (
        "history.append(loss)",
        """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.Adam(model.parameters())
history = []
for step in range(120):
    loss = model(torch.randn(256, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    history.append(loss)
""",
    ),
    "cache of batches": (
        "self.cache[step] = x",
        """
import torch
from torch import nn
class Trainer:
    def __init__(self):
        self.model = nn.Linear(64, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.cache = {}
    def fit(self):
        for step in range(150):
            x = torch.randn(512, 64)
            self.optimizer.zero_grad()
            self.model(x).square().mean().backward()
            self.optimizer.step()
            self.cache[step] = x
Trainer().fit()
""",
    ),
    "data set that remembers, in no variable": (
        "self.memo[i] = torch.randn(4096)",
        """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __init__(self):
        self.memo = {}
    def __len__(self):
        return 1200
    def __getitem__(self, i):
        self.memo[i] = torch.randn(4096)
        return self.memo[i]
def main():
    model = nn.Linear(4096, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for x in DataLoader(Rows(), batch_size=8):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
main()
""",
    ),
}
HEALTHY = Path(__file__).parents[2] / "benchmarks" / "faults" / "healthy"


def profiled(server: Any, folder: Path, script: str | Path, *words: str) -> dict[str, Any]:
    done = server.neural(
        "profile", "--json", "--out", str(folder / "run"), *words, str(script), cwd=folder, timeout=240
    )
    assert done.code == 0, done.stderr
    text = done.stdout
    told: dict[str, Any] = json.loads(text[text.index('{\n "schema"') :])
    return told


@pytest.fixture(scope="module")
def leak_of(torch_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """The leak that is told of a program, which is run once."""

    @cache
    def told(name: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("leaking")
        (folder / "train.py").write_text(LEAKS[name][1])
        (leak,) = profiled(torch_server, folder, folder / "train.py")["leaks"]
        return dict(leak)

    return told


@pytest.mark.parametrize("name", list(LEAKS))
def test_a_planted_leak_is_found_with_its_line(name: str, leak_of: Callable[[str], dict[str, Any]]) -> None:
    line, text = LEAKS[name]
    number = next(at for at, each in enumerate(text.splitlines(), start=1) if line in each)
    leak = leak_of(name)
    assert leak["source"] == f"train.py:{number}"
    assert leak["holder"].rpartition(".")[2] in line
    assert leak["confidence"] > 0.99
    assert leak["keeps"] > 50
    assert f"`{leak['holder']}` in train.py:{number} keeps" in leak["summary"]


def test_growth_is_told_as_it_is(leak_of: Callable[[str], dict[str, Any]]) -> None:
    leak = leak_of("cache of batches")
    batch = 512 * 64 * 4
    assert leak["bytes_per_step"] == pytest.approx(batch, rel=0.1)
    assert leak["growth_bytes"] == pytest.approx(batch * leak["steps"], rel=0.15)


QUICK = (
    "accumulate_tokens best_state checkpointed conv_batch8 curriculum distillation ema_bn experts frozen_backbone "
    "gan_ring graph_nodes info_nce lbfgs_fit manual_sgd noisy_clicks one_cycle ratings sigmoid_xor tbptt triplet"
).split()


@pytest.mark.parametrize("name", QUICK)
def test_a_healthy_program_leaks_nothing(name: str, tmp_path: Path, torch_server: Any) -> None:
    assert profiled(torch_server, tmp_path, HEALTHY / f"{name}.py")["leaks"] == []


@pytest.mark.parametrize(
    ("name", "level", "leaks"),
    [
        ("a straight line", lambda n: 1e6 * n, True),
        ("a line under noise", lambda n: 2e6 * n + 5e6 * np.sin(37 * n), True),
        ("a level", lambda n: 1e8, False),
        ("noise", lambda n: 1e8 + 3e7 * np.sin(37.7 * n * n), False),
        ("a saw", lambda n: 1e8 + 1e6 * (n % 20), False),
        ("a step", lambda n: 1e8 + 5e7 * (n > 40), False),
        ("a few kilobytes", lambda n: 1e8 + 1e3 * n, False),
    ],
)
def test_only_what_rises_all_the_way_is_a_leak(name: str, level: Any, leaks: bool) -> None:
    steps = list(range(120))
    values = [float(level(n)) for n in steps]
    assert (leak_in(steps, values) is not None) is leaks, (name, trend(steps, values))


def test_a_leak_that_begins_where_memory_is_seldom_looked_at_is_one() -> None:
    steps = [*range(256), *range(256, 4000, 16)]
    growing = [1e8 + 5e4 * max(n - 300, 0) for n in steps]
    found = leak_in(steps, growing)
    assert found is not None
    assert found.growth == pytest.approx(5e4 * 3700, rel=0.12)
    assert leak_in(steps, [1e8 + 5e5 * min(n, 300) for n in steps]) is None  # filled up long ago


def test_a_container_that_is_too_small_for_the_growth_is_not_blamed(tmp_path: Path) -> None:
    small, large = ({"name": name, "kind": "list", "keeps": 9_000, "what": "objects"} for name in ("losses", "cache"))
    small |= {"grew_by": 300_000, "source": "train.py:3"}
    large |= {"grew_by": 40_000_000, "source": "train.py:4"}
    for holders, holder in (([small], None), ([small, large], "cache")):
        folder = tmp_path / str(holder)
        with made_run(folder) as run:
            for step in range(120):
                run.scalar("host_allocated_bytes", step, 1e8 + 1e6 * step)
            run.writer.fact("values_kept", holders=holders)
        with open_trace(folder) as trace:
            (leak,) = leaks_in(trace)
        assert leak.holder == holder
        assert ("was not found" in leak.summary) is (holder is None)


def test_growth_over_windows_is_the_growth() -> None:
    steps = list(range(240))
    found = trend(steps, [3e8 + 78e6 * n / 239 for n in steps])
    assert found is not None
    assert found.growth == pytest.approx(78e6, rel=0.1)
    assert found.per_step == pytest.approx(78e6 / 239, rel=0.01)
    assert trend([1, 2], [1.0, 2.0]) is None
