"""The ledger holds every call of a training loop in the order it was made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from watching import calls, facts, net, trace_of, train, watching

from neuraldbg.records import Call

LOOP = [Call.ZERO_GRAD, Call.PASS, Call.BACKWARD, Call.PASS_TRAIN, Call.STEP]


def test_an_ordinary_loop_reads_as_it_was_written(tmp_path: Path) -> None:
    with watching(tmp_path):
        train(net(), 3)
    assert [call for call in calls(tmp_path) if call is not Call.GRAD_STALE] == LOOP * 3


def test_a_scheduler_stands_between_the_calls_around_it(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            scheduler.step()
    found = [call for call in calls(tmp_path) if call in (Call.ZERO_GRAD, Call.STEP, Call.SCHEDULER)]
    assert found == [Call.ZERO_GRAD, Call.STEP, Call.SCHEDULER] * 2


@pytest.mark.parametrize("cleared", [True, False])
def test_gradients_left_over_from_the_last_update_are_seen(tmp_path: Path, cleared: bool) -> None:
    model = net()
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            if cleared:
                optimizer.zero_grad(set_to_none=False)
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    with trace_of(tmp_path) as trace:
        rows = trace.table("calls")
        stale = rows["value"][rows["call"] == _code(Call.GRAD_STALE)].tolist()
    assert stale == [0.0, 0.0] if cleared else [1.0, 1.0]


def _code(call: Call) -> int:
    from neuraldbg.trace.tables import CALL_CODE

    return CALL_CODE[call]


def test_loaded_states_and_inner_gradients_are_written_down(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        model.load_state_dict(model.state_dict())
        x = torch.randn(2, 4, requires_grad=True)
        torch.autograd.grad(model(x).sum(), x)
    assert {Call.LOAD_STATE, Call.AUTOGRAD_GRAD} <= set(calls(tmp_path))


def test_a_forward_repeated_by_checkpointing_is_no_pass(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False).sum()

    with watching(tmp_path):
        Net()(torch.randn(2, 4)).backward()
    found = calls(tmp_path)
    assert (found.count(Call.PASS), found.count(Call.PASS_RECOMPUTED)) == (1, 1)


def test_the_loss_of_a_scaled_backward_is_the_loss(tmp_path: Path) -> None:
    model, true = net(), []
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(2, 4)).pow(2).mean()
            true.append(loss.item())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    with trace_of(tmp_path) as trace:
        assert trace.history("loss", kind="scalar").value.tolist() == pytest.approx(true, rel=0)
    assert calls(tmp_path).count(Call.UNSCALE) == 3


def test_parameters_without_a_gradient_are_named(tmp_path: Path) -> None:
    with watching(tmp_path) as capture:
        model = nn.ModuleDict({"used": nn.Linear(4, 1), "idle": nn.Linear(4, 1)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model["used"](torch.randn(2, 4)).sum().backward()
        optimizer.step()
        sites = capture.core.recorder.sites
    (missing,) = facts(tmp_path, "missing_gradients")
    assert {sites[site].path for site in missing["parameter_sites"]} == {"idle.weight", "idle.bias"}


def test_an_optimizer_knows_its_parameters_also_when_its_model_is_called_later(tmp_path: Path) -> None:
    first, second = nn.Linear(4, 1), nn.Linear(4, 1)
    with watching(tmp_path):
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
        for model, optimizer in zip((first, second), optimizers, strict=True):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    last = {fact["site"]: fact for fact in facts(tmp_path, "optimizer")}
    assert [(len(fact["parameter_sites"]), fact["unknown_parameters"]) for fact in last.values()] == [(2, 0), (2, 0)]


def test_accumulation_is_what_most_updates_had(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for backwards in (4, 4, 4, 1):
            for _ in range(backwards):
                model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    (fact,) = facts(tmp_path, "accumulation")
    assert fact["backwards_per_update"] == 4
    assert fact["updates_by_backwards"] == {"4": 3, "1": 1}


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_reentrant_checkpointing_hides_is_said_once(tmp_path: Path, reentrant: bool) -> None:
    with watching(tmp_path):
        model = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)])
        whole = nn.Sequential(*model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            whole[2](checkpoint(whole[1], whole[0](torch.randn(8, 4)), use_reentrant=reentrant)).sum().backward()
            optimizer.step()
    said = [one["text"] for one in facts(tmp_path, "note") if "use_reentrant=True" in one["text"]]
    assert len(said) == int(reentrant)
