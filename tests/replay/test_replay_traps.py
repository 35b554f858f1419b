"""What makes a replay go wrong where nobody thinks of it: each program is proved identical, on tape and on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from replayed_programs import F, batch, mlp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.capture.torch.recording import disk, tape
from neuraldbg.capture.torch.recording.disk import DiskTape
from neuraldbg.capture.torch.recording.environment import unlike
from neuraldbg.capture.torch.recording.spool import FOLDER
from neuraldbg.capture.torch.recording.taking import Recording
from neuraldbg.capture.torch.recording.tape import Tape
from neuraldbg.errors import NotRecorded
from neuraldbg.replay.rebuild import Rebuilder
from neuraldbg.replay.recorded import Objects, Recorded

UPDATES = 8
Alive = list[Any]  # the tape holds models and optimizers weakly


def scaled_by_the_optimizer(alive: Alive) -> None:
    """A fused optimizer is handed the scale and unscales in its own step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    alive += [model, optimizer]
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(UPDATES):
        x, y = batch()
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()


class Links(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(20, 4, sparse=True)
        self.body = nn.Linear(4, 1)

    def forward(self, links: Tensor, number: Tensor) -> Tensor:
        out: Tensor = self.body(torch.sparse.mm(links, self.places(number)))
        return out


def sparse_gradients(alive: Alive) -> None:
    """They are cleared only after the pass, so that a state holds some."""
    model = Links()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alive += [model, optimizer]
    for step in range(UPDATES):
        links = torch.eye(16).roll(step, 0).to_sparse()
        loss = model(links, torch.randint(0, 20, (16,))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Recomputing(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(8, 8), mlp(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.second, torch.tanh(self.first(x)), use_reentrant=self.reentrant)
        return out


def recomputed(alive: Alive, *, reentrant: bool = False) -> None:
    """Layers run once more inside of the backward."""
    model = Recomputing(reentrant=reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alive += [model, optimizer]
    for _ in range(UPDATES):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def recomputed_in_a_backward_of_its_own(alive: Alive) -> None:
    recomputed(alive, reentrant=True)


PROGRAMS = [scaled_by_the_optimizer, sparse_gradients, recomputed, recomputed_in_a_backward_of_its_own]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("on_disk", [False, True])
def test_every_step_is_proved_identical(
    program: Callable[[Alive], None], on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tape, "EVERY", 3)
    monkeypatch.setattr(disk, "EVERY", 3)
    torch.manual_seed(0)
    said: list[str] = []
    alive: Alive = []
    capture = TorchCapture(lambda: None, Options())
    kept = DiskTape(tmp_path / FOLDER, 2**29, say=said.append, share=float("inf")) if on_disk else Tape()
    recording = Recording(capture.core, capture.patches, kept)
    try:
        program(alive)
        for step in range(UPDATES):
            source: Any = bound(recording, kept, tmp_path, step) if isinstance(kept, DiskTape) else recording
            made = Rebuilder(source).step(step)
            assert (made.proof, step) == ("proved identical", step)
    finally:
        capture.close()
        if isinstance(kept, DiskTape):
            kept.close()
    assert said == []


def bound(recording: Recording, kept: DiskTape, run_dir: Path, step: int) -> Any:
    kept.flush()
    objects = Objects(list(kept.names.living_models()), list(kept.names.living_optimizers()))
    read = Recorded(run_dir).tape(step, objects)
    return SimpleNamespace(core=recording.core, tape=read, optimizers=recording.optimizers, repeatable=True)


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    capture = TorchCapture(lambda: None, Options(strict=True))
    kept = DiskTape(tmp_path / FOLDER, 2**29)
    Recording(capture.core, capture.patches, kept)
    alive: Alive = []
    recomputed(alive)
    capture.close()
    kept.close()
    state = next((tmp_path / FOLDER).glob("state-*.safetensors"))
    state.write_bytes(state.read_bytes()[:40])
    with pytest.raises(NotRecorded, match=f"damaged: {state.name}"):
        Recorded(tmp_path).state_for(3)


@pytest.mark.parametrize(
    ("recorded", "now", "gpu", "said"),
    [
        ("H200", None, False, ["the GPU was H200 and is not there"]),
        ("H200", "A100", True, ["the GPU was H200 and is A100"]),
        ("H200", None, True, []),  # not used yet
        (None, None, False, []),
    ],
)
def test_another_gpu_or_none_is_named(
    recorded: str | None, now: str | None, gpu: bool, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert unlike({"device": recorded}, {"device": now}) == said
