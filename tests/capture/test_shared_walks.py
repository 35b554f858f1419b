"""The graph of a loss is walked once for all who look at it, and nobody holds it when the backward runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from watching import net, watching

from neuraldbg.capture.torch.evidence import graph_walk, graphs_lost, graphs_reach
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


def branched() -> tuple[list[nn.Linear], Tensor]:
    """Two heads on one layer that is used twice, below what an earlier backward went through."""
    first, one, other = (nn.Linear(2, 2) for _ in range(3))
    shared = first(first(torch.ones(1, 2)))
    shared.sum().backward(retain_graph=True)
    return [first, one, other], one(shared).sum() + other(shared.relu()).square().sum()


def test_a_shared_walk_reaches_what_a_walk_of_its_own_does() -> None:
    layers, loss = branched()
    root: Any = loss.grad_fn
    graphs_reach.walk(root.next_functions[0][0], (1, 0), 100)
    root.next_functions[0][0].metadata[graphs_reach.PASS] = 7
    graph = walk(loss, 100)
    shared = graphs_reach.reach_of(graph, (2, 0))
    for visit in graph.visits:  # as if nobody had been there
        if visit.marks[graphs_reach.MARK] == (2, 0):
            del visit.marks[graphs_reach.MARK]
    graphs_reach.walk(root.next_functions[0][0], (1, 0), 100)
    own = graphs_reach.walk(root, (2, 0), 100)
    assert vars(shared) == vars(own)
    assert shared.old > 0
    assert {id(one) for layer in layers for one in layer.parameters()} == set(shared.leaves)


def test_a_shared_walk_tells_of_foreign_leaves_and_of_earlier_losses() -> None:
    layers, loss = branched()
    root: Any = loss.grad_fn
    known = {id(one) for layer in layers for one in layer.parameters()}
    for among in (known, set(list(known)[1:])):
        assert graphs_lost._seen_below(walk(loss, 100), among) == graphs_lost._look_below(root, among)
    root.next_functions[1][0].metadata[graphs_lost._ROOT] = True
    assert graphs_lost._seen_below(walk(loss, 100), known)[0]
    assert graphs_lost._look_below(root, known)[0]
