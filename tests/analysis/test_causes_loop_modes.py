"""Training and evaluation mode: the wrong one at the wrong time is found, deliberate uses are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from loop_judging import loud
from torch import Tensor, nn

CAUSES = {"eval_mode_in_training", "train_mode_in_eval", "missing_no_grad_in_eval"}


def names(folder: Path, program: Callable[[], object]) -> set[str]:
    return set(loud(folder, program)) & CAUSES


def model_with_dropout() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))


def step(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor) -> None:
    opt.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    opt.step()


def epochs(
    *, back: bool = True, evaluating: bool = True, graph: bool = False, epochs: int = 4, evaluations: int = 3
) -> None:
    """`back` = train() again after an evaluation; `evaluating` = eval() before it; `graph` = without no_grad."""
    model = model_with_dropout()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(epochs):
        if back:
            model.train()
        for _ in range(5):
            step(model, opt, torch.randn(8, 4))
        if evaluating:
            model.eval()
        with torch.set_grad_enabled(graph):
            for _ in range(evaluations):
                model(torch.randn(8, 4))


def test_a_loop_that_switches_both_ways_is_fine(tmp_path: Path) -> None:
    assert names(tmp_path, epochs) == set()


def test_no_way_back_from_eval(tmp_path: Path) -> None:
    finding = loud(tmp_path, lambda: epochs(back=False))["eval_mode_in_training"]
    assert finding.step == 5
    assert finding.evidence["updates_in_eval_mode"] == 15


def test_a_loaded_model_in_eval_mode_from_the_start_is_meant(tmp_path: Path) -> None:
    def program(loaded: bool) -> None:
        model = model_with_dropout()
        if loaded:
            model.load_state_dict(model_with_dropout().state_dict())
        model.eval()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(8):
            step(model, opt, torch.randn(8, 4))

    assert names(tmp_path / "loaded", lambda: program(True)) == set()
    assert names(tmp_path / "fresh", lambda: program(False)) == {"eval_mode_in_training"}


def test_evaluation_in_training_mode(tmp_path: Path) -> None:
    finding = loud(tmp_path, lambda: epochs(evaluating=False))["train_mode_in_eval"]
    assert finding.evidence["evaluation_passes_in_train_mode"] == 12
    assert "Dropout" in finding.summary


def test_monte_carlo_dropout_and_samples_of_every_step_are_fine(tmp_path: Path) -> None:
    def monte_carlo() -> None:
        model = model_with_dropout()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(8):
            step(model, opt, torch.randn(8, 4))
        x = torch.randn(8, 4)
        with torch.no_grad():
            torch.stack([model(x) for _ in range(10)]).std(0)

    def pseudo_labels() -> None:
        model = model_with_dropout()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(8):
            with torch.no_grad():
                model(torch.randn(8, 4))
            step(model, opt, torch.randn(8, 4))

    assert names(tmp_path / "mc", monte_carlo) == set()
    assert names(tmp_path / "labels", pseudo_labels) == set()


def test_no_layer_cares_no_finding(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Linear(4, 1)
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(8):
            step(model, opt, torch.randn(8, 4))
        with torch.no_grad():
            model(torch.randn(100, 4))

    assert names(tmp_path, program) == set()


def test_evaluation_that_builds_graphs(tmp_path: Path) -> None:
    finding = loud(tmp_path, lambda: epochs(graph=True))["missing_no_grad_in_eval"]
    assert finding.evidence["evaluation_passes_with_graph"] == 12
    assert names(tmp_path / "once", lambda: epochs(graph=True, epochs=1, evaluations=1)) == set()
