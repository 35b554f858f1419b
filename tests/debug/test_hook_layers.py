"""Which layers hooks act on: those they name, matched once; who names none is told; a leaf is followed once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module

from neuraldbg.debug import DebugSession, Hook, HookAction, HookBuilder, HookCondition, HookContext, HookTrigger

Make = Callable[..., DebugSession]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(x)


def model_of() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 1))


def hook_of(name: str, *patterns: str, trigger: HookTrigger = HookTrigger.EveryForward) -> Hook:
    builder = HookBuilder(name).trigger(trigger).action(HookAction.RecordActivations)
    return builder.layer_patterns(patterns).build()


def test_a_hook_that_fits_no_layer_is_told_with_the_nearest(
    make_session: Make, caplog: pytest.LogCaptureFixture
) -> None:
    session = make_session()
    session.hooks.register_hook(hook_of("early", "atention$"))
    session.hooks.register_hook(hook_of("right", "attention$"))
    assert "fits no layer" not in caplog.text  # nobody knows the layers yet
    session.attach(model_of())
    session.hooks.register_hook(hook_of("late", "^9$"))
    session.hooks.register_hook(hook_of("by name", trigger=HookTrigger.LayerSpecific(["1.atention"])))
    session.hooks.register_hook(hook_of("all of them"))
    assert [record.message for record in caplog.records if "fits no layer" in record.message] == [
        "hook 'early' fits no layer of this model; did you mean '1.attention'?",
        "hook 'late' fits no layer of this model; there are Sequential, 0, 1, 1.attention, 2",
        "hook 'by name' fits no layer of this model; did you mean '1.attention'?",
    ]


def test_a_hook_that_comes_is_matched_with_the_layers_and_the_others_not_again(
    make_session: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, model = make_session(), model_of()
    session.attach(model)
    asked: list[str] = []
    wants = Hook.wants_layer
    monkeypatch.setattr(
        Hook, "wants_layer", lambda hook, layer, *rest: (asked.append(layer), wants(hook, layer, *rest))[1]
    )
    numbers = [session.hooks.register_hook(hook_of(f"hook {at}", "attention")) for at in range(10)]
    assert len(asked) == 10 * len(list(model.named_modules()))
    session.hooks.unregister_hook(numbers[0])
    model(torch.ones(2, 4))
    assert len(asked) == 10 * len(list(model.named_modules()))
    assert [session.hooks.get_hook_stats(number).total_executions for number in numbers[1:]] == [1] * 9


def test_once_leaves_nothing_behind(make_session: Make) -> None:
    session, model = make_session(), model_of()
    session.attach(model)
    before = len(module._global_forward_hooks)
    number = session.hooks.register_hook(hook_of("once", trigger=HookTrigger.Once))
    assert len(module._global_forward_hooks) == before + 1
    model(torch.ones(2, 4))
    assert len(module._global_forward_hooks) == before
    stats = session.hooks.get_hook_stats(number)
    assert (stats.total_executions, stats.enabled) == (1, False)


def test_a_layer_given_as_a_word_is_that_layer(session: DebugSession) -> None:
    assert HookTrigger.LayerSpecific("fc1") == HookTrigger.LayerSpecific(["fc1"])
    session.hooks.register_hook(hook_of("one", trigger=HookTrigger.LayerSpecific("fc1")))
    assert session.hooks.execute_hooks("fc", [1.0]) == []
    assert len(session.hooks.execute_hooks("fc1", [1.0])) == 1


class Prompt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.learned = nn.Parameter(torch.ones(3))

    def forward(self) -> torch.Tensor:
        return self.learned


def test_a_parameter_that_is_handed_out_is_followed_once_a_pass(make_session: Make) -> None:
    session, model = make_session(), Prompt()
    session.attach(model)
    seen: list[HookContext] = []
    builder = HookBuilder("back").trigger(HookTrigger.EveryBackward).action(HookAction.CustomCallback(seen.append))
    session.hooks.register_hook(builder.build())
    for _ in range(4):
        model().sum().backward()
    assert len(seen) == 4
    session.stop()
    assert not model.learned._backward_hooks


def test_the_step_that_is_told_is_the_one_that_is_recorded(session: DebugSession) -> None:
    for action in (HookAction.InspectTensor, HookAction.TrackGradients):
        builder = HookBuilder(str(action)).trigger(HookTrigger.EveryBackward).action(action)
        session.hooks.register_hook(builder.build())
    for step in (5, 5, 7):
        session.hooks.execute_hooks("fc1", np.ones(2), is_forward=False, metadata={"step": step})
    assert [one.step for one in session.tensor_inspector.get_tensors()] == [5, 5, 7]
    assert [one.step for one in session.gradient_debugger.get_flow("fc1")] == [5, 5, 7]
    assert session.step == 7
    assert session.stop().steps == 8


@pytest.mark.parametrize("attached", ["compiled", "as it was"])
def test_hooks_that_see_nothing_inside_of_compiled_code_say_so(
    make_session: Make, caplog: pytest.LogCaptureFixture, attached: str
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    compiled = torch.compile(model, backend="eager")
    session = make_session().attach(compiled if attached == "compiled" else model)
    number = session.hooks.register_hook(hook_of("inside", "^0$"))
    session.hooks.register_hook(hook_of("later", trigger=HookTrigger.EveryNSteps(50)))
    assert caplog.text.count("parts of this model are compiled") == (attached == "compiled")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        compiled(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert session.stop().hooks[number].total_executions == 0
    assert [name for name in ("inside", "later") if f"hook {name!r} never acted" in caplog.text] == ["inside"]


def test_a_hook_that_acted_or_had_a_reason_not_to_is_not_told_of(
    make_session: Make, caplog: pytest.LogCaptureFixture
) -> None:
    session, model = make_session(), model_of()
    session.attach(model)
    session.hooks.register_hook(hook_of("acts", "^0$"))
    session.hooks.register_hook(hook_of("skipped", "^0$", trigger=HookTrigger.EveryBackward))  # has no activations
    never = HookTrigger.Conditional(HookCondition.StepRange(5, 9))
    one = HookBuilder("not yet").trigger(never).action(HookAction.RecordActivations).max_executions(1)
    session.hooks.register_hook(one.build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    session.stop()
    assert "never acted" not in caplog.text
