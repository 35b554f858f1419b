"""What a model puts out lives no longer under watch where it is large, and its loss is not computed a second time."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from watching import net, watching

from neuraldbg.capture.torch import hooks
from neuraldbg.capture.torch.probes import sample
from neuraldbg.capture.torch.probes.loss_replay import Tape


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The losses that were computed again."""
    found: list[Tensor] = []
    finish = Tape.finish

    def noted(tape: Tape, loss: Tensor, *rest: Any) -> None:
        found.append(loss.detach())
        finish(tape, loss, *rest)

    monkeypatch.setattr(Tape, "finish", noted)
    return found


def alive_before_backward(folder: Path, steps: int = 3) -> list[bool]:
    """Whether the output of each pass was still there once the script had let go of it."""
    with watching(folder):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        alive = []
        for _ in range(steps):
            optimizer.zero_grad()
            output = model(torch.randn(8, 4))
            ref = weakref.ref(output)
            loss = (output + 1).sum()
            del output
            alive.append(ref() is not None)
            loss.backward()
            optimizer.step()
    return alive


def test_a_small_model_is_kept_for_experiments(tmp_path: Path, computed: list[Tensor]) -> None:
    alive_before_backward(tmp_path)
    assert len(computed) == 3


def test_a_model_too_large_for_experiments_leaves_its_outputs_alone(
    tmp_path: Path, computed: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MODEL_BYTES", 16)
    assert alive_before_backward(tmp_path) == [False, False, False]
    assert computed == []


def test_large_outputs_on_a_device_are_left_alone(
    tmp_path: Path, computed: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "OUTPUT_BYTES", 16)
    outputs_seen: list[int] = []

    class OnDevice:
        """What the samples are told of an output of a device."""

        is_cuda = True

        def __init__(self, tensor: Tensor) -> None:
            self.numel, self.element_size = tensor.numel, tensor.element_size
            outputs_seen.append(tensor.numel())

    tensors = sample.tensors
    monkeypatch.setattr(sample, "tensors", lambda value: [OnDevice(one) for one in tensors(value)])
    alive_before_backward(tmp_path)
    assert outputs_seen == [8, 8, 8]
    assert computed == []


def test_gradients_of_many_accumulated_passes_are_not_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "ARRIVED_IN_ALL", 3 * 8 * 4)
    kept = []
    with watching(tmp_path) as capture:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(2):
            for _ in range(6):
                model(torch.randn(8, 4)).sum().backward()
            kept.append(sum(one.arrived is not None for one in capture.passes.kept()))
            optimizer.step()
            kept.append(len(capture.passes.kept()))
    assert kept == [3, 0, 3, 0]
