"""Evidence about the training loop is written as facts, changes nothing, keeps nothing alive, and stays bounded."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import torch
from torch import Tensor, nn
from watching import facts, net, train, watching

from neuraldbg.capture.torch.evidence.identity_fresh import freshness


def test_results_are_bit_identical_with_every_watcher_on(tmp_path: Path) -> None:
    torch.manual_seed(1)
    plain = train(net(), steps=6)
    torch.manual_seed(1)
    with watching(tmp_path):
        watched = train(net(), steps=6)
    assert watched == plain


def test_a_healthy_loop_leaves_few_facts(tmp_path: Path) -> None:
    with watching(tmp_path):
        train(net(), steps=60)
    assert [fact["kinds"] for fact in facts(tmp_path, "gradient_flow")][-1] == {"fresh": 20}
    for kind in ("ownership", "unreached", "loss_cut", "graph_again", "graphs_kept", "made_again"):
        assert facts(tmp_path, kind) == [], kind
    assert len(facts(tmp_path, "gradient_flow")) <= 6
    assert len(facts(tmp_path, "modes")) == 1


def test_nothing_of_the_users_is_kept_alive(tmp_path: Path) -> None:
    def program() -> tuple[weakref.ref[nn.Module], weakref.ref[Tensor]]:
        model = net()
        train(model, steps=3)
        return weakref.ref(model), weakref.ref(model[0].weight)

    with watching(tmp_path):
        model, weight = program()
        gc.collect()
        assert model() is None
        assert weight() is None


def test_old_gradients_are_seen_by_value_for_each_optimizer_apart(tmp_path: Path) -> None:
    with watching(tmp_path):
        first, second = nn.Linear(4, 4), nn.Linear(4, 1)
        one = torch.optim.SGD(first.parameters(), lr=0.01)
        other = torch.optim.SGD(second.parameters(), lr=0.01)
        for _ in range(5):
            other.zero_grad()
            second(first(torch.randn(8, 4))).pow(2).mean().backward()
            one.step()
            other.step()
    kinds = {fact["optimizer"]: fact["kinds"] for fact in facts(tmp_path, "gradient_flow")}
    assert sorted(map(str, kinds.values())) == ["{'fresh': 1, 'stale': 4}", "{'fresh': 5}"]


def test_a_graph_of_an_earlier_backward_is_recognised(tmp_path: Path) -> None:
    with watching(tmp_path):
        model = nn.Linear(4, 4)
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        state = torch.zeros(2, 4)
        for _ in range(3):
            state = torch.tanh(model(torch.randn(2, 4)) + state)
            opt.zero_grad()
            state.sum().backward(retain_graph=True)
            opt.step()
    found = facts(tmp_path, "graph_again")
    assert found
    assert found[0]["updated_parameters"] == 2


def test_the_variable_that_holds_graphs_is_named(tmp_path: Path) -> None:
    class Log:
        def __init__(self) -> None:
            self.outputs: list[Tensor] = []

    with watching(tmp_path):
        log = Log()
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(16):
            out = model(torch.randn(8, 4))
            opt.zero_grad()
            out.pow(2).mean().backward()
            opt.step()
            log.outputs.append(out)
    holders = [fact["holder"] for fact in facts(tmp_path, "graphs_kept")]
    assert holders[0]["name"] == "log.outputs"
    assert holders[0]["kind"] == "list"


def test_lines_that_make_optimizers_are_told(tmp_path: Path) -> None:
    with watching(tmp_path):
        model = net()
        for _ in range(3):
            opt = torch.optim.Adam(model.parameters())
            model(torch.randn(8, 4)).sum().backward()
            opt.step()
    last = [fact for fact in facts(tmp_path, "made_again") if fact["what"] == "optimizer"][-1]
    assert (last["count"], last["untouched"], last["same_settings"]) == (3, 2, 2)
    assert facts(tmp_path, "optimizer_made")[0]["source"] == last["source"]


def test_fresh_values_are_told_from_given_ones() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 32)
    assert freshness(layer, layer.weight)
    assert freshness(nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3).weight)
    assert freshness(nn.Embedding(50, 8), nn.Embedding(50, 8).weight)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(32, 64))
    assert not freshness(layer, layer.weight)
    table = nn.Embedding.from_pretrained(torch.randn(50, 8))
    assert not freshness(table, table.weight)
    assert not freshness(nn.LayerNorm(8), nn.LayerNorm(8).weight)


def test_odd_tensors_do_not_disturb(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4, sparse=True)
            self.weird = [torch.zeros(0, requires_grad=True), {"meta": torch.zeros(3, device="meta")}, None]
            self.phase = nn.Parameter(torch.randn(4, dtype=torch.bfloat16))

        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return self.table(x) * self.phase.abs(), None

    with watching(tmp_path):
        model = Odd()
        sparse = torch.optim.SparseAdam(model.table.parameters())
        dense = torch.optim.SGD([model.phase], lr=0.1)
        for _ in range(3):
            out, _ = model(torch.randint(0, 10, (5,)))
            sparse.zero_grad()
            dense.zero_grad()
            out.sum().backward()
            sparse.step()
            dense.step()
    assert [note for note in facts(tmp_path, "note") if note.get("level") == "warning"] == []
