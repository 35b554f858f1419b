"""The graph of a loss is walked once for all who look at it, and nobody holds it when the backward runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from watching import net, watching

from neuraldbg.capture.torch.evidence import graph_walk
from neuraldbg.capture.torch.evidence.graph_walk import Walk, shared_walk, walk


def looking() -> Any:
    return SimpleNamespace(graph=None)


def loss_of(depth: int = 3) -> Tensor:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(depth)))
    return model(torch.ones(1, 2)).sum()


def test_a_walk_is_shared_by_who_asks_for_the_same() -> None:
    core, loss = looking(), loss_of()
    first = shared_walk(core, loss, 100)
    assert first.whole
    assert shared_walk(core, loss, 50) is first
    assert shared_walk(core, loss, len(first.visits)) is first
    assert [visit.name for visit in first.visits] == [visit.name for visit in walk(loss, 100).visits]


def test_another_loss_or_less_room_is_walked_anew() -> None:
    core, loss = looking(), loss_of()
    whole = shared_walk(core, loss, 100)
    assert len(shared_walk(core, loss, 2).visits) == 2
    cut = core.graph
    assert not cut.whole
    assert len(shared_walk(core, loss, 100).visits) == len(whole.visits)
    other = loss * 2
    assert shared_walk(core, other, 100).visits[0].node is other.grad_fn


def test_ctrl_c_among_those_who_look_leaves_no_graph_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    model = net()
    with watching(tmp_path) as capture:
        monkeypatch.setattr("neuraldbg.capture.torch.evidence.network.Network._activations", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(4, 4)).square().mean().backward()
        assert capture.core.graph is None


def test_the_graph_of_a_watched_training_is_walked_once_and_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(loss: Tensor, limit: int) -> Walk:
        made.append(limit)
        return walk(loss, limit)

    monkeypatch.setattr(graph_walk, "walk", counted)
    held: list[Any] = []
    with watching(tmp_path) as capture:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(2):
            loss = nn.functional.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 1))
            loss.register_hook(lambda _: held.append(capture.core.graph))
            loss.backward()
            optimizer.step()
    assert len(made) == 2
    assert held == [None, None]
