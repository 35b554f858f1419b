"""A torch model under a session: same results, parts fed by themselves, hooks on its layers, nothing left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from neuraldbg.debug import (
    Comparison,
    ConvergenceStatus,
    DebugSession,
    HookAction,
    HookBuilder,
    HookCondition,
    HookContext,
    HookTrigger,
    LayerHealth,
    debug_session,
)
from neuraldbg.errors import UsageError
from neuraldbg.trace import open_trace

Make = Callable[..., DebugSession]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(torch.relu(self.attention(x)))


def model_of() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), Block(), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 1))


def train(model: nn.Module, steps: int = 30, each: Callable[[], None] = lambda: None) -> list[float]:
    torch.manual_seed(2)
    inputs = torch.randn(64, 4)
    targets = inputs.sum(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        each()
    return losses


def watching(trigger: HookTrigger, *patterns: str) -> tuple[Any, list[HookContext]]:
    seen: list[HookContext] = []
    builder = HookBuilder("watching").trigger(trigger).action(HookAction.CustomCallback(seen.append))
    return (builder.layer_patterns(patterns) if patterns else builder).build(), seen


def every_action(folder: Any) -> list[Any]:
    both = HookTrigger.EveryNSteps(1)
    actions = [HookAction.InspectTensor(distribution=True), HookAction.TrackGradients, HookAction.RecordActivations]
    actions += [HookAction.SaveSnapshot(folder), HookAction.Alert("seen"), HookAction.CustomCallback(lambda _: None)]
    return [HookBuilder(str(one)).trigger(both).action(one).build() for one in actions]


def test_results_are_the_same_bit_for_bit_with_every_action_on_every_layer(make_session: Make, tmp_path: Any) -> None:
    bare, watched = model_of(), model_of()
    alone = train(bare)
    session = make_session(max_alerts=10).start(watched)
    for hook in every_action(tmp_path / "shots"):
        session.hooks.register_hook(hook)
    assert train(watched) == alone
    session.stop()
    for one, other in zip(bare.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_gradients_and_diagnostics_are_fed_by_themselves(make_session: Make) -> None:
    model = model_of()
    session = make_session(budget="full").attach(model)
    losses = train(model, 80)
    architecture = session.model_diagnostics.architecture
    assert architecture is not None
    assert architecture.total_parameters == sum(one.numel() for one in model.parameters())
    assert [one.loss for one in session.model_diagnostics.history] == pytest.approx(losses)
    assert session.model_diagnostics.history[-1].learning_rate == 0.02
    analysis = session.gradient_debugger.analyze_gradient_flow()
    assert set(analysis.layers) == {"0", "1.attention", "2", "4"}
    assert analysis.overall_health is LayerHealth.Healthy
    assert len(session.gradient_debugger.get_flow("0")) == 80
    report = session.stop()
    assert report.diagnostics is not None
    status = report.diagnostics.dynamics.convergence_status
    assert status in (ConvergenceStatus.Converging, ConvergenceStatus.Converged)
    assert len(session.gradient_debugger.get_flow("0")) == 80
    assert report.verdict.state in ("healthy", "undecided")
    assert report.summary()["total_issues"] == 0


def test_a_broken_training_is_named(make_session: Make) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    session = make_session(budget="full").attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
    summary = session.stop().summary()
    assert summary["critical_issues"] > 0
    assert summary["recommendations"]


def test_hooks_act_on_the_layers_they_name_forward_and_backward(make_session: Make) -> None:
    model = model_of()
    session = make_session().attach(model)
    forward, seen_forward = watching(HookTrigger.EveryForward, "attention", "^4$")
    backward, seen_backward = watching(HookTrigger.EveryBackward, "attention")
    block, seen_block = watching(HookTrigger.EveryForward, "^1$")
    session.hooks.register_hook(forward)
    session.hooks.register_hook(backward)
    session.hooks.register_hook(block)
    everything, seen_everything = watching(HookTrigger.EveryForward)
    session.hooks.register_hook(everything)
    train(model, 3)
    assert [one.layer for one in seen_forward] == ["1.attention", "4"] * 3
    assert [(one.layer, one.step) for one in seen_backward] == [("1.attention", step) for step in range(3)]
    assert [tuple(one.data.shape) for one in seen_block] == [(64, 8)] * 3
    assert [one.layer for one in seen_everything[:6]] == ["0", "1.attention", "1.drop", "2", "3", "4"]
    assert not any(one.data.requires_grad for one in (*seen_forward, *seen_backward))


def test_gradients_that_hooks_track_are_those_of_the_backward(make_session: Make) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    session = make_session().attach(model)
    session.hooks.register_hook(
        HookBuilder("g")
        .trigger(HookTrigger.EveryBackward)
        .action(HookAction.InspectTensor)
        .layer_patterns(["^0$"])
        .build()
    )
    inputs = torch.randn(5, 4)
    hidden = model[0](inputs).detach().requires_grad_()
    expected = torch.autograd.grad(model[1](hidden).sum(), hidden)[0]
    model(inputs).sum().backward()
    info = session.tensor_inspector.get_tensors(layer="0")[-1]
    assert info.stats.l2_norm == pytest.approx(float(expected.norm()))
    assert info.operation == "gradient"


def test_conditions_see_the_loss_of_the_training(make_session: Make) -> None:
    model = model_of()
    session = make_session().attach(model)
    hook, seen = watching(HookTrigger.Conditional(HookCondition.LossThreshold(1.0, Comparison.Less)), "^0$")
    session.hooks.register_hook(hook)
    losses = train(model, 60)
    first = next(step for step, loss in enumerate(losses) if loss < 1.0)
    assert first > 0
    assert seen
    assert all(one.loss is not None and one.loss < 1.0 for one in seen)
    assert min(one.step for one in seen) in (first, first + 1)


def test_other_models_of_the_process_are_left_alone(make_session: Make) -> None:
    model, other = model_of(), model_of()
    session = make_session().attach(model)
    hook, seen = watching(HookTrigger.EveryForward)
    session.hooks.register_hook(hook)
    train(other, 2)
    assert seen == []


def test_nothing_hangs_on_torch_before_a_hook_comes_and_after_it_is_used_up(make_session: Make) -> None:
    from torch.nn.modules import module

    model = model_of()
    session = make_session().attach(model)
    before = len(module._global_forward_hooks)
    builder = HookBuilder("twice").trigger(HookTrigger.EveryForward).action(HookAction.RecordActivations)
    session.hooks.register_hook(builder.layer_patterns(["^0$"]).max_executions(2).build())
    assert len(module._global_forward_hooks) == before + 1
    train(model, 3)
    assert len(module._global_forward_hooks) == before
    session.stop()
    assert len(module._global_forward_hooks) == before - 1


def test_a_callback_that_fails_never_reaches_the_training(make_session: Make, caplog: pytest.LogCaptureFixture) -> None:
    model = model_of()
    alone = train(copy.deepcopy(model), 4)
    session = make_session().attach(model)
    for trigger in (HookTrigger.EveryForward, HookTrigger.EveryBackward):
        failing = HookAction.CustomCallback(lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
        session.hooks.register_hook(HookBuilder(str(trigger)).trigger(trigger).action(failing).build())
    assert train(model, 4) == alone
    assert caplog.text.count("acts no more") == 2


def test_a_pause_at_a_layer_holds_the_training(make_session: Make) -> None:
    model = model_of()
    session = make_session().attach(model)
    held: list[tuple[str, int]] = []
    session.on_pause(lambda context: held.append((context.layer, context.step)))
    builder = HookBuilder("stop").trigger(HookTrigger.EveryNSteps(2)).action(HookAction.PauseTraining)
    session.hooks.register_hook(builder.layer_patterns(["^4$"]).build())
    train(model, 4)
    assert held == [("4", 0), ("4", 0), ("4", 2), ("4", 2)]


def test_a_pause_is_asked_of_whoever_sits_at_the_prompt(make_session: Make) -> None:
    model = model_of()
    session = make_session().attach(model)
    asked: list[str] = []
    assert session._watched is not None
    gate = session._watched.dbg._gate

    def prompt(gate: Any, stop: Any, reasons: list[str]) -> None:
        asked.append(f"{stop.layer}: {reasons[0]}")
        gate.resume()

    gate.prompt = prompt
    builder = HookBuilder("stop").trigger(HookTrigger.Once).action(HookAction.PauseTraining)
    session.hooks.register_hook(builder.layer_patterns(["^0$"]).max_executions(1).build())
    train(model, 3)
    assert len(asked) == 1
    assert "hook 'stop' at 0" in asked[0]


def test_what_hooks_saw_and_what_was_watched_is_one_run(make_session: Make) -> None:
    model = model_of()
    session = debug_session(model, output_dir=make_session().config.output_dir, alert_log=False)
    builder = HookBuilder("look").trigger(HookTrigger.EveryForward).action(HookAction.InspectTensor)
    session.hooks.register_hook(builder.layer_patterns(["attention"]).build())
    train(model, 40)
    session.profiler.start_timer("evaluation")
    session.profiler.end_timer("evaluation")
    directory = session.stop().run_dir
    assert directory is not None
    with open_trace(directory) as trace:
        assert trace.ranks == [0]
        assert len({int(step) for step in trace.history("1.attention", kind="activation").steps}) == 40
        assert len([site for site in trace.sites if site.path == "1.attention"]) == 1
        assert len(trace.history("loss", kind="scalar")) == 40
        assert trace.run.ended


def test_a_model_comes_first_and_once(make_session: Make) -> None:
    session = make_session()
    session.gradient_debugger.record_gradient_norm("a", 1.0)
    with pytest.raises(UsageError, match="something was recorded already"):
        session.attach(model_of())
    other = make_session().attach(model_of())
    with pytest.raises(UsageError, match="a model is attached already"):
        other.attach(model_of())


def test_an_exception_of_the_loop_passes_on_and_ends_the_run(make_session: Make) -> None:
    session = make_session()
    model = model_of()
    session.attach(model)
    with pytest.raises(ZeroDivisionError), session:
        train(model, 2, each=lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    directory = session.stop().run_dir
    assert directory is not None
    with open_trace(directory) as trace:
        assert trace.run.error is not None
        assert trace.run.error.startswith("ZeroDivisionError")


def test_looks_of_hooks_are_the_same_by_the_short_way_and_by_the_long(make_session: Make) -> None:
    model = model_of()
    session = make_session().attach(model)
    looks = HookBuilder("look").trigger(HookTrigger.EveryForward).action(HookAction.InspectTensor)
    number = session.hooks.register_hook(looks.layer_patterns(["^0$", "^2$"]).build())
    conditional = HookBuilder("long").trigger(HookTrigger.EveryForward).action(HookAction.InspectTensor)
    session.hooks.register_hook(conditional.condition(HookCondition.StepRange(0, 99)).layer_patterns(["^2$"]).build())
    assert session.hooks.only_inspected("0")
    assert not session.hooks.only_inspected("2")
    seen: list[torch.Tensor] = []
    handle = model[0].register_forward_hook(lambda _, __, output: seen.append(output.detach().clone()))
    train(model, 3)
    handle.remove()
    short = session.tensor_inspector.get_tensors(layer="0")
    assert [one.step for one in short] == [0, 1, 2]
    for info, tensor in zip(short, seen, strict=True):
        other = session.tensor_inspector.get_tensor_info(
            session.tensor_inspector.inspect_tensor(tensor, "again", distribution=False)
        )
        assert other is not None
        assert info.stats.to_dict() == other.stats.to_dict()
        assert info.distribution is not None
        assert other.distribution is not None
        assert info.distribution.to_dict() == other.distribution.to_dict()
    assert [one.step for one in session.tensor_inspector.get_tensors(layer="2")] == [0, 1, 2]
    stats = session.hooks.get_hook_stats(number)
    assert (stats.total_executions, stats.last_execution_step) == (6, 2)
    assert stats.total_execution_time_ms > 0


def test_a_nan_that_a_hook_sees_is_an_alert_at_once(make_session: Make) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    session = make_session().attach(model)
    hook = HookBuilder("look").trigger(HookTrigger.EveryForward).action(HookAction.InspectTensor).build()
    session.hooks.register_hook(hook)
    model(torch.tensor([[1.0, float("nan")]]))
    assert session.alerts.critical == 2
    assert [one.kind for one in session.alerts] == ["NaNValues", "NaNValues"]


def test_histograms_of_hooks_that_only_inspect_come_in_the_first_steps_and_every_eighth(make_session: Make) -> None:
    model = model_of()
    session = make_session().attach(model)
    hook = HookBuilder("look").trigger(HookTrigger.EveryForward).action(HookAction.InspectTensor)
    session.hooks.register_hook(hook.layer_patterns(["^0$"]).build())
    train(model, 33)
    looks = session.tensor_inspector.get_tensors(layer="0")
    assert len(looks) == 33
    assert all(one.stats.mean is not None and one.stats.l2_norm is not None for one in looks)
    with_histogram = [one.step for one in looks if one.distribution is not None and one.distribution.histogram]
    assert with_histogram == [*range(20), 24, 32]
    assert [one.step for one in looks if one.stats.l1_norm is not None] == with_histogram
