"""Several threads that train models of their own, as a search for settings does."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from watching import facts, net, train, watching

HERE = Path(__file__).parent
PROGRAM = """
import faulthandler, sys, threading
from pathlib import Path
import torch
from torch import nn
from watching import watching
faulthandler.enable()
torch.set_num_threads(1)

def work():
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(30)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(60):
        optimizer.zero_grad()
        model(torch.randn(2, 512)).square().mean().backward()
        optimizer.step()

with watching(Path(sys.argv[1]), budget=float(sys.argv[2]), strict=False) as capture:
    threads = [threading.Thread(target=work) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("broken", capture.core.guard.broken, "updates", capture.updates.stepped)
"""


@pytest.mark.parametrize("budget", [50.0, 1e-9])
def test_nothing_reads_a_gradient_that_another_thread_is_writing(tmp_path: Path, budget: float) -> None:
    """A backward writes to gradients without the interpreter's lock: whoever reads them meanwhile crashes."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), str(budget)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "broken {} updates 120" in done.stdout


def test_models_of_threads_that_are_over_are_read_again(tmp_path: Path) -> None:
    kept: list[nn.Module] = []

    def work() -> None:
        model = net()
        kept.append(model)
        train(model, steps=3)

    with watching(tmp_path) as capture:
        train(net(), steps=3)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert capture.core.trainers == 2
        assert capture.core.tree.alone()
        assert len({id(p) for _, p in capture.core.tree.trainable()} & {id(p) for p in kept[0].parameters()}) == 4
    assert facts(tmp_path, "optimizer")


def test_a_thread_that_trains_keeps_its_gradients_to_itself(tmp_path: Path) -> None:
    go_on, trained = threading.Event(), threading.Event()
    theirs = nn.Linear(4, 1)

    def work() -> None:
        theirs(torch.ones(2, 4)).sum().backward()
        trained.set()
        go_on.wait()

    with watching(tmp_path) as capture:
        mine = net()
        thread = threading.Thread(target=work)
        thread.start()
        trained.wait()
        try:
            train(mine, steps=3)
            readable = {id(p) for _, p in capture.core.tree.trainable()}
            assert readable == {id(p) for p in mine.parameters()}
            assert not capture.core.tree.alone()
        finally:
            go_on.set()
            thread.join()
