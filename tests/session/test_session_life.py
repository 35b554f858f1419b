"""When gradients are called ill, what a session watches, and that it leaves no trace but the recorded run."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neuraldbg
from neuraldbg import NeuralDbg


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def sigmoid_net(depth: int = 30) -> nn.Sequential:
    """Default initialisation: each sigmoid takes away at least three quarters of the gradient."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(16, 16), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(16, 1))


def run(model: nn.Module, count: int, *, lr: float = 0.01, momentum: float = 0.0, width: int = 16) -> Any:
    """Yields after every update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    for step in range(count):
        x = torch.randn(32, width)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        yield step


# -- vanishing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("captured", [True, False])
def test_thirty_sigmoids_vanish_from_the_first_step_on(captured: bool) -> None:
    model = sigmoid_net()
    with NeuralDbg(model, budget="full") as dbg:
        for _ in run(model, 5):
            if captured:
                dbg.capture_step()
            assert dbg.has_vanishing_gradients()
            assert not dbg.has_exploding_gradients()
        health = dbg.analyze_gradient_health()
        causes = dbg.explain_failure("vanishing_gradients")
    assert "0" in health.vanishing_layers
    assert "60" not in health.vanishing_layers, "the last layer is well"
    assert health.layers["0"].first_bad_step == 0
    assert health.overall in ("warning", "critical")
    assert health.recommendations
    assert causes[0].evidence["kind"] == "saturating_activation"
    assert causes[0].evidence["step"] == 0
    assert 0.0 < causes[0].evidence["gradient_factor_per_layer"] < 0.5
    assert dbg.get_root_causes()[0].description == causes[0].description


def test_a_gradient_of_1e_minus_27_is_vanishing_and_not_dead() -> None:
    """Tiny and not zero: its square must not be lost on the way."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1))
    with torch.no_grad():
        model[1].weight.mul_(1e-26)
    with NeuralDbg(model, budget="full") as dbg:
        for _ in run(model, 1):
            assert model[0].weight.grad.abs().max() > 1e-30, "else this test asks nothing"
            assert dbg.has_vanishing_gradients()
        health = dbg.analyze_gradient_health()
    assert health.dead_layers == ()
    assert health.layers["0"].status == "vanishing"
    assert health.layers["0"].norm > 0


@pytest.mark.parametrize("captured", [True, False])
def test_a_loop_that_ends_with_zero_grad_is_judged_all_the_same(captured: bool) -> None:
    """`optimizer.step(); optimizer.zero_grad()` is the other common order: the gradients are gone when we are asked."""
    model = sigmoid_net()
    with NeuralDbg(model, budget="full") as dbg:
        for _ in run(model, 3):
            model.zero_grad()
            if captured:
                assert dbg.capture_step().grad_norm > 0
            assert dbg.has_vanishing_gradients()


HEALTHY = {
    "relu": lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)),
    "tanh, deep": lambda: nn.Sequential(
        *[m for _ in range(8) for m in (nn.Linear(16, 16), nn.Tanh())], nn.Linear(16, 1)
    ),
    "batch norm": lambda: nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 1)),
    "layer norm": lambda: nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 1)),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_net_raises_no_alarm_in_200_steps(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    model = HEALTHY[kind]()
    with NeuralDbg(model, budget="1%") as dbg:
        for step in run(model, 200):
            dbg.capture_step(step)
            assert not dbg.has_vanishing_gradients(), step
            assert not dbg.has_exploding_gradients(), step
        assert dbg.analyze_gradient_health().overall == "healthy"
        assert dbg.explain_failure() == []


def test_the_users_own_threshold_counts_instead() -> None:
    model = HEALTHY["relu"]()
    with NeuralDbg(model, threshold_vanishing=1e9, threshold_exploding=1e-9, budget="full") as dbg:
        for _ in run(model, 2):
            assert dbg.has_vanishing_gradients()
            assert dbg.has_exploding_gradients()
            assert not dbg.has_vanishing_gradients(threshold=1e-12)
            assert not dbg.has_exploding_gradients(threshold=1e12)


# -- exploding ---------------------------------------------------------------------------------------------------------


def test_a_nan_is_an_explosion_and_is_placed_in_time() -> None:
    model = HEALTHY["relu"]()
    with NeuralDbg(model, budget="full") as dbg:
        for step in run(model, 12):
            assert dbg.has_exploding_gradients() == (step > 6)
            if step == 6:
                with torch.no_grad():
                    model[2].weight[0, 0] = float("nan")
        health = dbg.analyze_gradient_health()
        causes = dbg.explain_failure("exploding_gradients")
    assert "2" in health.nan_layers
    assert health.layers["2"].first_bad_step == 7
    assert health.layers["2"].norm is None, "a norm of NaN is not a number"
    assert health.overall == "critical"
    assert causes
    assert causes[0].evidence["step"] == 7


def test_a_learning_rate_far_too_high_explodes() -> None:
    model = HEALTHY["relu"]()
    with NeuralDbg(model, budget="full") as dbg:
        seen = [dbg.has_exploding_gradients() for _ in run(model, 40, lr=3.0, momentum=0.9)]
    assert any(seen)


def test_one_wild_batch_is_noticed_and_forgotten_again() -> None:
    model = HEALTHY["relu"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    alarms = []
    with NeuralDbg(model, budget="full") as dbg:
        for step in range(20):
            x = torch.randn(32, 16) * (1e4 if step == 10 else 1)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            dbg.capture_step(step)
            alarms += [step] if dbg.has_exploding_gradients() else []
    assert alarms == [10]


# -- what is watched ---------------------------------------------------------------------------------------------------


def test_without_a_model_everything_is_watched() -> None:
    first, second = nn.Linear(16, 1), HEALTHY["relu"]()
    with NeuralDbg(budget="full") as dbg:
        list(run(first, 2))
        list(run(second, 3))
        assert {fact["name"] for fact in dbg.trace.facts("model")} == {"first", "second"}
        assert dbg.step == 5
        assert dbg.get_gradient_history("second.2").steps == [2, 3, 4]


def test_with_a_model_others_are_ignored() -> None:
    mine, other = HEALTHY["relu"](), nn.Linear(16, 1)
    with NeuralDbg(mine, budget="full") as dbg:
        list(run(mine, 2))
        list(run(other, 7))
        assert dbg.step == 2
        assert {event.layer_name for event in dbg.events} <= {"0", "1", "2", "3", "4", "mine"}
        assert len(dbg.trace.facts("model")) == 1


def test_a_part_of_a_larger_model_may_be_asked_for_in_its_wrapper() -> None:
    inner = HEALTHY["relu"]()
    with NeuralDbg(nn.DataParallel(inner), budget="full") as dbg:
        list(run(inner, 2))
        assert dbg.step == 2


def test_a_part_of_the_model_that_is_called_by_itself_is_seen() -> None:
    """`model.encode(x)` in a loop of one's own, with a model that was made before the session, as it always is."""
    model = HEALTHY["relu"]()
    with NeuralDbg(model, budget="full") as dbg:
        model[4](model[3](model[2](torch.randn(4, 32)))).sum().backward()
        assert dbg.inspect_layer("2").type == "Linear"
        assert {event.layer_name for event in dbg.events} == {"2", "3", "4"}


def test_a_filter_of_layers_keeps_the_rest_out() -> None:
    model = HEALTHY["relu"]()
    with NeuralDbg(model, budget="full", layers="2") as dbg:
        list(run(model, 2))
        assert {event.layer_name for event in dbg.events} <= {"2", "model"}


def test_two_sessions_at_once_do_not_meet(tmp_path: Path) -> None:
    one, other = HEALTHY["relu"](), HEALTHY["batch norm"]()
    with NeuralDbg(one, budget="full") as first, NeuralDbg(other, budget="full") as second:
        list(run(one, 2))
        list(run(other, 3))
        assert (first.step, second.step) == (2, 3)
        assert first.run_dir != second.run_dir


# -- life --------------------------------------------------------------------------------------------------------------


def test_after_close_the_past_can_still_be_asked() -> None:
    model = HEALTHY["relu"]()
    with NeuralDbg(model, budget="full") as dbg:
        for step in run(model, 6):
            dbg.capture_step(step)
    list(run(model, 5))
    assert dbg.step == 6
    assert dbg.get_gradient_history("0").steps == [0, 1, 2, 3, 4, 5]
    assert dbg.inspect_layer("4").health == "healthy"
    assert dbg.inspect("0", step=3).tensor.shape == (32, 32)
    assert dbg.analyze_gradient_health().overall == "healthy"
    assert dbg.diagnose().headline
    assert dbg.explain_failure() == []
    assert not dbg.has_vanishing_gradients()
    dbg.close()


def test_an_exception_in_the_block_closes_and_passes_through() -> None:
    model = HEALTHY["relu"]()
    dbg = NeuralDbg(model)

    def fails() -> None:
        with dbg:
            list(run(model, 2))
            raise ValueError("user")

    with pytest.raises(ValueError, match="user"):
        fails()
    assert dbg.trace.ended


def test_start_and_close_work_without_with_and_more_than_once() -> None:
    model = HEALTHY["relu"]()
    dbg = NeuralDbg(model).start()
    assert dbg.start() is dbg
    list(run(model, 2))
    dbg.close()
    dbg.close()
    assert dbg.step == 2


def test_watch_is_the_same_without_with() -> None:
    model = HEALTHY["relu"]()
    optimizer = torch.optim.Adam(model.parameters())
    dbg = neuraldbg.watch(model, optimizer, budget="full")
    try:
        list(run(model, 3))
        assert dbg.step == 3
        assert dbg.get_gradient_history("0").steps == [0, 1, 2]
    finally:
        dbg.close()


@pytest.mark.parametrize("session_kept", [False, True])
def test_a_closed_session_does_not_keep_the_model_alive(session_kept: bool) -> None:
    def used() -> tuple[weakref.ref[nn.Module], NeuralDbg]:
        model = HEALTHY["relu"]()
        with NeuralDbg(model, budget="full") as dbg:
            list(run(model, 2))
        return weakref.ref(model), dbg

    model, dbg = used()
    if not session_kept:
        del dbg
    gc.collect()
    assert model() is None


def test_results_are_the_same_with_and_without() -> None:
    def weights(watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 1))
        if watched:
            with NeuralDbg(model) as dbg:
                for step in run(model, 30):
                    dbg.capture_step(step)
                    dbg.has_vanishing_gradients()
        else:
            list(run(model, 30))
        return list(model.state_dict().values())

    assert all(torch.equal(a, b) for a, b in zip(weights(True), weights(False), strict=True))


def test_a_session_that_does_not_record_still_answers() -> None:
    model = HEALTHY["relu"]()
    with NeuralDbg(model, record=False, budget="full") as dbg:
        list(run(model, 3))
        assert len(dbg.get_gradient_history("0")) == 3
