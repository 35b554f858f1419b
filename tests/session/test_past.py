"""With `record="full"` any past tensor can be asked for, though it was never stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from neuraldbg import NeuralDbg
from neuraldbg.capture.torch.recording import pacing
from neuraldbg.errors import NotRecorded, UnknownName, UsageError


def train(dbg: NeuralDbg, model: nn.Module, updates: int) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Trains, and returns what the last layer really gave and weighed at each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    truth = {}
    last = model[-1]  # type: ignore[index]
    for step in range(updates):
        optimizer.zero_grad()
        weight = last.weight.detach().clone()
        out = model(torch.randn(16, 4))
        truth[step] = (out.detach().clone(), weight)
        out.square().mean().backward()
        optimizer.step()
        dbg.capture_step(1000 + step)
    return truth


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def test_a_tensor_that_was_never_stored_is_made_again_and_proved(tmp_path: Path) -> None:
    model = small()
    with NeuralDbg(model, out=tmp_path / "run", record="full") as dbg:
        truth = train(dbg, model, 120)
        dbg._ring.clear()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        for step in (0, 33, 77, 119):
            state = dbg.inspect("2", step=1000 + step)
            assert torch.equal(state.tensor, truth[step][0])
            assert state.source == "proved identical"
            assert torch.equal(dbg.inspect("2", step=1000 + step, what="weight").tensor, truth[step][1])
        assert dbg.inspect("Linear_1", step=1050, what="gradient").source == "proved identical"
        with pytest.raises(NotRecorded, match="steps 0 to 119"):
            dbg.inspect("2", step=5000)
        with pytest.raises(UnknownName):
            dbg.inspect("2", step=1000, what="wieght")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_recording_leaves_the_training_as_it_is(tmp_path: Path) -> None:
    finals = []
    for record in ("full", "auto", False):
        torch.manual_seed(3)
        model = small()
        with NeuralDbg(model, out=tmp_path / str(record), record=record) as dbg:
            train(dbg, model, 60)
        finals.append([each.detach().clone() for each in model.parameters()])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*finals, strict=True))


def test_by_default_the_first_steps_can_be_asked_for_and_what_was_left_out_says_so(tmp_path: Path) -> None:
    model = small()
    with NeuralDbg(model, out=tmp_path / "run") as dbg:
        truth = train(dbg, model, 60)
        dbg._ring.clear()
        for step in (0, 7, 19):
            state = dbg.inspect("2", step=1000 + step)
            assert torch.equal(state.tensor, truth[step][0])
            assert state.source == "proved identical"
        kept = {step for first, last in dbg._tape.tape.stretches() for step in range(first, last + 1)}
        left_out = min(set(range(60)) - kept)
        with pytest.raises(NotRecorded, match="cannot be made again"):
            dbg.inspect("2", step=1000 + left_out)


def test_a_model_too_large_to_be_copied_by_itself_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "BY_ITSELF", pacing.Bounds(host=100, device=100))
    model = small()
    with NeuralDbg(model, out=tmp_path / "run", record="auto") as dbg:
        train(dbg, model, 3)
        dbg._ring.clear()
        with pytest.raises(NotRecorded, match="takes no more than"):
            dbg.inspect("2", step=1001)


def test_without_it_a_tensor_that_is_gone_says_so(tmp_path: Path) -> None:
    model = small()
    with NeuralDbg(model, out=tmp_path / "run", record=False) as dbg:
        train(dbg, model, 3)
        dbg._ring.clear()
        with pytest.raises(NotRecorded):
            dbg.inspect("2", step=1001)
    with pytest.raises(UsageError, match="record is"):
        NeuralDbg(model, record="everything")


def test_an_optimizer_that_was_there_before_is_put_back_as_well(tmp_path: Path) -> None:
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with NeuralDbg(model, out=tmp_path / "run", record="full") as dbg:
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
        dbg._ring.clear()
        assert dbg.inspect("2", step=7).source == "proved identical"


def test_asking_between_forward_and_backward_disturbs_neither(tmp_path: Path) -> None:
    finals = []
    for asks in (True, False):
        torch.manual_seed(3)
        model = small()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        with NeuralDbg(model, out=tmp_path / str(asks), record="full") as dbg:
            for step in range(30):
                optimizer.zero_grad()
                out = model(torch.randn(16, 4))
                if asks and step == 20:
                    dbg._ring.clear()
                    assert dbg.inspect("2", step=7).source == "proved identical"
                out.square().mean().backward()
                optimizer.step()
        finals.append([each.detach().clone() for each in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*finals, strict=True))
