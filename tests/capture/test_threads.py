"""Several threads that train models of their own, as a search for settings does."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from quick_layers import nothing_was_compiled, seen_by_c  # noqa: F401
from torch import Tensor, nn
from watching import facts, net, trace_of, train, watching

from neuraldbg.capture.torch.memory import LayerMemory
from neuraldbg.capture.torch.tree import LATELY, REBUILT_APART
from neuraldbg.records import Call, SiteKind
from neuraldbg.trace.tables import CALL_CODE

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


class Meets(nn.Module):
    """A layer that says when it runs, and waits."""

    def __init__(self) -> None:
        super().__init__()
        self.runs, self.go_on = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.runs.set()
        assert self.go_on.wait(20)
        return x


@seen_by_c
@pytest.mark.usefixtures("nothing_was_compiled")
def test_a_pass_that_begins_while_c_sees_another_threads_is_one_pass(tmp_path: Path) -> None:
    first, second = Meets(), Meets()
    models = [nn.Sequential(nn.Linear(4, 4), each, nn.Linear(4, 1)) for each in (first, second)]
    with watching(tmp_path):
        threads = [threading.Thread(target=model, args=(torch.ones(2, 4),)) for model in models]
        threads[0].start()
        assert first.runs.wait(20)
        threads[1].start()
        assert second.runs.wait(20)
        first.go_on.set()
        threads[0].join()
        second.go_on.set()
        threads[1].join()
    with trace_of(tmp_path) as trace:
        rows = trace.table("calls", ["call", "site"])
        passes = rows["site"][rows["call"] == CALL_CODE[Call.PASS]].tolist()
        paths = {site.id: (site.kind, site.path) for site in trace.sites}
    assert len(passes) == len(set(passes)) == 2
    assert {paths[site][0] for site in passes} == {SiteKind.MODEL}


def test_who_called_a_model_once_is_not_minded_for_good(tmp_path: Path) -> None:
    """The main thread asks for the shapes, another one trains."""
    model, told = net(), []
    with watching(tmp_path) as capture:
        model(torch.ones(2, 4))

        def work() -> None:
            train(model, 3)
            told.append(capture.core.tree.alone())
            train(model, LATELY)
            told.append(capture.core.tree.alone())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert told == [False, True]


def test_a_model_that_is_made_anew_was_called_by_nobody(tmp_path: Path) -> None:
    with watching(tmp_path) as capture:
        for _ in range(REBUILT_APART + 2):
            model = net()
            train(model, 2)
            known = capture.core.tree.models.get(model)
            assert set(known.threads) == {threading.get_ident()}
            known.threads[-1] = known.passes  # some other thread's
            del model, known


def test_gradients_that_may_not_be_read_are_not_counted_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net()
    with watching(tmp_path) as capture:
        train(model, 2)
        memory = LayerMemory(capture)
        monkeypatch.setattr(capture.core.tree, "alone", lambda: False)
        kept = memory._kept_for_good()
    assert kept["gradient_bytes"] is None
    assert kept["parameter_bytes"] == sum(p.nbytes for p in model.parameters())


def test_a_model_whose_optimizer_is_gone_at_the_end_was_owned(tmp_path: Path) -> None:
    """Threads that train in a function: their optimizers go with it, and nobody could look meanwhile."""
    models = [net() for _ in range(3)]
    with watching(tmp_path) as capture:
        threads = [threading.Thread(target=train, args=(model, 30)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert capture.core.guard.broken == {}
        told = capture.overhead()
    assert told["ratio"] is told["ratio_after_start"] is told["measured"] is None
    assert [model["unowned_count"] for fact in facts(tmp_path, "ownership") for model in fact["models"]].count(4) == 0
