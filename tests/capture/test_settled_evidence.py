"""What was learnt in the first updates is not looked for again, and what comes later is found all the same."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from watching import facts, watching

from neuraldbg.capture.torch.evidence.graphs_probes import Probes


class Thawing(nn.Module):
    """Its first layer is frozen at the beginning; what it puts out is always cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x).detach())
        return out


def test_a_layer_that_is_thawed_later_and_cut_off_is_found(tmp_path: Path) -> None:
    with watching(tmp_path):
        model = Thawing()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(12):
            if step == 6:
                model.first.requires_grad_(True)
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    (fact,) = facts(tmp_path, "unreached")
    assert fact["count"] == 1
    assert fact["after"] is not None


def test_gradients_that_are_lost_from_some_update_on_are_found(tmp_path: Path) -> None:
    with watching(tmp_path):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(16):
            optimizer.zero_grad()
            if step >= 8:
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    fact = facts(tmp_path, "gradients_lost")[-1]
    assert fact["first"] == 9  # the one before it woke whoever looks
    assert fact["count"] == 7


def _optimizer(count: int) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(2)) for _ in range(count)], lr=0.1)


def test_the_same_parameters_stand_for_all_while_they_can_be_trained() -> None:
    probes, optimizer = Probes(), _optimizer(10)
    first = probes.of(optimizer)
    optimizer.param_groups[0]["params"][1].requires_grad_(False)
    assert all(one is other for one, other in zip(first, probes.of(optimizer), strict=True))
    first[0].requires_grad_(False)
    assert all(one is not first[0] for one in probes.of(optimizer))


def test_a_group_that_is_added_is_looked_at_too() -> None:
    probes, optimizer = Probes(), _optimizer(4)
    added = nn.Parameter(torch.zeros(2))
    probes.of(optimizer)
    optimizer.add_param_group({"params": [added]})
    assert any(one is added for one in probes.of(optimizer))


def test_a_generator_that_nothing_reaches_is_found_beside_a_network_that_learns(tmp_path: Path) -> None:
    with watching(tmp_path):
        made, judge = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Sequential(nn.Linear(4, 1))
        own = torch.optim.SGD(made.parameters(), lr=0.01)
        other = torch.optim.SGD(judge.parameters(), lr=0.01)
        for _ in range(40):
            other.zero_grad()
            with torch.no_grad():
                fake = made(torch.randn(8, 4))
            ((judge(torch.randn(8, 4)) - 1).pow(2).mean() + judge(fake).pow(2).mean()).backward()
            other.step()
            own.zero_grad()
            (judge(made(torch.randn(8, 4)).detach()) - 1).pow(2).mean().backward()
            own.step()
    assert facts(tmp_path, "unreached")


def test_a_column_that_gives_the_target_away_is_found_in_small_batches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with watching(tmp_path, budget=0.01):
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(120):
            x = torch.randn(8, 6)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), x[:, 3:4] * 2 + 1).backward()
            optimizer.step()
    assert {one["column"] for one in facts(tmp_path, "leak")} == {3}


def test_an_optimizer_that_is_given_other_parameters_is_probed_at_those() -> None:
    one, other = (
        nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)]),
        nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)]),
    )
    optimizer, probes = torch.optim.SGD(one.parameters(), lr=0.1), Probes()
    before = probes.of(optimizer)
    optimizer.param_groups[0]["params"] = list(other.parameters())
    mine = {id(parameter) for parameter in other.parameters()}
    assert len(before) == 4
    assert all(id(parameter) in mine for parameter in probes.of(optimizer))


def test_layers_behind_a_wrapper_that_passes_attributes_on_are_found(tmp_path: Path) -> None:
    """Their paths leave the wrapper out."""

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = checkpoint_wrapper(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
            self.head = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.block(x).detach())  # type: ignore[no-any-return]

    model = Cut()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path):
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert len(facts(tmp_path, "unreached")[0]["layers"]) == 2
