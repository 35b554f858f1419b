"""A recording on disk gives every step back as the one in memory does, and stays within its bounds."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from replayed_programs import PROGRAMS, UPDATES, F, Program, Truth, batch, mlp
from torch import Tensor, nn

from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.capture.torch.recording import disk, taking, tensorfile
from neuraldbg.capture.torch.recording.disk import DiskTape
from neuraldbg.capture.torch.recording.spool import FOLDER
from neuraldbg.capture.torch.recording.taking import Recording
from neuraldbg.capture.torch.recording.tape import TapedBackward
from neuraldbg.capture.torch.structures import Structure
from neuraldbg.errors import NotRecorded
from neuraldbg.replay.rebuild import Rebuilder
from neuraldbg.replay.recorded import Objects, Recorded


class Watched:
    """A training under way, recorded to disk."""

    def __init__(self, run_dir: Path, limit: int = 2**29) -> None:
        self.run_dir = run_dir
        self.said: list[str] = []
        self.alive: Any = None
        self.capture = TorchCapture(lambda: None, Options(strict=True))
        self.tape = DiskTape(run_dir / FOLDER, limit, say=self.said.append, share=float("inf"))
        self.recording = Recording(self.capture.core, self.capture.patches, self.tape)

    def objects(self) -> Objects:
        names = self.tape.names
        return Objects(list(names.living_models()), list(names.living_optimizers()))

    def rebuilt(self, step: int, layers: dict[str, nn.Module] | None = None) -> Any:
        self.tape.flush()
        tape = Recorded(self.run_dir).tape(step, self.objects())
        bound: Any = SimpleNamespace(
            core=self.capture.core, tape=tape, optimizers=self.recording.optimizers, repeatable=True
        )
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


def trained(watched: Watched, loss: Callable[[Tensor], Tensor], rows: int = 4096) -> list[Tensor]:
    """A model whose output is large; returns what arrived at it in every update."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    seen = []
    for _ in range(8):
        optimizer.zero_grad()
        out = model(torch.randn(rows, 4))
        out.register_hook(lambda gradient: seen.append(gradient.clone()))
        loss(out).backward()
        optimizer.step()
    watched.alive = (model, optimizer)
    return seen


LABELS = torch.arange(4096) % 16
KNOWN = {
    "cross entropy": lambda out: F.cross_entropy(out, LABELS),
    "of flattened logits, over four": lambda out: F.cross_entropy(out.view(64, 64, 16).flatten(0, 1), LABELS) / 4,
    "with weights and ignored labels": lambda out: F.cross_entropy(
        out, LABELS, weight=torch.linspace(0.1, 1, 16), ignore_index=3, reduction="sum"
    ),
    "squares": lambda out: 0.5 * F.mse_loss(out, torch.ones_like(out)),
    "logits": lambda out: F.binary_cross_entropy_with_logits(out, (out.detach() > 0).float()),
}


@pytest.mark.parametrize("name", KNOWN)
def test_of_a_known_loss_the_target_is_kept_and_the_gradient_made_again(name: str, watched: Watched) -> None:
    seen = trained(watched, KNOWN[name])
    watched.tape.flush()
    kept = [one for one in entries(watched.run_dir) if one["kind"] == "arrived"]
    assert "gradient" in kept[0], "the first is kept, to be compared with"
    assert all("digest" in one for one in kept[3:])
    last = watched.alive[0][1]
    for step, right in enumerate(seen):
        made = watched.rebuilt(step, {"last": last})
        assert made.proof == "proved identical"
        assert torch.equal(made.seen["last"].gradients[0], right)


def test_of_another_loss_the_gradient_is_kept(watched: Watched) -> None:
    seen = trained(watched, lambda out: F.cross_entropy(out[:, 1:], LABELS % 15) + out.square().mean())
    watched.tape.flush()
    kept = [one for one in entries(watched.run_dir) if one["kind"] == "arrived"]
    assert all("gradient" in one for one in kept)
    assert torch.equal(watched.rebuilt(6, {"last": watched.alive[0][1]}).seen["last"].gradients[0], seen[6])


def test_a_wrong_target_is_noticed(watched: Watched) -> None:
    trained(watched, KNOWN["cross entropy"])
    watched.tape.flush()
    tape = Recorded(watched.run_dir).tape(7, watched.objects())
    bound: Any = SimpleNamespace(
        core=watched.capture.core, tape=tape, optimizers=watched.recording.optimizers, repeatable=True
    )
    spoilt = next(one for one in tape.entries if isinstance(one, TapedBackward) and one.step == 7)
    assert spoilt.loss is not None
    spoilt.loss.target = spoilt.loss.target.flip(0)
    assert Rebuilder(bound).step(7).differs_since == 7


def entries(run_dir: Path) -> list[dict[str, Any]]:
    files = sorted((run_dir / FOLDER).glob("tape-*.safetensors"))
    return [one for path in files for one in tensorfile.read_about(path)["entries"]]


def test_the_files_stay_within_their_bytes_and_the_newest_steps_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "EVERY", 5)
    limit = 1_500_000
    watched = Watched(tmp_path, limit)
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(600):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 20 == 19:
            watched.tape.flush()
            assert sum(file.stat().st_size for file in (tmp_path / FOLDER).iterdir()) <= limit + 100_000  # names.json
    first, last = Recorded(tmp_path).steps or (0, 0)
    assert last == 599
    assert 0 < first < 599
    for step in (first, (first + last) // 2, last):
        assert watched.rebuilt(step).proof == "proved identical"
    with pytest.raises(NotRecorded, match="are recorded"):
        watched.rebuilt(0)
    watched.close()
    assert watched.said == []


def test_a_disk_that_is_too_slow_leaves_steps_out_and_never_holds_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "EVERY", 10)
    watched = Watched(tmp_path, 1_000_000)
    held = threading.Event()
    real = watched.tape._spool.take
    monkeypatch.setattr(watched.tape._spool, "take", lambda *args: (held.wait(), real(*args)))
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(updates: int) -> None:
        for _ in range(updates):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    train(200)  # nothing is written meanwhile
    held.set()
    watched.tape.flush()
    train(20)
    assert watched.rebuilt(210).proof == "proved identical"
    with pytest.raises(NotRecorded, match="left out"):
        watched.rebuilt(150)
    watched.close()


def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensorfile, "write", full)
    watched = Watched(tmp_path)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        watched.tape.flush()
    watched.close()
    assert len(watched.said) == 1
    assert "No space left" in watched.said[0]


def test_what_cannot_be_written_is_refused_by_name(watched: Watched) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 1)

        def forward(self, x: Tensor, how: Any) -> Tensor:
            return self.body(x) * how.scale

    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(2, 4), SimpleNamespace(scale=2.0)).mean().backward()
        optimizer.step()
    with pytest.raises(NotRecorded, match=r"types\.SimpleNamespace"):
        watched.rebuilt(1)


def test_files_are_plain_safetensors(watched: Watched) -> None:
    from safetensors.torch import load_file

    trained(watched, KNOWN["squares"], rows=16 * 256)
    watched.tape.flush()
    states = sorted((watched.run_dir / FOLDER).glob("state-*.safetensors"))
    assert {"p/0:0", "p/0:3"} <= set(load_file(states[-1]))


def test_a_recording_that_fails_ends_as_a_whole_and_the_training_goes_on(tmp_path: Path) -> None:
    capture = TorchCapture(lambda: None, Options())
    tape = DiskTape(tmp_path / FOLDER)
    recording = Recording(capture.core, capture.patches, tape)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        if step == 3:
            recording._around = None  # type: ignore[assignment, method-assign]
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    tape.flush()
    count = tape.count
    capture.close()
    tape.close()
    assert Recorded(tmp_path).steps == (0, 2)
    assert count == tape.count


def test_a_gradient_that_is_too_large_is_made_again_where_its_loss_is_known(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "LARGEST_GRADIENT", 1000)
    trained(watched, KNOWN["cross entropy"])
    assert watched.rebuilt(0).proof == "proved identical"
    assert not any("gradient" in one for one in entries(watched.run_dir))


def test_a_gradient_that_is_too_large_is_else_refused_by_name(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "LARGEST_GRADIENT", 1000)
    trained(watched, lambda out: out.pow(4).mean())
    with pytest.raises(NotRecorded, match="too large to be kept"):
        watched.rebuilt(1)


def test_a_state_that_does_not_fit_is_never_copied_and_said_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 100_000)
    taken: list[int] = []
    real = watched.tape.add_state
    watched.tape.add_state = lambda state: (taken.append(state.step), real(state))  # type: ignore[assignment, method-assign]
    model = nn.Linear(1000, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(2, 1000)).mean().backward()
        optimizer.step()
    watched.close()
    assert taken == []
    assert len(watched.said) == 1
    assert "--record-memory" in watched.said[0]
    with pytest.raises(NotRecorded, match="two of them have to fit"):
        Recorded(tmp_path)


def test_a_child_that_lies_where_another_one_was_is_a_new_structure() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    known = Structure.of(model)
    model[1] = torch.nn.BatchNorm1d(2)
    known.children = [id(child) for child in model.children()]  # as if it had the same address
    assert known.look() is None


class Chance(nn.Module):
    """Draws from every generator, from some in some passes only."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(512, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x)
        number = int(x[0, 0].abs() * 1000)
        out = out * random.gauss(1.0, 0.1) if number % 3 else out
        return F.dropout(out * (1 + np.random.randn()), 0.1) if number % 2 else out


def test_a_batch_that_is_overwritten_and_draws_of_all_generators_come_back(watched: Watched) -> None:
    torch.manual_seed(0)
    model, buffer, seen = Chance(), torch.empty(64, 512), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(8):
        x = buffer.copy_(torch.randn(64, 512))
        out = model(x)
        out.square().mean().backward()
        seen.append(out.detach().clone())
        buffer.data.zero_() if step % 2 else buffer.zero_()
        optimizer.step()
        optimizer.zero_grad()
        np.random.rand() if step == 4 else random.random()
    for step, right in enumerate(seen):
        made = watched.rebuilt(step, {"": model.fc, "model": model})
        assert made.proof == "proved identical", step
        assert torch.equal(made.seen["model"].outputs[0], right)
