"""A recording on disk gives every step back as the one in memory does, and stays within its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from replayed_programs import PROGRAMS, UPDATES, Program, Truth
from torch import Tensor, nn

from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.capture.torch.recording import disk
from neuraldbg.capture.torch.recording.disk import DiskTape
from neuraldbg.capture.torch.recording.spool import FOLDER
from neuraldbg.capture.torch.recording.taking import Recording
from neuraldbg.replay.rebuild import Rebuilder
from neuraldbg.replay.recorded import Objects, Recorded


class Watched:
    """A training under way, recorded to disk."""

    def __init__(self, run_dir: Path, limit: int = 2**29) -> None:
        self.run_dir = run_dir
        self.said: list[str] = []
        self.capture = TorchCapture(lambda: None, Options(strict=True))
        self.tape = DiskTape(run_dir / FOLDER, limit, say=self.said.append, share=float("inf"))
        self.recording = Recording(self.capture.core, self.capture.patches, self.tape)

    def objects(self) -> Objects:
        names = self.tape.names
        return Objects(list(names.living_models()), list(names.living_optimizers()))

    def rebuilt(self, step: int, layers: dict[str, nn.Module] | None = None) -> Any:
        self.tape.flush()
        tape = Recorded(self.run_dir).tape(step, self.objects())
        bound: Any = SimpleNamespace(core=self.capture.core, tape=tape, optimizers=self.recording.optimizers)
        return Rebuilder(bound).step(step, layers)

    def close(self) -> None:
        self.capture.close()
        self.tape.close()


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(disk, "EVERY", 3)
    one = Watched(tmp_path)
    yield one
    one.close()


def same(found: list[Tensor], right: list[Tensor]) -> bool:
    return len(found) == len(right) and all(torch.equal(a, b) for a, b in zip(found, right, strict=True))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_step_comes_back_from_disk_bit_for_bit(program: Program, watched: Watched) -> None:
    torch.manual_seed(0)
    truth = Truth()
    program(truth)
    outputs, truth.outputs = truth.outputs, {}
    gradients, truth.gradients = truth.gradients, {}
    compared = 0
    for step in range(truth.step + 1):
        truth.step = -1
        made = watched.rebuilt(step, truth.layers)
        assert made.proof == "proved identical", (step, made)
        for name, runs in outputs[step].items():
            assert same(made.seen[name].outputs, runs), (step, name)
            compared += len(runs)
            for number, gradient in gradients[step].get(name, {}).items():
                assert torch.equal(made.seen[name].gradients[number], gradient), (step, name, number)
    assert compared >= UPDATES
    assert watched.said == []
