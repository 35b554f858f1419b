"""All ranks stop after one and the same update, and go on together."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from waiting import eventually

from neuraldbg.control.gate import Gate
from neuraldbg.control.together import FILE, Follower, FollowerGate, Leader
from neuraldbg.control.verbs import Verbs
from neuraldbg.errors import AbortedByUser
from neuraldbg.records import Phase, Stop


@dataclass
class Trainer:
    """A loop of updates that waits for nobody, and goes through its gate after each."""

    gate: Gate
    limit: int = 10**9
    done: int = 0
    left: bool = False
    thread: threading.Thread | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.gate.pace = lambda: (self.done, 0.002)
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()

    def _train(self) -> None:
        try:
            while not self.over.wait(0.002):
                step, self.done = self.done, self.done + 1
                if self.gate.active:
                    self.gate.reached(Stop(step, Phase.UPDATE, None, -1, {"step": step}), [])
        except AbortedByUser:
            self.left = True

    @property
    def step(self) -> int | None:
        state = self.gate.state()
        return state["step"] if state["state"] == "paused" else None

    def stop(self) -> None:
        self.over.set()
        self.gate.retire()
        if self.thread is not None:
            self.thread.join(5)


@dataclass
class Pair:
    first: Trainer
    other: Trainer
    leader: Leader
    verbs: Verbs
    folder: Path

    def both_stand_at(self) -> int:
        eventually(lambda: self.first.step is not None and self.first.step == self.other.step)
        step = self.first.step
        assert step is not None
        return step


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    gate = Gate()
    gate.remote = True
    leader = Leader(gate, tmp_path)
    other = FollowerGate(tmp_path, 1)
    follower = Follower(other, tmp_path)
    trainers = Trainer(gate), Trainer(other)
    for one in trainers:
        one.start()
    yield Pair(*trainers, leader, Verbs(gate), tmp_path)
    for one in trainers:
        one.stop()
    follower.close()
    leader.close()
    assert list(tmp_path.iterdir()) == [], "nothing is left in the run directory"


def test_a_pause_stops_all_ranks_after_the_same_update(pair: Pair) -> None:
    pair.verbs("pause", {})
    step = pair.both_stand_at()
    pair.verbs("continue", {})
    eventually(lambda: min(pair.first.done, pair.other.done) > step + 20)


def test_a_step_moves_all_ranks_by_one_update(pair: Pair) -> None:
    pair.verbs("pause", {})
    step = pair.both_stand_at()
    for _ in range(3):
        pair.verbs("step", {"unit": "step"})
        step += 1
        eventually(lambda wanted=step: pair.first.step == pair.other.step == wanted)


def test_leaving_ends_all_ranks(pair: Pair) -> None:
    pair.verbs("pause", {})
    pair.both_stand_at()
    pair.verbs("abort", {})
    eventually(lambda: pair.first.left and pair.other.left)


def test_leaving_a_run_that_goes_on_ends_all_ranks_after_the_same_update(pair: Pair) -> None:
    pair.verbs("abort", {})
    eventually(lambda: pair.first.left and pair.other.left)
    assert pair.first.done == pair.other.done


def test_a_finding_of_another_rank_stops_everybody_and_says_whose_it_is(pair: Pair) -> None:
    pair.other.gate.break_on("nan_loss")
    pair.other.gate.found("nan_loss", "the loss is NaN")
    pair.both_stand_at()
    [reason] = pair.first.gate.state()["reasons"]
    assert reason.startswith("rank 1: nan_loss: the loss is NaN")


def test_breakpoints_of_the_first_rank_are_those_of_all(pair: Pair) -> None:
    pair.verbs("add", {"layer_name": "fc1", "condition": "loss > 3"})
    eventually(lambda: [one.spec.condition for one in pair.other.gate.breakpoints.all()] == ["loss > 3"])
    pair.verbs("remove", {"layer_name": "fc1"})
    eventually(lambda: not pair.other.gate.breakpoints.all())


@pytest.mark.parametrize("how", [lambda file: file.unlink(), lambda file: file.write_text(_of_a_dead_process())])
def test_a_rank_does_not_wait_for_a_first_one_that_is_gone(how: Callable[[Path], None], tmp_path: Path) -> None:
    gate = FollowerGate(tmp_path, 1)
    follower, trainer = Follower(gate, tmp_path), Trainer(gate)
    (tmp_path / FILE).write_text(json.dumps({"until": 5, "leave": False, "breakpoints": [], "host": "another"}))
    trainer.start()
    try:
        eventually(lambda: trainer.step is not None)
        how(tmp_path / FILE)
        eventually(lambda: trainer.done > 50)
    finally:
        trainer.stop()
        follower.close()
        (tmp_path / FILE).unlink(missing_ok=True)


def _of_a_dead_process() -> str:
    import socket
    import subprocess
    import sys

    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    told = {"until": 5, "leave": False, "breakpoints": [], "host": socket.gethostname(), "pid": child.pid}
    return json.dumps(told)
