"""Every change does what it says to a training, and is undone when the arm is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from neuraldbg.capture.torch.patches import Patches
from neuraldbg.errors import UsageError
from neuraldbg.replay.changes import Place, changes, parse
from neuraldbg.replay.roots import Passes

F = nn.functional


@pytest.fixture
def make() -> Iterator[Callable[[str], None]]:
    """Make changes; all of them are undone at the end."""
    patches = Patches()
    place = Place(torch, patches, Passes(torch, patches))

    def apply(text: str) -> None:
        found, amount = parse(text)
        found.apply(place, amount)

    yield apply
    patches.close()


def line(lr: float = 0.1, **settings: Any) -> tuple[nn.Linear, torch.optim.SGD]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=lr, **settings)


def moved(model: nn.Module, optimizer: torch.optim.Optimizer, scale: float = 1.0) -> torch.Tensor:
    """How far one update moves the weights."""
    before = model.weight.detach().clone()  # type: ignore[union-attr, operator]
    optimizer.zero_grad()
    (model(torch.ones(2, 3)).sum() * scale).backward()
    optimizer.step()
    return model.weight.detach() - before  # type: ignore[return-value, operator]


def test_the_rate_is_multiplied_and_the_script_sees_its_own(make: Callable[[str], None]) -> None:
    plain = moved(*line())
    make("lr x0.5")
    model, optimizer = line()
    assert torch.allclose(moved(model, optimizer), plain * 0.5)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_schedule_goes_on_under_a_changed_rate(make: Callable[[str], None]) -> None:
    make("lr x0.5")
    model, optimizer = line()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    first = moved(model, optimizer)
    schedule.step()
    assert torch.allclose(moved(model, optimizer), first * 0.1)


def test_the_warm_up_rises_to_the_rate(make: Callable[[str], None]) -> None:
    plain = moved(*line())
    make("warmup 4")
    model, optimizer = line()
    shares = [float((moved(model, optimizer) / plain).mean()) for _ in range(6)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_settings_of_the_optimizer_are_set_for_the_step_only(make: Callable[[str], None]) -> None:
    make("momentum 0")
    make("weight_decay 0")
    model, optimizer = line(momentum=0.9, weight_decay=0.5)
    first, second = moved(model, optimizer), moved(model, optimizer)
    assert torch.allclose(first, second)
    assert optimizer.param_groups[0]["momentum"] == 0.9
    assert optimizer.param_groups[0]["weight_decay"] == 0.5


def test_adam_takes_its_first_beta_for_a_momentum(make: Callable[[str], None]) -> None:
    make("momentum 0.5")
    model, _ = line()
    optimizer = torch.optim.Adam(model.parameters())
    moved(model, optimizer)
    average = optimizer.state[model.weight]["exp_avg"]
    assert torch.allclose(average, model.weight.grad * 0.5)
    assert optimizer.param_groups[0]["betas"][0] == 0.9


def test_gradients_are_clipped_or_left_unclipped(make: Callable[[str], None]) -> None:
    make("clip 0.5")
    model, optimizer = line()
    optimizer.zero_grad()
    (model(torch.ones(2, 3)).sum() * 100).backward()
    optimizer.step()
    total = torch.sqrt(sum(each.grad.square().sum() for each in model.parameters()))
    assert float(total) == pytest.approx(0.5)


def test_a_clip_of_the_script_only_measures(make: Callable[[str], None]) -> None:
    make("clip_off")
    model, _ = line()
    model(torch.ones(2, 3)).sum().backward()
    before = model.weight.grad.clone()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1e-3)
    nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=1e-3)
    assert torch.equal(model.weight.grad, before)
    assert float(norm) == pytest.approx(float(torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))))


def test_an_accumulated_gradient_is_divided(make: Callable[[str], None]) -> None:
    plain = moved(*line())
    make("loss_over 4")
    assert torch.allclose(moved(*line()), plain / 4)


def test_an_update_far_outside_the_usual_is_left_out(make: Callable[[str], None]) -> None:
    make("skip_outliers")
    model, optimizer = line()
    for _ in range(6):
        assert moved(model, optimizer).abs().sum() > 0
    assert moved(model, optimizer, scale=1000.0).abs().sum() == 0
    assert moved(model, optimizer, scale=float("nan")).abs().sum() == 0
    assert moved(model, optimizer).abs().sum() > 0


def test_one_update_is_dropped(make: Callable[[str], None]) -> None:
    make("drop_batch 1")
    model, optimizer = line()
    assert [bool(moved(model, optimizer).abs().sum() > 0) for _ in range(3)] == [True, False, True]


def test_gradients_are_dropped_after_the_update(make: Callable[[str], None]) -> None:
    make("zero_after")
    model, optimizer = line()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert model.weight.grad is None


def test_a_zero_grad_in_the_wrong_place_waits_for_the_step(make: Callable[[str], None]) -> None:
    make("zero_order")
    model, optimizer = line()
    for _ in range(2):
        before = model.weight.detach().clone()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.zero_grad()
        optimizer.step()
        assert torch.allclose(model.weight.detach() - before, torch.full((1, 3), -0.2))


def test_a_softmax_too_many_is_undone(make: Callable[[str], None]) -> None:
    make("no_softmax")
    logits = torch.randn(5, 4, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 3, 0])
    right = -torch.log_softmax(logits, 1)[torch.arange(5), labels].mean()
    assert torch.allclose(F.cross_entropy(torch.softmax(logits, 1), labels), right)
    assert torch.allclose(nn.CrossEntropyLoss()(torch.softmax(logits, 1), labels), right)
    assert torch.allclose(F.cross_entropy(logits, labels), right)


def test_a_sigmoid_too_many_is_undone(make: Callable[[str], None]) -> None:
    make("no_sigmoid")
    logits = torch.randn(5, requires_grad=True)
    labels = torch.tensor([0.0, 1, 0, 1, 1])
    right = F.binary_cross_entropy_with_logits(logits, labels)
    assert torch.allclose(F.binary_cross_entropy_with_logits(torch.sigmoid(logits), labels), right, atol=1e-4)


def test_a_missing_log_softmax_is_put_in(make: Callable[[str], None]) -> None:
    make("log_softmax")
    logits = torch.randn(5, 4, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 3, 0])
    right = F.cross_entropy(logits, labels)
    assert torch.allclose(F.nll_loss(logits, labels), right)
    assert torch.allclose(F.nll_loss(torch.log_softmax(logits, 1), labels), right)


def test_inputs_are_standardised_by_the_first_batch(make: Callable[[str], None]) -> None:
    seen: list[torch.Tensor] = []
    model, _ = line()
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    make("standardise")
    batch = torch.randn(64, 3) * torch.tensor([1.0, 100.0, 0.0]) + torch.tensor([0.0, 50.0, 3.0])
    model(batch)
    model(batch + 1)
    assert torch.allclose(seen[0].mean(0), torch.zeros(3), atol=1e-4)
    assert torch.allclose(seen[0].std(0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4)
    assert float(seen[1].mean()) > 0


def test_layers_get_the_first_weights_that_torch_gives(make: Callable[[str], None]) -> None:
    make("reinit")
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 1))
    for each in model.parameters():
        nn.init.zeros_(each)
    model(torch.randn(2, 4))
    assert all(bool(each.abs().sum() > 0) for each in model.parameters())


def test_dropout_is_off_and_comes_back() -> None:
    patches = Patches()
    place = Place(torch, patches, Passes(torch, patches))
    changes()["dropout_off"].apply(place, None)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))
    batch = torch.randn(8, 4)
    assert torch.equal(model(batch), model(batch))
    patches.close()
    assert model[1].p == 0.9


def test_a_frozen_model_is_trained_also_where_no_optimizer_holds_it(make: Callable[[str], None]) -> None:
    make("unfreeze")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1, momentum=0.9)
    before = model[0].weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert not torch.equal(before, model[0].weight)


def test_a_model_in_eval_mode_is_put_into_training_mode(make: Callable[[str], None]) -> None:
    make("train_mode")
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    model(torch.ones(2, 4))
    assert model.training
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 4))
    assert not model.training


@pytest.mark.parametrize("last", [True, False])
def test_inner_activations_become_relu_and_the_last_one_stays(make: Callable[[str], None], last: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.Tanh()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.two(torch.sigmoid(self.act(self.one(x))))
            return torch.sigmoid(x) if last else x

    make("relu")
    net, batch = Net(), torch.randn(8, 4)
    first = net(batch)
    later = net(batch)
    right = net.two(torch.relu(torch.relu(net.one(batch))))
    assert not torch.allclose(first, later)
    assert torch.allclose(later, 1 / (1 + torch.exp(-right)) if last else right, atol=1e-6)


def test_one_inner_activation_alone_becomes_relu(make: Callable[[str], None]) -> None:
    make("relu_at 2")
    net, batch = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sigmoid(), nn.Linear(4, 4)), torch.randn(8, 4)
    net(batch)
    right = net[3](torch.relu(net[1](net[0](batch))))
    assert torch.allclose(net(batch), right, atol=1e-6)


def test_half_precision_is_not_used(make: Callable[[str], None]) -> None:
    make("fp32")
    model = nn.Linear(4, 4).half()
    assert model.weight.dtype is torch.float32
    assert nn.Linear(2, 2).to(torch.bfloat16).weight.dtype is torch.float32
    assert torch.ones(2).to(dtype=torch.float16).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(torch.ones(2, 4)).dtype is torch.float32


def test_changes_are_undone() -> None:
    before = {
        name: getattr(owner, name)
        for owner, name in ((torch, "sigmoid"), (F, "cross_entropy"), (nn.Module, "to"), (nn.Module, "zero_grad"))
    }
    patches = Patches()
    place = Place(torch, patches, Passes(torch, patches))
    for each in changes().values():
        each.apply(place, each.default)
    patches.close()
    assert before == {
        name: getattr(owner, name)
        for owner, name in ((torch, "sigmoid"), (F, "cross_entropy"), (nn.Module, "to"), (nn.Module, "zero_grad"))
    }
    assert torch.allclose(moved(*line()), moved(*line()))


@pytest.mark.parametrize("text", ["", "lr xx", "lrr x0.1", "fp32 3", "clip 1 2", "lr x1e", "; import os"])
def test_what_is_no_change_is_refused_with_the_nearest_name(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_every_change_is_read_back_from_how_it_is_written() -> None:
    for name, each in changes().items():
        found, amount = parse(each.text())
        assert found.name == name
        assert amount == each.default
