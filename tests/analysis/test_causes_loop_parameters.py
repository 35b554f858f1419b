"""Parameters that cannot learn are found by identity; those that were meant to stay are not."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path

import torch
from loop_judging import judged, loud
from torch import Tensor, nn
from watching import net

from neuraldbg.records import Severity

CAUSES = {
    "parameters_not_in_optimizer",
    "stale_parameters_in_optimizer",
    "unregistered_parameters",
    "frozen_parameters",
    "detached_graph",
}


def fit(model: nn.Module, parameters: Iterable[Tensor], steps: int = 6) -> None:
    opt = torch.optim.SGD(list(parameters), lr=1e-2)
    for _ in range(steps):
        x = torch.randn(16, 4)
        opt.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        opt.step()


def names(folder: Path, program: object) -> set[str]:
    return set(loud(folder, program)) & CAUSES  # type: ignore[arg-type]


def test_a_layer_that_no_optimizer_was_given(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        fit(model, model[2].parameters())

    finding = loud(tmp_path, program)["parameters_not_in_optimizer"]
    assert finding.layer == "0"
    assert finding.severity is Severity.CRITICAL
    assert "test_causes_loop_parameters.py:" in str(finding.source)


def test_a_second_phase_on_part_of_a_trained_model_is_fine(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        fit(model, model.parameters())
        fit(model, model[2].parameters())

    assert names(tmp_path, program) == set()


def test_a_loaded_model_that_only_passes_gradients_on_is_information(tmp_path: Path) -> None:
    def program() -> None:
        model, extractor = net(), nn.Linear(1, 1)
        extractor.load_state_dict(extractor.state_dict())
        fit(nn.Sequential(model, extractor), model.parameters())

    assert names(tmp_path, program) == set()


def test_parameters_that_follow_by_averaging_are_fine(tmp_path: Path) -> None:
    def program() -> None:
        online, target = net(), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        opt = torch.optim.SGD(online.parameters(), lr=1e-2)
        for _ in range(6):
            x = torch.randn(16, 4)
            opt.zero_grad()
            (online(x) - target(x)).pow(2).mean().backward()
            opt.step()
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                    slow.data.lerp_(fast, 0.1)

    assert names(tmp_path, program) == set()


def test_a_head_replaced_after_the_optimizer_was_made(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        model[2] = nn.Linear(8, 1)
        for _ in range(6):
            x = torch.randn(16, 4)
            opt.zero_grad()
            nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            opt.step()

    finding = loud(tmp_path, program)["stale_parameters_in_optimizer"]
    assert finding.layer == "2"
    assert finding.evidence["stale_parameters"] == 2
    assert "parameters_not_in_optimizer" not in loud(tmp_path / "again", program)


def test_a_copy_is_trained_with_the_optimizer_of_the_original(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        model = copy.deepcopy(model)
        for _ in range(6):
            x = torch.randn(16, 4)
            opt.zero_grad()
            nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            opt.step()

    assert names(tmp_path, program) == {"stale_parameters_in_optimizer"}


class Listed(nn.Module):
    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        blocks = [nn.Linear(4, 4) for _ in range(2)]
        self.blocks = nn.ModuleList(blocks) if registered else blocks
        self.out = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        out: Tensor = self.out(x)
        return out


def test_layers_in_a_plain_list(tmp_path: Path) -> None:
    def program(registered: bool) -> None:
        model = Listed(registered=registered)
        fit(model, model.parameters())

    assert names(tmp_path / "healthy", lambda: program(True)) == set()
    found = loud(tmp_path / "faulty", lambda: program(False))
    assert "parameters_not_in_optimizer" not in found
    finding = found["unregistered_parameters"]
    assert finding.evidence["attribute"] == "blocks"
    assert finding.evidence["hidden_parameters"] == 4
    assert finding.source is not None


def test_listed_layers_that_the_optimizer_was_given_by_hand_are_fine(tmp_path: Path) -> None:
    def program() -> None:
        model = Listed(registered=False)
        fit(model, [p for layer in (*model.blocks, model.out) for p in layer.parameters()])

    assert names(tmp_path, program) == set()


def frozen(model: nn.Sequential) -> nn.Sequential:
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    return model


def test_random_layers_frozen_and_given_to_the_optimizer(tmp_path: Path) -> None:
    def program() -> None:
        model = frozen(net())
        fit(model, model.parameters())

    finding = loud(tmp_path, program)["frozen_parameters"]
    assert finding.layer == "0"


def test_trained_or_loaded_layers_are_frozen_on_purpose(tmp_path: Path) -> None:
    def trained_before() -> None:
        model = net()
        fit(model, model.parameters())
        fit(frozen(model), [p for p in model.parameters() if p.requires_grad])

    def loaded() -> None:
        model = net()
        model.load_state_dict(net().state_dict())
        fit(frozen(model), model.parameters())

    def given() -> None:
        table = torch.randn(50, 4)
        model = nn.Sequential(nn.Embedding.from_pretrained(table), nn.Linear(4, 1))
        opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(6):
            opt.zero_grad()
            model(torch.randint(0, 50, (16,))).pow(2).mean().backward()
            opt.step()

    for number, program in enumerate((trained_before, loaded, given)):
        assert names(tmp_path / str(number), program) == set()


def test_a_fixed_random_network_that_makes_the_targets_is_fine(tmp_path: Path) -> None:
    def program() -> None:
        teacher = net().requires_grad_(False)
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(6):
            x = torch.randn(16, 4)
            opt.zero_grad()
            nn.functional.mse_loss(model(x), teacher(x)).backward()
            opt.step()

    assert names(tmp_path, program) == set()
    assert judged(tmp_path / "again", program).failed == {}
