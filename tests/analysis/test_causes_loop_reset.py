"""Models and optimizers made anew in the loop are found; folds, seeds and phases are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from loop_judging import loud
from torch import nn
from watching import net


def names(folder: Path, program: Callable[[], object]) -> set[str]:
    return set(loud(folder, program)) & {"state_reset_in_loop"}


def step(model: nn.Module, opt: torch.optim.Optimizer) -> None:
    x = torch.randn(8, 4)
    opt.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    opt.step()


def test_an_optimizer_made_anew_every_epoch(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        for _epoch in range(5):
            opt = torch.optim.Adam(model.parameters(), lr=1e-3)
            for _ in range(4):
                step(model, opt)

    finding = loud(tmp_path, program)["state_reset_in_loop"]
    assert finding.evidence["what"] == "optimizer"
    assert finding.step == 4


def test_a_stateless_optimizer_loses_nothing(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        for _epoch in range(5):
            opt = torch.optim.SGD(model.parameters(), lr=1e-3)
            for _ in range(4):
                step(model, opt)

    assert names(tmp_path, program) == set()


def test_a_model_made_anew_every_epoch(tmp_path: Path) -> None:
    def program() -> None:
        for _epoch in range(5):
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
            opt = torch.optim.Adam(model.parameters(), lr=1e-3)
            for _ in range(4):
                step(model, opt)

    finding = loud(tmp_path, program)["state_reset_in_loop"]
    assert finding.evidence["what"] == "model"


def test_folds_and_seeds_and_phases_are_fine(tmp_path: Path) -> None:
    def folds() -> None:
        for _fold in range(4):
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
            opt = torch.optim.Adam(model.parameters(), lr=1e-3)
            for _epoch in range(4):
                step(model, opt)

    def searches() -> None:
        for rate in (1e-2, 1e-3, 1e-4):
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
            opt = torch.optim.Adam(model.parameters(), lr=rate)
            for _epoch in range(4):
                step(model, opt)

    def phases() -> None:
        model = net()
        for rate in (1e-2, 1e-3, 1e-4):
            opt = torch.optim.Adam(model.parameters(), lr=rate)
            for _epoch in range(4):
                step(model, opt)

    for number, program in enumerate((folds, searches, phases)):
        assert names(tmp_path / str(number), program) == set()


def test_a_new_optimizer_after_weights_were_loaded_is_fine(tmp_path: Path) -> None:
    def reptile() -> None:
        model = net()
        for _step in range(5):
            before = {name: value.clone() for name, value in model.state_dict().items()}
            opt = torch.optim.Adam(model.parameters(), lr=1e-3)
            for _ in range(3):
                step(model, opt)
            model.load_state_dict({name: 0.5 * (value + before[name]) for name, value in model.state_dict().items()})

    assert names(tmp_path, reptile) == set()
