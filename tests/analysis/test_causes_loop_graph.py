"""Cut graphs, graphs that reach too far, and graphs that are kept: found with their place; deliberate cuts are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from loop_judging import loud
from torch import Tensor, nn
from watching import net

CAUSES = {
    "detached_graph",
    "no_grad_in_training",
    "missing_detach",
    "hidden_state_not_detached",
    "retained_graph_memory_leak",
    "parameters_not_in_optimizer",
}


def names(folder: Path, program: Callable[[], object]) -> set[str]:
    return set(loud(folder, program)) & CAUSES


class Cut(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.side = nn.Linear(8, 1)
        self.out = nn.Linear(8, 1)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "no_grad":
            with torch.no_grad():
                h = self.trunk(x)
        else:
            h = self.trunk(x)
        if self.how == "detach":
            h = h.detach()
        if self.how == "numpy":
            h = torch.from_numpy(h.detach().numpy() * 1.0)
        if self.how == "unused":
            self.side(h)
        out: Tensor = self.out(h)
        return out


def train_cut(how: str, *, only_head: bool = False, steps: int = 6) -> None:
    torch.manual_seed(0)
    model = Cut(how)
    mine = model.out.parameters() if only_head else model.parameters()
    opt = torch.optim.SGD(mine, lr=1e-2)
    for _ in range(steps):
        x = torch.randn(16, 4)
        opt.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        opt.step()


def test_a_cut_inside_the_model_is_found_with_its_line(tmp_path: Path) -> None:
    for how in ("detach", "numpy"):
        finding = loud(tmp_path / how, lambda how=how: train_cut(how))["detached_graph"]  # type: ignore[misc]
        assert finding.layer == "trunk.0"
        assert ".detach()" in str(finding.evidence["text"])
        assert finding.step == 0


def test_no_cut_and_an_unused_branch_are_fine(tmp_path: Path) -> None:
    assert names(tmp_path / "none", lambda: train_cut("none")) == set()
    assert names(tmp_path / "unused", lambda: train_cut("unused")) == set()


def test_a_cut_before_the_only_part_that_is_trained_is_meant(tmp_path: Path) -> None:
    assert names(tmp_path, lambda: train_cut("detach", only_head=True)) == set()


def test_layers_under_no_grad_in_training(tmp_path: Path) -> None:
    finding = loud(tmp_path, lambda: train_cut("no_grad"))["no_grad_in_training"]
    assert finding.layer == "trunk.0"
    assert "no_grad" in str(finding.evidence["text"])
    assert names(tmp_path / "head", lambda: train_cut("no_grad", only_head=True)) == set()


def test_a_loss_made_of_numbers(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(6):
            opt.zero_grad()
            loss = torch.tensor(model(torch.randn(8, 4)).pow(2).mean().item(), requires_grad=True)
            loss.backward()
            opt.step()

    assert names(tmp_path, program) == {"detached_graph"}


def test_a_whole_forward_without_gradients_crashes(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        opt.zero_grad()
        with torch.no_grad():
            loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()

    found = loud(tmp_path, program)
    assert "no_grad_in_training" in found
    assert "crash" in found


def test_recurrent_state_that_keeps_its_graph(tmp_path: Path) -> None:
    def program(detached: bool) -> None:
        torch.manual_seed(0)
        cell, head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 1)
        opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=1e-2)
        h = torch.zeros(1, 4, 8)
        for _ in range(6):
            out, h = cell(torch.randn(4, 5, 4), h)
            opt.zero_grad()
            head(out).pow(2).mean().backward()
            opt.step()
            if detached:
                h = h.detach()

    assert names(tmp_path / "healthy", lambda: program(True)) == set()
    found = loud(tmp_path / "faulty", lambda: program(False))
    finding = found["hidden_state_not_detached"]
    assert finding.evidence["state"] == "h"
    assert finding.step == 1


def test_two_losses_of_one_update_may_share_their_graph(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(6):
            opt.zero_grad()
            out = model(torch.randn(8, 4))
            out.pow(2).mean().backward(retain_graph=True)
            out.abs().mean().backward()
            opt.step()

    assert names(tmp_path, program) == set()


def test_a_loss_that_is_summed_up_over_updates(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Linear(4, 1)
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        total = torch.zeros(())
        for _ in range(6):
            opt.zero_grad()
            total = total + model(torch.randn(8, 4)).pow(2).mean()
            total.backward(retain_graph=True)
            opt.step()

    assert "missing_detach" in loud(tmp_path, program)


def test_a_bootstrapped_target_that_keeps_its_graph(tmp_path: Path) -> None:
    def program(detached: bool) -> None:
        torch.manual_seed(0)
        q_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        opt = torch.optim.Adam(q_net.parameters(), lr=1e-3)
        for _ in range(6):
            state, after, reward = torch.randn(16, 4), torch.randn(16, 4), torch.randn(16)
            action = torch.randint(0, 3, (16, 1))
            value = q_net(state).gather(1, action).squeeze(1)
            best = q_net(after).max(1).values
            target = reward + 0.9 * (best.detach() if detached else best)
            opt.zero_grad()
            nn.functional.smooth_l1_loss(value, target).backward()
            opt.step()

    assert names(tmp_path / "healthy", lambda: program(True)) == set()
    assert names(tmp_path / "faulty", lambda: program(False)) == {"missing_detach"}


def test_outputs_kept_in_a_list_and_a_sum_of_losses(tmp_path: Path) -> None:
    def program(kept: str) -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        history: list[object] = []
        total: Tensor | float = 0.0
        for _ in range(40):
            opt.zero_grad()
            out = model(torch.randn(8, 4))
            loss = out.pow(2).mean()
            loss.backward()
            opt.step()
            if kept == "outputs":
                history.append(out)
            elif kept == "sum":
                total = total + loss
            else:
                history.append(loss.item())
                total += loss.item()

    assert names(tmp_path / "numbers", lambda: program("numbers")) == set()
    outputs = loud(tmp_path / "outputs", lambda: program("outputs"))["retained_graph_memory_leak"]
    assert outputs.evidence["variable"] == "history"
    assert "history.append(" in str(outputs.evidence["text"])
    total = loud(tmp_path / "sum", lambda: program("sum"))["retained_graph_memory_leak"]
    assert total.evidence["variable"] == "total"
