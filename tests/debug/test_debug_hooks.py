"""Debugging hooks by hand: triggers, conditions that are really evaluated, actions that really act, statistics."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from neuraldbg.debug import (
    AlertSeverity,
    Comparison,
    DebugSession,
    Hook,
    HookAction,
    HookBuilder,
    HookCondition,
    HookContext,
    HookResult,
    HookTrigger,
    ModelPerformanceMetrics,
)
from neuraldbg.errors import ConfigError, UsageError
from neuraldbg.trace import open_trace

Make = Callable[..., DebugSession]
Kinds = list[str]


def counting(name: str = "counting") -> tuple[HookBuilder, list[HookContext]]:
    seen: list[HookContext] = []
    return HookBuilder(name).action(HookAction.CustomCallback(seen.append)), seen


def kinds(results: list[tuple[int, HookResult]]) -> Kinds:
    return [result.kind for _, result in results]


def test_the_hook_of_the_original_example(session: DebugSession) -> None:
    hook = (
        HookBuilder("Layer Monitor")
        .trigger(HookTrigger.EveryForward)
        .action(HookAction.InspectTensor)
        .layer_patterns(["attention.*"])
        .max_executions(100)
        .build()
    )
    number = session.hooks_mut().register_hook(hook)
    results = session.hooks_mut().execute_hooks("attention_layer_1", [1.0, 2.0, 3.0, 4.0], [2, 2], True, None)
    assert results == [(number, HookResult.Success)]
    info = session.tensor_inspector.get_tensors(layer="attention_layer_1")[0]
    assert (info.stats.shape, info.stats.mean, info.operation) == ((2, 2), 2.5, "forward")
    assert session.hooks.execute_hooks("mlp", [1.0]) == []


@pytest.mark.parametrize(
    ("trigger", "moments"),
    [
        (HookTrigger.EveryForward, ["0f", "1f", "2f", "3f"]),
        (HookTrigger.EveryBackward, ["0b", "1b", "2b", "3b"]),
        (HookTrigger.EveryNSteps(2), ["0f", "0b", "2f", "2b"]),
        (HookTrigger.Once, ["0f"]),
        (HookTrigger.Conditional(HookCondition.StepRange(1, 2)), ["1f", "1b", "2f", "2b"]),
        (HookTrigger.LayerSpecific(["fc1"]), ["0f", "0b", "1f", "1b", "2f", "2b", "3f", "3b"]),
        (HookTrigger.LayerSpecific(["fc2"]), []),
    ],
    ids=str,
)
def test_every_trigger_has_its_moments(session: DebugSession, trigger: HookTrigger, moments: Kinds) -> None:
    builder, seen = counting()
    session.hooks.register_hook(builder.trigger(trigger).build())
    for step in range(4):
        for forward in (True, False):
            session.hooks.execute_hooks("fc1", np.ones(2), is_forward=forward, metadata={"step": step})
    assert [f"{one.step}{'f' if one.is_forward else 'b'}" for one in seen] == moments


@pytest.mark.parametrize(
    ("condition", "metadata", "acts"),
    [
        (HookCondition.LossThreshold(1.0, Comparison.Greater), {"loss": 2.0}, True),
        (HookCondition.LossThreshold(1.0, Comparison.Less), {"loss": torch.tensor(2.0)}, False),
        (HookCondition.LossThreshold(2.0, Comparison.Equal), {"loss": 2.0}, True),
        (HookCondition.LossThreshold(2.0, Comparison.GreaterEqual), {"loss": 2.0}, True),
        (HookCondition.LossThreshold(1.9, Comparison.LessEqual), {"loss": 2.0}, False),
        (HookCondition.LossThreshold(1.0), {}, None),
        (HookCondition.GradientNormThreshold(4.9), {}, True),
        (HookCondition.GradientNormThreshold(5.1), {}, False),
        (HookCondition.GradientNormThreshold(5.1), {"gradient_norm": 6.0}, True),
        (HookCondition.MemoryThreshold(1.0), {}, True),
        (HookCondition.MemoryThreshold(1e9), {}, False),
        (HookCondition.StepRange(3, 5), {"step": 5}, True),
        (HookCondition.StepRange(3, 5), {"step": 6}, False),
        (HookCondition.Custom(lambda context: context.layer == "fc1"), {}, True),
        (HookCondition.Custom(lambda context: context.data[0] < 0), {}, False),
        (HookCondition.Custom("large"), {}, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, HookCondition.Custom) else str(value),
)
def test_conditions_are_evaluated(
    session: DebugSession, condition: HookCondition, metadata: dict[str, Any], acts: bool | None
) -> None:
    builder, seen = counting()
    session.hooks.register_condition("large", lambda context: abs(context.data).max() > 3)
    session.hooks.register_hook(builder.trigger(HookTrigger.EveryBackward).condition(condition).build())
    results = session.hooks.execute_hooks("fc1", np.array([3.0, -4.0]), None, False, metadata)
    assert kinds(results) == ["success" if acts else "skipped"]
    assert bool(seen) is bool(acts)
    if acts is None:
        assert results[0][1].reason == "the loss is not known"


def test_the_loss_that_was_recorded_is_the_one_that_conditions_see(session: DebugSession) -> None:
    builder, seen = counting()
    condition = HookCondition.LossThreshold(1.0, Comparison.Less)
    session.hooks.register_hook(builder.trigger(HookTrigger.Conditional(condition)).build())
    for loss in (3.0, 0.5):
        session.model_diagnostics.record_performance(ModelPerformanceMetrics(training_step=0, loss=loss))
        session.hooks.execute_hooks("fc1", [1.0])
    assert [one.loss for one in seen] == [0.5]


def hook_of(action: HookAction, trigger: HookTrigger = HookTrigger.EveryForward) -> Hook:
    return HookBuilder("acting").trigger(trigger).action(action).build()


def test_inspecting_with_the_distribution_is_asked_for(session: DebugSession) -> None:
    session.hooks.register_hook(hook_of(HookAction.InspectTensor(distribution=True)))
    session.hooks.execute_hooks("fc1", np.arange(5.0))
    assert session.tensor_inspector.get_tensors()[0].stats.median == 2.0


def test_gradients_are_tracked_in_a_backward_and_only_there(session: DebugSession) -> None:
    both = HookTrigger.EveryNSteps(1)
    session.hooks.register_hook(hook_of(HookAction.TrackGradients, both))
    forward = session.hooks.execute_hooks("fc1", [3.0, 4.0])
    assert (kinds(forward), forward[0][1].reason) == (["skipped"], "a forward has no gradient")
    assert kinds(session.hooks.execute_hooks("fc1", [3.0, 4.0], is_forward=False)) == ["success"]
    assert session.gradient_debugger.get_flow("fc1")[0].gradient_norm == 5.0


def test_activations_are_recorded_and_bounded(make_session: Make) -> None:
    session = make_session(max_gradient_history=3)
    session.hooks.register_hook(hook_of(HookAction.RecordActivations))
    for step in range(5):
        session.hooks.execute_hooks("fc1", np.full(2, float(step)))
    assert [one.mean for one in session.hooks.activations["fc1"]] == [2.0, 3.0, 4.0]
    directory = session.stop().run_dir
    assert directory is not None
    with open_trace(directory) as trace:
        assert trace.history("fc1", kind="activation")["mean"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_a_snapshot_is_a_safetensors_file_of_the_values_at_that_moment(
    session: DebugSession, tmp_path: Path, dtype: torch.dtype
) -> None:
    from safetensors.torch import load_file as load_torch

    session.hooks.register_hook(hook_of(HookAction.SaveSnapshot(tmp_path / "shots")))
    tensor = torch.tensor([[0.0, 1.0, 2.0]]).to(dtype)
    session.hooks.execute_hooks("block.0/attn", tensor)
    if dtype is torch.float32:
        tensor += 5
    session.stop()
    saved = load_torch(tmp_path / "shots" / "block.0_attn-forward-step0.safetensors")["tensor"]
    assert saved.dtype is dtype
    assert saved.float().tolist() == [[0.0, 1.0, float(dtype is not torch.bool) + 1]]


def test_a_snapshot_may_name_its_file(session: DebugSession, tmp_path: Path) -> None:
    path = str(tmp_path / "{layer}" / "{operation}-{step}.safetensors")
    session.hooks.register_hook(hook_of(HookAction.SaveSnapshot(path)))
    session.hooks.execute_hooks("fc1", np.broadcast_to(np.float32(2.0), (2, 2)), metadata={"step": 7})
    session.stop()
    assert load_file(tmp_path / "fc1" / "forward-7.safetensors")["tensor"].tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_snapshot_that_the_disk_does_not_take_costs_nothing_but_a_word(
    session: DebugSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    session.hooks.register_hook(hook_of(HookAction.SaveSnapshot(tmp_path / "file" / "below")))
    for _ in range(3):
        assert kinds(session.hooks.execute_hooks("fc1", [1.0])) == ["success"]
    session.stop()
    assert caplog.text.count("training continues") == 1


def test_an_alert_is_raised_with_its_place(session: DebugSession) -> None:
    session.hooks.register_hook(hook_of(HookAction.Alert("too large", AlertSeverity.Critical)))
    session.hooks.execute_hooks("fc1", [1.0], metadata={"step": 3})
    alert = session.tensor_inspector.alerts[0]
    assert (alert.message, alert.severity, alert.layer) == ("too large (fc1, step 3)", AlertSeverity.Critical, "fc1")
    assert session.stop().summary()["critical_issues"] == 1


def test_callbacks_by_name_and_one_that_is_not_there(session: DebugSession) -> None:
    seen: list[str] = []
    session.hooks.register_callback("note", lambda context: seen.append(context.layer))
    session.hooks.register_hook(hook_of(HookAction.CustomCallback("note")))
    missing = session.hooks.register_hook(hook_of(HookAction.CustomCallback("nota")))
    results = dict(session.hooks.execute_hooks("fc1", [1.0]))
    assert seen == ["fc1"]
    assert "did you mean 'note'" in results[missing].message


def test_a_pause_holds_until_somebody_resumes(session: DebugSession) -> None:
    session.hooks.register_hook(hook_of(HookAction.PauseTraining))
    session.pauses.expected = True
    done = threading.Event()

    def train() -> None:
        session.hooks.execute_hooks("fc1", [1.0])
        done.set()

    thread = threading.Thread(target=train)
    thread.start()
    while not session.pauses.paused:
        assert not done.wait(0.01)
    assert session.pauses.context is not None
    assert session.pauses.context.layer == "fc1"
    session.resume()
    assert done.wait(20)
    thread.join()
    assert session.pauses.count == 1


def test_a_pause_goes_to_a_function_of_the_users_or_to_nobody(session: DebugSession) -> None:
    session.hooks.register_hook(hook_of(HookAction.PauseTraining))
    results = session.hooks.execute_hooks("fc1", [1.0])
    assert "nobody can resume" in results[0][1].reason
    held: list[str] = []
    session.on_pause(lambda context: held.append(context.layer))
    assert kinds(session.hooks.execute_hooks("fc1", [1.0])) == ["success"]
    assert held == ["fc1"]


def test_several_actions_are_done_in_order_with_one_look(
    session: DebugSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neuraldbg.debug import acting

    looks = []
    real = acting.look_at
    monkeypatch.setattr(acting, "look_at", lambda *given, **named: (looks.append(1), real(*given, **named))[1])
    for _ in range(3):
        builder = HookBuilder("many").trigger(HookTrigger.EveryForward)
        builder.action(HookAction.InspectTensor).action(HookAction.RecordActivations)
        session.hooks.register_hook(builder.build())
    assert len(session.hooks.execute_hooks("fc1", np.ones(3))) == 3
    assert (len(looks), len(session.tensor_inspector.get_tensors()), len(session.hooks.activations["fc1"])) == (1, 1, 1)


def test_a_hook_acts_no_more_often_than_it_may(session: DebugSession) -> None:
    builder, seen = counting()
    number = session.hooks.register_hook(builder.trigger(HookTrigger.EveryForward).max_executions(3).build())
    for step in range(6):
        session.hooks.execute_hooks("fc1", [1.0], metadata={"step": step})
    stats = session.hooks.get_hook_stats(number)
    assert (len(seen), stats.total_executions, stats.last_execution_step, stats.enabled) == (3, 3, 2, False)
    assert stats.avg_execution_time_ms == pytest.approx(stats.total_execution_time_ms / 3)
    assert session.stop().hooks[number].total_executions == 3


def test_a_hook_that_fails_is_told_of_once_and_acts_no_more(
    session: DebugSession, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: HookContext) -> None:
        raise RuntimeError("no")

    number = session.hooks.register_hook(hook_of(HookAction.CustomCallback(broken)))
    assert session.hooks.execute_hooks("fc1", [1.0]) == [(number, HookResult.Error("RuntimeError: no"))]
    assert session.hooks.execute_hooks("fc1", [1.0]) == []
    stats = session.hooks.get_hook_stats(number)
    assert (stats.errors, stats.enabled, stats.why_disabled) == (1, False, "RuntimeError: no")
    assert caplog.text.count("acts no more") == 1
    session.hooks.enable_hook(number)
    assert kinds(session.hooks.execute_hooks("fc1", [1.0])) == ["error"]


def test_data_that_does_not_fit_its_shape_is_an_error_of_the_hook_not_of_the_loop(session: DebugSession) -> None:
    session.hooks.register_hook(hook_of(HookAction.InspectTensor))
    results = session.hooks.execute_hooks("fc1", [1.0, 2.0, 3.0], [2, 2])
    assert "do not have the shape (2, 2)" in results[0][1].message


def test_patterns_are_matched_once_per_layer(session: DebugSession, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    wants = Hook.wants_layer
    monkeypatch.setattr(
        Hook, "wants_layer", lambda hook, layer, *rest: (asked.append(layer), wants(hook, layer, *rest))[1]
    )
    for number in range(100):
        session.hooks.register_hook(
            HookBuilder(f"h{number}").trigger(HookTrigger.EveryForward).action(HookAction.RecordActivations)
            .layer_patterns([rf"^layer{number}\."]).build()
        )  # fmt: skip
    layers = [f"layer{number}.mlp" for number in range(500)]
    for _ in range(3):
        for layer in layers:
            session.hooks.execute_hooks(layer, [1.0])
    assert len(asked) == 100 * 500
    assert session.hooks.matched == 500
    assert sorted(session.hooks.activations) == sorted(layers[:100])


def test_hooks_come_and_go(session: DebugSession) -> None:
    builder, seen = counting()
    number = session.hooks.register_hook(builder.trigger(HookTrigger.EveryForward).build())
    session.hooks.disable_hook(number)
    session.hooks.execute_hooks("fc1", [1.0])
    session.hooks.enable_hook(number)
    session.hooks.execute_hooks("fc1", [1.0])
    session.hooks.unregister_hook(number)
    session.hooks.execute_hooks("fc1", [1.0])
    assert len(seen) == 1
    with pytest.raises(UsageError, match="no hook"):
        session.hooks.get_hook_stats(number)
    with pytest.raises(UsageError, match="build"):
        session.hooks.register_hook(HookBuilder("x"))  # type: ignore[arg-type]


def test_sampling_holds_for_what_hooks_look_at(make_session: Make) -> None:
    session = make_session(sampling_rate=0.5)
    session.hooks.register_hook(hook_of(HookAction.InspectTensor))
    found = [kinds(session.hooks.execute_hooks("fc1", [1.0]))[0] for _ in range(6)]
    assert found == ["success", "skipped", "success", "skipped", "success", "skipped"]


def test_what_is_wrong_about_a_hook_is_said_when_it_is_built() -> None:
    with pytest.raises(ConfigError, match=r"bad pattern '\(' of hook 'x' at character 1"):
        HookBuilder("x").layer_patterns(["("])
    with pytest.raises(ConfigError, match=r"needs \.trigger"):
        HookBuilder("x").action(HookAction.InspectTensor).build()
    with pytest.raises(ConfigError, match=r"needs \.action"):
        HookBuilder("x").trigger(HookTrigger.Once).build()
    for wrong in (0, "3", 2.5):
        with pytest.raises(ConfigError, match="max_executions"):
            HookBuilder("x").max_executions(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="EveryNSteps"):
            HookTrigger.EveryNSteps(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"HookTrigger\.EveryForward"):
        HookBuilder("x").trigger("every forward")  # type: ignore[arg-type]


def test_alerts_and_notes_of_hooks_are_facts_of_the_trace(session: DebugSession) -> None:
    session.hooks.register_hook(hook_of(HookAction.Alert("look here")))
    session.hooks.execute_hooks("fc1", [1.0])
    directory = session.stop().run_dir
    assert directory is not None
    with open_trace(directory) as trace:
        facts = trace.facts("alert")
    assert [(fact["message"], fact["severity"]) for fact in facts] == [("look here (fc1, step 0)", "warning")]
    assert json.loads((directory / "debug_report.json").read_text())["alerts"][0]["severity"] == "warning"
