"""Processes that a watched program forks: they run as always and write nothing into its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuraldbg import Trace, open_trace
from neuraldbg.records import Call
from neuraldbg.trace.tables import CALL_CODE

TRAINING = """
import os, sys, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.ones(2, 4)), torch.zeros(2, 1)).backward()
        optimizer.step()
train(3)
"""
FORK = """
child = os.fork()
if child == 0:
    train(50)
    print('child', model.weight.sum().item(), flush=True)
    {leave}
_, status = os.waitpid(child, 0)
print('child ended with', os.waitstatus_to_exitcode(status))
train(2)
"""
WORKERS = """
class Data(torch.utils.data.Dataset):
    network = nn.Linear(4, 4)
    def __len__(self): return 12
    def __getitem__(self, index):
        for _ in range(20): out = Data.network(torch.full((4,), float(index)))
        return out.detach()
for batch in torch.utils.data.DataLoader(Data(), batch_size=3, num_workers=2, multiprocessing_context='fork'):
    optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
print('done', model.weight.sum().item())
"""


def _run(torch_server: Any, folder: Path, code: str) -> tuple[Any, Any, Trace]:
    script = folder / "train.py"
    script.write_text(TRAINING + code)
    plain = torch_server.python(script, cwd=folder)
    watched = torch_server.neural("debug", "--headless", "--out", str(folder / "run"), str(script), cwd=folder)
    return plain, watched, open_trace(folder / "run")


def _count(trace: Trace, call: Call) -> int:
    return trace.table("calls", columns=["call"])["call"].tolist().count(CALL_CODE[call])


@pytest.mark.parametrize(
    "leave", ["os._exit(4)", "sys.exit(4)", "sys.stdout.flush(); os.abort()", "raise ValueError('x')"]
)
def test_a_forked_child_writes_nothing_and_ends_as_always(torch_server: Any, tmp_path: Path, leave: str) -> None:
    plain, watched, trace = _run(torch_server, tmp_path, FORK.format(leave=leave))
    assert watched.code == plain.code == 0, watched.stderr
    assert watched.stdout == plain.stdout
    with trace:
        assert _count(trace, Call.STEP) == 5
        assert trace.ended
        assert trace.ranks == [0]
        assert trace.damage is None
    assert watched.stderr.count("Overhead") == 1, "one report"


def test_loader_workers_write_nothing(torch_server: Any, tmp_path: Path) -> None:
    plain, watched, trace = _run(torch_server, tmp_path, WORKERS)
    assert watched.stdout == plain.stdout
    assert watched.code == 0, watched.stderr
    with trace:
        assert (_count(trace, Call.PASS), _count(trace, Call.BATCH), trace.ranks) == (7, 4, [0])


def test_a_loader_made_in_the_loop_itself_is_known(torch_server: Any, tmp_path: Path) -> None:
    """`for batch in DataLoader(...)`: nobody holds the loader while its iterator is at work."""
    _, _, trace = _run(torch_server, tmp_path, WORKERS.replace("num_workers=2, multiprocessing_context='fork'", ""))
    with trace:
        [loader] = trace.facts("loader")
        assert (loader["workers"], loader["batch_size"], loader["length"]) == (0, 3, 12)
