"""zero_grad, backward and step: each missing or misplaced call is named, and no loop that is right is accused."""

from __future__ import annotations

from pathlib import Path

import torch
from loop_judging import judged, loud
from torch import Tensor, nn
from watching import net

CAUSES = {"missing_zero_grad", "backward_missing", "step_order_wrong", "optimizer_step_missing", "missing_detach"}


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 4)
    return x, x.sum(1, keepdim=True)


def loss_of(model: nn.Module) -> Tensor:
    x, y = batch()
    return nn.functional.mse_loss(model(x), y)


def names(folder: Path, program: object) -> set[str]:
    return set(loud(folder, program)) & CAUSES  # type: ignore[arg-type]


def test_gradients_that_nobody_clears(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(8):
            loss_of(model).backward()
            opt.step()

    finding = loud(tmp_path, program)["missing_zero_grad"]
    assert finding.step == 1
    assert "opt.zero_grad() is never called" in finding.summary
    assert finding.evidence["zero_grad_calls"] == 0


def test_zero_grad_of_another_optimizer_does_not_count(tmp_path: Path) -> None:
    def program() -> None:
        encoder, head = nn.Linear(4, 8), nn.Linear(8, 1)
        enc_opt = torch.optim.SGD(encoder.parameters(), lr=1e-3)
        head_opt = torch.optim.SGD(head.parameters(), lr=1e-3)
        for _ in range(8):
            x, y = batch()
            head_opt.zero_grad()
            nn.functional.mse_loss(head(encoder(x)), y).backward()
            enc_opt.step()
            head_opt.step()

    finding = loud(tmp_path, program)["missing_zero_grad"]
    assert finding.evidence["optimizer"] == "enc_opt"
    assert finding.layer == "encoder"


def test_accumulation_and_clearing_by_hand_are_fine(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(12):
            (loss_of(model) / 3).backward()
            if step % 3 == 2:
                opt.step()
                for parameter in model.parameters():
                    parameter.grad = None

    assert names(tmp_path, program) == set()


def test_old_gradients_that_are_scaled_down_on_purpose_are_fine(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(8):
            loss_of(model).backward()
            opt.step()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.9)

    assert names(tmp_path, program) == set()


def test_an_lbfgs_closure_that_clears_is_fine(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        x, y = batch()

        def closure() -> Tensor:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        for _ in range(5):
            opt.step(closure)

    assert names(tmp_path, program) == set()


def test_steps_without_any_backward(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.Adam(model.parameters())
        for _ in range(6):
            opt.zero_grad()
            loss_of(model)
            opt.step()

    finding = loud(tmp_path, program)["backward_missing"]
    assert finding.step == 0
    assert finding.evidence["steps"] == 6


def test_gradients_written_by_hand_need_no_backward(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(6):
            loss_of(model)
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            opt.step()

    assert names(tmp_path, program) == set()


def test_zero_grad_between_backward_and_step(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(6):
            loss_of(model).backward()
            opt.zero_grad()
            opt.step()

    finding = loud(tmp_path, program)["step_order_wrong"]
    assert finding.evidence["order"] == "backward, zero_grad, step"
    assert finding.step == 0


def test_step_before_backward(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(6):
            opt.zero_grad()
            loss = loss_of(model)
            opt.step()
            loss.backward()

    finding = loud(tmp_path, program)["step_order_wrong"]
    assert finding.evidence["order"] == "zero_grad, step, backward"


def test_an_optimizer_that_never_steps_and_is_gone_at_the_end(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.Adam(model.parameters())
        for _ in range(12):
            opt.zero_grad()
            loss_of(model).backward()

    finding = loud(tmp_path, program)["optimizer_step_missing"]
    assert finding.evidence["optimizer"] == "opt"
    assert finding.step == 0


def test_parameters_moved_by_hand_need_no_step(tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(12):
            opt.zero_grad()
            loss_of(model).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 1e-3 * parameter.grad

    assert names(tmp_path, program) == set()


def test_a_gan_with_detach_is_fine_and_without_it_the_leak_is_found(tmp_path: Path) -> None:
    def program(detached: bool, cleared: bool = False) -> None:
        torch.manual_seed(0)
        generator, critic = nn.Linear(4, 4), net()
        opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
        opt_d = torch.optim.Adam(critic.parameters(), lr=1e-3)
        for _ in range(8):
            opt_g.zero_grad()
            opt_d.zero_grad()
            fake = generator(torch.randn(16, 4))
            seen = fake.detach() if detached else fake
            (critic(seen).mean() - critic(torch.randn(16, 4)).mean()).backward()
            opt_d.step()
            if cleared:
                opt_g.zero_grad()
            (-critic(generator(torch.randn(16, 4))).mean()).backward()
            opt_g.step()

    assert names(tmp_path / "detached", lambda: program(True)) == set()
    assert names(tmp_path / "cleared", lambda: program(False, cleared=True)) == set()
    finding = loud(tmp_path / "leaking", lambda: program(False))["missing_detach"]
    assert finding.evidence["optimizer"] == "opt_g"
    assert finding.evidence["loss_belongs_to"] == "opt_d"


def test_every_finder_runs_on_an_empty_trace(tmp_path: Path) -> None:
    assert judged(tmp_path, lambda: None).diagnoses == ()
