"""Workers of a loader that begin with the same random numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from forkserver import ForkServer
from simulated import SimulatedRank, a_run_of_ranks, judged

from neuraldbg import open_trace
from neuraldbg.records import Finding, Severity, SiteKind

SCRIPT = """
import random, sys
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        return torch.full((4,), index / 64) + torch.from_numpy(np.random.rand(4).astype(np.float32))

def the_same(worker): np.random.seed(7)
def their_own(worker): np.random.seed(torch.initial_seed() % 2**32)

torch.manual_seed(0)
torch.set_num_threads(1)
init = {"alike": the_same, "apart": their_own, "default": None}[sys.argv[1]]
loader = DataLoader(Noisy(), batch_size=8, num_workers=2, worker_init_fn=init, multiprocessing_context="fork")
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
print(model.weight.tolist())
"""


def duplicates(run: Path) -> list[Finding]:
    return judged(run, "duplicate_data")


@pytest.mark.parametrize("how", ["alike", "apart", "default"])
def test_workers_that_draw_alike_are_named_and_train_as_ever(
    torch_server: ForkServer, tmp_path: Path, how: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    bare = torch_server.start(str(script), how, cwd=tmp_path)
    watched = torch_server.neural("debug", "--headless", "--out", "run", str(script), how, cwd=tmp_path)
    assert watched.code == 0, watched.stderr
    assert watched.stdout == bare.wait().stdout
    with open_trace(tmp_path / "run") as trace:
        told = trace.facts("worker")
        assert sorted((fact["begun"], fact["worker"]) for fact in told) == [(1, 0), (1, 1), (2, 0), (2, 1)]
        assert {tuple(fact["drawn"]) for fact in told} == {("numpy",)}
        assert "stopped watching" not in watched.stderr
    found = duplicates(tmp_path / "run")
    if how != "alike":
        assert found == []
        return
    [one] = found
    assert one.severity is Severity.WARNING
    assert "workers 0, 1 of loader draw the same random numbers (numpy)" in one.summary
    assert one.source is not None
    assert one.source.startswith("train.py:")


def with_workers(one: SimulatedRank, numpy: str, *, drawn: list[str]) -> None:
    one.writer.fact("site", id=9, path="loader", kind=SiteKind.LOADER.value, source="train.py:12")
    for worker in range(2):
        generators = {"numpy": f"{numpy}{worker}", "python": f"p{worker}"}
        one.writer.fact("worker", site=9, begun=1, worker=worker, generators=generators, drawn=drawn)
    one.updates(20).end().close()


def test_workers_that_draw_alike_on_several_ranks_are_information(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 3)
    for rank, one in enumerate(ranks):
        with_workers(one, "a" if rank else "b", drawn=["numpy"])
    [found] = duplicates(run)
    assert (found.severity, found.rank) == (Severity.INFO, 2)
    assert "on ranks 1, 2" in found.summary


@pytest.mark.parametrize(("seeds", "drawn"), [("ab", ["numpy"]), ("aa", [])])
def test_workers_that_draw_apart_or_not_at_all_are_nothing(tmp_path: Path, seeds: str, drawn: list[str]) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for rank, one in enumerate(ranks):
        with_workers(one, seeds[rank], drawn=drawn)
    assert duplicates(run) == []
