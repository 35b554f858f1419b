"""Stopping a real training in forward, backward and after an update; what can be seen there; nothing changes by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from watching import net, trace_of, train, watching

from neuraldbg.capture.torch import stops
from neuraldbg.control.gate import Gate
from neuraldbg.errors import AbortedByUser, UsageError
from neuraldbg.records import Stop


class Visitor:
    """Sits at the trainer's terminal and does the next thing on a list at each stop; continues when it is empty."""

    def __init__(self, *acts: Callable[[Gate, Stop], Any]) -> None:
        self.acts = list(acts)
        self.seen: list[tuple[str | None, str, int]] = []
        self.values: list[dict[str, Any]] = []

    def __call__(self, gate: Gate, stop: Stop, reasons: list[str]) -> None:
        self.seen.append((stop.layer, stop.place()["phase"], stop.step))
        self.values.append(dict(stop.values))
        if self.acts:
            self.acts.pop(0)(gate, stop)
        if not gate.open:
            gate.resume()


@contextmanager
def stopping(folder: Path, visitor: Visitor | None) -> Iterator[Gate]:
    gate = Gate()
    gate.prompt = visitor
    with watching(folder, gate=gate):
        yield gate


def test_it_stops_in_forward_with_the_layers_values(tmp_path: Path) -> None:
    visitor = Visitor()
    with stopping(tmp_path, visitor) as gate:
        gate.breakpoints.add("Linear_2", "layer_data['mean_activation'] != 7 and step == 1")
        train(net(), 3)
    assert visitor.seen == [("2", "forward", 1)]
    values = visitor.values[0]
    assert values["execution_time"] > 0
    assert values["memory"] == 8 * 1 * 4 / 1e6
    assert values["flops"] == 2 * 8 * 8


def test_a_condition_on_gradients_stops_in_backward(tmp_path: Path) -> None:
    visitor = Visitor()
    with stopping(tmp_path, visitor) as gate:
        gate.breakpoints.add("0", "grad_norm >= 0")
        train(net(), 2)
    assert visitor.seen == [("0", "backward", 0), ("0", "backward", 1)]
    assert visitor.values[0]["grad_norm"] > 0


def test_hits_stay_in_the_trace_the_first_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "MOST_HITS", 3)
    with stopping(tmp_path, Visitor()) as gate:
        gate.breakpoints.add("0", "step >= 1")
        gate.breakpoints.add("2", "step == 2")
        train(net(), 6)
    told = [(one["at_step"], one["layer"], one["phase"], one["breakpoints"]) for one in trace_of(tmp_path).facts("hit")]
    assert told == [(1, "0", "forward", [1]), (2, "0", "forward", [1]), (2, "2", "forward", [2])]


def test_stepping_goes_through_layers_backward_and_update(tmp_path: Path) -> None:
    layer = lambda gate, _: gate.step("layer")  # noqa: E731
    visitor = Visitor(*[layer] * 8, lambda gate, _: gate.step("step"))
    with stopping(tmp_path, visitor) as gate:
        gate.stop_each("layer")
        train(net(), 4)
    assert visitor.seen[:9] == [
        ("0", "forward", 0),
        ("1", "forward", 0),
        ("2", "forward", 0),
        ("model", "forward", 0),
        ("2", "backward", 0),
        ("1", "backward", 0),
        ("0", "backward", 0),
        (None, "step", 0),
        ("0", "forward", 1),
    ]
    assert visitor.seen[9] == (None, "step", 1)
    assert len(visitor.seen) == 10


class Asking(nn.Module):
    """Somebody presses `p` while this layer runs."""

    def __init__(self) -> None:
        super().__init__()
        self.ask: Callable[[], None] | None = None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.ask is not None:
            self.ask, ask = None, self.ask
            ask()
        return values.tanh()


@pytest.mark.parametrize("budget", [None, 0.01])
def test_next_layer_after_a_pause_skips_no_backward(tmp_path: Path, budget: float | None) -> None:
    asking, layer = Asking(), lambda gate, _: gate.step("layer")
    model = nn.Sequential(nn.Linear(4, 8), asking, nn.Linear(8, 1))
    visitor, gate = Visitor(*[layer] * 8), Gate()
    gate.prompt = visitor
    with watching(tmp_path, gate=gate, budget=budget):
        train(model, 30)
        before = len(visitor.seen)
        asking.ask = gate.pause
        train(model, 3)
    assert before == 0
    step = visitor.seen[0][2]
    assert visitor.seen[:9] == [
        (None, "step", step),  # not in the forward that was half over
        ("0", "forward", step + 1),
        ("1", "forward", step + 1),
        ("2", "forward", step + 1),
        ("model", "forward", step + 1),
        ("2", "backward", step + 1),
        ("1", "backward", step + 1),
        ("0", "backward", step + 1),
        (None, "step", step + 1),
    ]


def test_a_breakpoint_after_an_update(tmp_path: Path) -> None:
    visitor = Visitor()
    with stopping(tmp_path, visitor) as gate:
        gate.breakpoints.add("*", "loss > 0 and step == 2")
        train(net(), 4)
    assert visitor.seen == [(None, "step", 2)]


def test_tensors_are_described_where_they_are(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def look(_: Gate, stop: Stop) -> None:
        assert stop.describe is not None
        for kind in ("input", "output", "weight"):
            seen.append(stop.describe(stop, kind, None, None))
        seen.append(stop.describe(stop, "output", None, "0, :"))
        seen.append(stop.describe(stop, "bias", "0", None))
        with pytest.raises(UsageError, match="there is"):
            stop.describe(stop, "gradient", None, None)
        with pytest.raises(UsageError, match="does not fit"):
            stop.describe(stop, "output", None, "99")
        with pytest.raises(UsageError, match="no part of a slice"):
            stop.describe(stop, "output", None, "__import__('os')")

    with stopping(tmp_path, Visitor(look)) as gate:
        gate.breakpoints.add("2", once=True)
        train(net(), 1)
    assert [one["shape"] for one in seen] == [[8, 8], [8, 1], [1, 8], [8, 1], [8]]
    assert sum(seen[1]["histogram"]["counts"]) == 8
    assert len(seen[3]["values"]) == 1
    assert seen[4]["layer"] == "0"


def test_the_users_frame_is_there(tmp_path: Path) -> None:
    names: list[str] = []

    def look(_: Gate, stop: Stop) -> None:
        names.extend(stop.frame.f_locals)

    with stopping(tmp_path, Visitor(look)) as gate:
        gate.breakpoints.add("2", once=True)
        train(net(), 1)
    assert {"model", "optimizer", "losses"} <= set(names)


def test_results_are_the_same_with_and_without_stops(tmp_path: Path) -> None:
    def trained(visitor: Visitor | None, folder: Path) -> tuple[list[float], list[torch.Tensor]]:
        folder.mkdir()
        model = net()
        torch.manual_seed(5)
        with stopping(folder, visitor) as gate:
            if visitor is not None:
                gate.breakpoints.add("*", "grad_norm >= 0 and mean_activation < 1e9")
            losses = train(model, 4)
        return losses, [parameter.detach().clone() for parameter in model.parameters()]

    plain, held = trained(None, tmp_path / "a"), trained(Visitor(), tmp_path / "b")
    assert plain[0] == held[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], held[1], strict=True))


def test_a_failure_of_ours_at_a_stop_reaches_no_user(tmp_path: Path) -> None:
    def stumble(_: object) -> None:
        raise LookupError("a bug of ours")

    gate = Gate()
    gate.prompt = Visitor()
    with watching(tmp_path, gate=gate, strict=False) as capture:
        gate.breakpoints.add("2")
        gate.on_event.append(stumble)
        assert len(train(net(), 3)) == 3
        assert ("stopping", None) in capture.core.guard.broken


def test_a_layer_of_a_second_model_is_stopped_at_from_its_first_pass_on(tmp_path: Path) -> None:
    visitor = Visitor()
    said: list[str] = []
    with stopping(tmp_path, visitor) as gate:
        gate.say = said.append
        gate.breakpoints.add("second.0")
        first, second = net(), net()
        for _ in range(2):
            (first(torch.randn(8, 4)).sum() + second(torch.randn(8, 4)).sum()).backward()
    assert [seen[0] for seen in visitor.seen] == ["second.0"] * 2
    assert said == []


@pytest.mark.parametrize("pattern", ["2|0", ".", "(.*.*.*.*.*.*)*=$", "mod.l"])
def test_a_pattern_is_a_name_or_a_glob_and_no_regular_expression(tmp_path: Path, pattern: str) -> None:
    visitor = Visitor()
    with stopping(tmp_path, visitor) as gate:
        gate.breakpoints.add(pattern)
        train(net(), 2)
    assert visitor.seen == []


def test_time_held_is_no_layers_time_also_with_several_threads(tmp_path: Path) -> None:
    def linger(_: Gate, __: Stop) -> None:
        time.sleep(0.5)

    with stopping(tmp_path, Visitor(linger, linger)) as gate:
        gate.breakpoints.add("*.1")
        models = [nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 1)) for _ in range(2)]
        threads = [threading.Thread(target=lambda m: m(torch.randn(8, 4)).sum().backward(), args=(m,)) for m in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert trace_of(tmp_path).table("spans", ["duration_ns"])["duration_ns"].max() < 0.4e9


def test_time_held_in_backward_is_no_layers_time(tmp_path: Path) -> None:
    with stopping(tmp_path, Visitor(lambda *_: time.sleep(0.5))) as gate:
        gate.breakpoints.add("2", phase="backward")
        train(net(), 2)
    assert trace_of(tmp_path).table("spans", ["duration_ns"])["duration_ns"].max() < 0.4e9


def test_a_compiled_model_says_that_its_layers_cannot_be_stopped_at(tmp_path: Path) -> None:
    said: list[str] = []
    with stopping(tmp_path, Visitor()) as gate:
        gate.say = said.append
        gate.breakpoints.add("*")
        train(torch.compile(net(), backend="eager"), 2)  # type: ignore[arg-type]
    assert sum("TORCHDYNAMO_DISABLE=1" in line for line in said) == 1


def test_a_loss_and_a_gradient_are_judged_together(tmp_path: Path) -> None:
    visitor = Visitor()
    with stopping(tmp_path, visitor) as gate:
        gate.breakpoints.add("0", "loss > 0 and grad_norm > 0 and mean_activation < 1e9 and step == 1")
        train(net(), 3)
    assert visitor.seen == [("0", "backward", 1)]


def test_abort_leaves_the_users_loop(tmp_path: Path) -> None:
    with stopping(tmp_path, Visitor(lambda gate, _: gate.abort())) as gate:
        gate.breakpoints.add("0", "grad_norm >= 0")
        with pytest.raises(AbortedByUser):
            train(net(), 3)


def test_a_name_that_means_no_layer_is_told_with_the_nearest(tmp_path: Path) -> None:
    said: list[str] = []
    with stopping(tmp_path, Visitor()) as gate:
        gate.say = said.append
        gate.breakpoints.add("Liner_2")
        train(net(), 1)
        with pytest.raises(UsageError):
            gate.breakpoints.add("encoder.7")
    assert len(said) == 1
    assert "Liner_2" in said[0]


def test_held_time_is_nobodys(tmp_path: Path) -> None:
    def wait(_: Gate, __: Stop) -> None:
        threading.Event().wait(0.5)

    gate = Gate()
    gate.prompt = Visitor(wait)
    with watching(tmp_path, gate=gate) as capture:
        gate.breakpoints.add("2", once=True)
        train(net(), 2)
        assert capture.core.budget.wall_ns < 400_000_000
        assert capture.core.budget.own_ns < 400_000_000
