"""At the first NaN or Inf the operation, the layer and the line are named, and the training never notices."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from nan_programs import EXPLODING, PROGRAMS, Program
from torch import nn
from torch.fx import traceback as fx_traceback
from watching import facts, watching

from neuraldbg.errors import StoppedOnNaN

SLOWEST_S = 5.0  # far above what it takes (under 0.1 s), so that a busy machine does not fail the test


@pytest.fixture(autouse=True)
def _no_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run is asked at its end takes a second and is tested elsewhere."""
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.MOST_SECONDS", 0.0)


def search(program: Program, folder: Path, **options: Any) -> dict[str, Any]:
    """The first origin that a watched run of a program wrote down."""
    with watching(folder, **{"budget": 0.01, **options}):
        program.run(folder)
    found = facts(folder, "origin")
    assert found, "no origin was written"
    first: dict[str, Any] = found[0]
    return first


@pytest.mark.parametrize("name", PROGRAMS)
def test_operation_layer_and_line_are_right(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    origin = search(program, tmp_path)
    assert (origin["where"], origin["op"], origin["update"]) == (program.where, program.op, program.update)
    assert (origin["layer"] if origin["where"] != "loss" else None) == program.layer
    if program.line is not None:
        assert origin["source"] == f"train.py:{program.line}"
    assert origin["seconds"] < SLOWEST_S
    assert not origin["diverging"]


@pytest.mark.parametrize("name", ["log of zero in the loss", "sqrt at zero in the loss, backward", "exp overflow"])
def test_an_armed_run_sees_it_in_the_script_itself(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    origin = search(program, tmp_path, arm_step=program.update)
    assert (origin["method"], origin["op"]) == ("armed", program.op)
    assert origin["source"] == f"train.py:{program.line}"
    assert not torch._C._len_torch_dispatch_stack()


def test_a_run_armed_in_vain_is_left_as_it_was(tmp_path: Path) -> None:
    with watching(tmp_path, arm_step=0):
        _train(nn.Linear(8, 1))
    assert not torch._C._len_torch_dispatch_stack()
    assert facts(tmp_path, "origin") == []


def test_what_the_operation_was_fed_is_told(tmp_path: Path) -> None:
    origin = search(PROGRAMS["0/0 in one row"], tmp_path)
    assert origin["inputs"][-1]["zeros"] == 1
    assert origin["inputs_finite"]
    assert [link["op"] for link in origin["chain"]] == ["div", "addmm", "relu", "addmm"]
    kept = torch.load(origin["saved_batch"])
    assert any(tensor.shape == (32, 8) for tensor in kept.values())


def test_an_overflow_of_half_precision_is_computed_again_in_float32(tmp_path: Path) -> None:
    origin = search(PROGRAMS["float16 overflow"], tmp_path)
    assert origin["in_float32"]["inf"] == 0
    assert origin["in_float32"]["max"] > 65504


def test_a_mask_is_followed_to_the_softmax(tmp_path: Path) -> None:
    origin = search(PROGRAMS["fully masked attention row"], tmp_path)
    assert [link["op"] for link in origin["chain"]][:2] == ["masked_fill", "_softmax"]
    assert origin["inputs"][0]["neg_inf_rows"] == 4


def test_a_run_whose_weights_ran_away_says_so(tmp_path: Path) -> None:
    origin = search(EXPLODING, tmp_path)
    assert origin["diverging"]
    assert origin["inputs_finite"]
    assert origin["largest_input"] > 1e10


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_training_stays_bit_identical(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    plain = _state(program.run(tmp_path))
    with watching(tmp_path, budget=0.01):
        watched = _state(program.run(tmp_path))
    assert plain.keys() == watched.keys()
    for key, value in plain.items():
        assert torch.equal(value.view(torch.uint8), watched[key].view(torch.uint8)), key


def _state(scope: dict[str, Any]) -> dict[str, torch.Tensor]:
    model = scope["model"]
    gradients = {f"grad {name}": p.grad for name, p in model.named_parameters()}
    return {**model.state_dict(), **gradients, "rng": torch.get_rng_state()}


# -- legitimate infinities -------------------------------------------------------------------------------------------


def _train(model: nn.Module, steps: int = 4) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 1)).backward()
        optimizer.step()


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = self.lin(x).masked_fill(x < 0, float("-inf"))
        score = torch.where((x < 0).all(1, keepdim=True), torch.zeros_like(score), score)
        return self.head(torch.softmax(score, -1))


def test_masks_are_no_finding(tmp_path: Path) -> None:
    with watching(tmp_path):
        _train(Masked())
    assert facts(tmp_path, "origin") == []


def test_updates_that_a_scaler_skips_are_no_finding(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
        for _ in range(6):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(4, 8)).pow(2).mean() * 1000).backward()
            scaler.step(optimizer)
            scaler.update()
    assert facts(tmp_path, "origin") == []


# -- where a pass cannot be run again --------------------------------------------------------------------------------


class Logs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        self.calls: list[int] = []
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.calls.append(self.count)
        return self.head(torch.log(torch.relu(self.lin(x))))


def test_a_model_with_hooks_of_its_own_is_not_run_again(tmp_path: Path) -> None:
    model, seen = Logs(), []
    model.lin.register_forward_hook(lambda *_: seen.append(1))
    with watching(tmp_path):
        _train(model, steps=1)
    assert len(seen) == 1
    (origin,) = facts(tmp_path, "origin")
    assert (origin["method"], origin["op"]) == ("graph", "log")
    assert origin["not_replayed"] == "the model has hooks of its own"
    assert origin["inputs"][0]["zeros"] > 0


def test_what_a_forward_writes_to_its_module_is_put_back(tmp_path: Path) -> None:
    model = Logs()
    with watching(tmp_path):
        _train(model, steps=1)
    assert (model.count, model.calls) == (1, [1])
    assert facts(tmp_path, "origin")[0]["method"] == "replay"


def test_autograd_keeps_the_users_lines_and_torch_its_own_way(tmp_path: Path) -> None:
    """Of the first updates: what a node keeps is written by the user's frames alone, and nothing stays replaced."""
    usual, kept = fx_traceback.format_stack, []
    with watching(tmp_path, budget=0.01):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            loss = (model(torch.ones(2, 4)) - 1).square().mean()
            assert loss.grad_fn is not None
            kept.append(loss.grad_fn.metadata.get("traceback_"))
            loss.backward()
            assert fx_traceback.format_stack is usual
            optimizer.step()
    here = test_autograd_keeps_the_users_lines_and_torch_its_own_way.__code__
    line = here.co_firstlineno + 7
    assert all(f'File "{here.co_filename}", line {line}, in {here.co_name}' in one[-1] for one in kept[:3])
    assert kept[3:] == [None, None]
    assert not any("torch" + os.sep in text or "neuraldbg" + os.sep in text for one in kept[:3] for text in one)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("how", ["set", "context", "plain"])
def test_a_scripts_own_anomaly_mode_is_on_while_it_wants_it_and_off_afterwards(tmp_path: Path, how: str) -> None:
    """Where it begins autograd keeps lines for us; what it puts back is what was there before we came."""
    mode, seen = {"set": lambda: torch.autograd.set_detect_anomaly(True), "context": torch.autograd.detect_anomaly}, []
    with watching(tmp_path, budget=0.01):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            loss = model(torch.ones(2, 4)).square().mean()
            if how == "plain":
                torch.set_anomaly_enabled(True)
            with mode.get(how, nullcontext)():
                loss.register_hook(
                    lambda _: seen.append((torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()))
                )
                loss.backward()
            if how == "plain":
                torch.set_anomaly_enabled(False)
            optimizer.step()
            assert (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) == (False, True)
    assert seen == 5 * [(True, True)]


def test_only_the_first_origin_is_looked_for(tmp_path: Path) -> None:
    with watching(tmp_path):
        _train(Logs(), steps=6)
    assert len(facts(tmp_path, "origin")) == 1


# -- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log of zero in the model", "sqrt at zero in the model, backward"])
def test_a_run_stops_before_the_weights_are_touched(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    scope: dict[str, Any] = {}
    with watching(tmp_path, budget=0.01, stop_on_nan=True), pytest.raises(StoppedOnNaN, match="update") as caught:
        program.run(tmp_path, scope)
    assert caught.value.step == program.update
    assert all(bool(torch.isfinite(p).all()) for p in scope["model"].parameters())
    assert facts(tmp_path, "origin")[0]["op"] == program.op
