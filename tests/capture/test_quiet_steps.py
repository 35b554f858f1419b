"""Steps of which most watchers are told nothing: what they would have seen there is neither lost nor made up."""

from __future__ import annotations

import math
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from watching import facts, net, train, watching

from neuraldbg.capture.budget import SamplingBudget
from neuraldbg.capture.torch.core import RARELY
from neuraldbg.capture.torch.device import DeviceQueue
from neuraldbg.capture.torch.evidence.loss_inputs import SPACING, LossInputs
from neuraldbg.capture.torch.origin.watch import _norm
from neuraldbg.capture.torch.probes import sample
from neuraldbg.capture.torch.probes.runner import Probes

QUIET = 1e-9  # a budget under which no step after the first ones is measured


@pytest.fixture(autouse=True)
def _no_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.MOST_SECONDS", 0.0)


def test_a_scaler_that_skips_updates_keeps_nothing_of_them_alive(tmp_path: Path) -> None:
    """The loss is a number, its gradient is not, and no update ends the step."""
    alive: list[weakref.ref[Tensor]] = []
    model = nn.Linear(3, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-4), torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching(tmp_path, budget=QUIET):
        for step in range(60):
            optimizer.zero_grad()
            out = model(torch.ones(4, 3))
            root = torch.sqrt(out.square() + 1 if step < 30 else out * 0)
            alive.append(weakref.ref(root))
            scaler.scale(root.mean() + 1.0).backward()
            scaler.step(optimizer)
            scaler.update()
            del out, root
        assert sum(ref() is not None for ref in alive) <= 1


def test_graphs_that_one_of_two_networks_keeps_are_counted(tmp_path: Path) -> None:
    """Two updates in each round of the loop: a look at every sixteenth would always meet the same network."""
    kept = []
    generator, judge = nn.Linear(3, 4), nn.Linear(4, 1)
    first, second = (torch.optim.SGD(each.parameters(), lr=1e-4) for each in (judge, generator))
    with watching(tmp_path, budget=QUIET):
        for _ in range(400):
            with torch.no_grad():
                fake = generator(torch.randn(4, 3))
            first.zero_grad()
            (judge(torch.randn(4, 4)).mean() - judge(fake).mean()).square().backward()
            first.step()
            second.zero_grad()
            loss = (judge(generator(torch.randn(4, 3))) - 1).square().mean()
            loss.backward()
            second.step()
            kept.append(loss)
    told = facts(tmp_path, "graphs_kept")
    assert told[-1]["count"] == pytest.approx(800, rel=0.1)  # a pass of each network
    assert told[-1]["followed"] == pytest.approx(1600, rel=0.1)


def test_a_second_training_is_remembered_like_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its learning rates too: experiments after the run train with them."""
    monkeypatch.setattr(sample, "RATES", 60)
    with watching(tmp_path, budget=QUIET) as capture:
        samples = next(each for each in capture.watchers if isinstance(each, Probes)).samples
        for _ in range(2):
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            for step in range(100):
                optimizer.param_groups[0]["lr"] = step / 1000
                optimizer.zero_grad()
                nn.functional.mse_loss(model(torch.ones(8, 4)), torch.zeros(8, 1)).backward()
                optimizer.step()
            assert samples.specimen is not None
            trace = samples.specimen.traces[0]
            begun = 100 - trace.updates  # the second is noticed once its optimizer has stepped
            assert begun <= 2
            assert trace.rates == [(step / 1000,) for step in range(begun, begun + 60)]


def test_without_a_budget_the_cost_after_the_first_steps_is_that_of_later_ones() -> None:
    budget = SamplingBudget(0.0)
    for step in range(200):
        budget.step_done(wall_ns=10_000_000 if step >= 20 else 100_000_000, own_ns=10_000 if step >= 20 else 50_000_000)
    assert budget.ratio_after_start == pytest.approx(10_000 / 9_990_000, rel=1e-6)


def test_a_loss_is_looked_at_when_its_time_has_come_not_when_all_are_told_anyway(tmp_path: Path) -> None:
    """The last look says what the model has learnt by the end: seventeen updates earlier it may not have."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, budget=QUIET) as capture:
        notices: list[Any] = capture.core.moments.backward_begun
        lines = next(one.__self__ for one in notices if isinstance(one.__self__, LossInputs))._lines
        looks: list[int] = []
        for number in range(500):
            optimizer.zero_grad()
            before = sum(line.looks for line in lines.values())
            (model(torch.randn(8, 4)) - torch.randn(8, 1)).square().mean().backward()
            if sum(line.looks for line in lines.values()) > before:
                looks.append(number)
            optimizer.step()
    late = [at for at in looks if at > 150]
    assert len(late) >= 4
    assert all(abs(after - (before * SPACING + 1)) <= 2 for before, after in pairwise(late))


def test_a_line_of_backward_that_never_comes_again_costs_the_others_nothing(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    told = 0

    def count(*_: object) -> None:
        nonlocal told
        told += 1

    with watching(tmp_path, budget=QUIET) as capture:
        for step in range(900):
            if step == 300:
                capture.core.take_part("backward_begun", "a count", count, rarely=True)
            optimizer.zero_grad()
            if step < 200:
                model(torch.randn(8, 4)).square().mean().backward()
            else:
                model(torch.randn(8, 4)).abs().mean().backward()
            optimizer.step()
    assert told <= 600 // RARELY + 60


@pytest.mark.parametrize("short_ns", [0, 10**18])
@pytest.mark.parametrize("long_ns", [0, 10**18])
def test_of_long_steps_fewer_are_looked_at_closely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_ns: int, short_ns: int
) -> None:
    """All of the first ones are measured; evidence of them all would take some percent of a large model's first
    minute. A second training begins as the first did."""
    monkeypatch.setattr("neuraldbg.capture.torch.core.LONG_STEP_NS", long_ns)
    monkeypatch.setattr("neuraldbg.capture.torch.core.SHORT_STEP_NS", short_ns)
    looked, inside, measured = [], [], []
    with watching(tmp_path, budget=QUIET) as capture:

        def begun(one: Any, *_: Any) -> None:
            looked.extend([one.step] if capture.core.looking else [])
            inside.extend([one.step] if one.looked else [])
            measured.extend([one.step] if one.sampled else [])

        capture.core.take_part("pass_begun", "what is looked at", begun)
        train(net(), 24)
        train(net(), 6)
    assert measured == [*range(20), *([22] if long_ns == 0 else []), *range(24, 30)]
    assert looked == ([0, 1, 2, 22, 24, 25, 26, 27] if long_ns == 0 else [*range(20), *range(24, 30)])
    assert inside == [step for step in looked if step != 2 or not long_ns < short_ns]


def test_an_optimizer_made_in_the_middle_of_a_step_changes_nothing_about_it(tmp_path: Path) -> None:
    model, sampled = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watching(tmp_path, budget=QUIET) as capture:

        def begun(one: Any, *_: Any) -> None:
            sampled.append(one.sampled)

        capture.core.take_part("pass_begun", "what is measured", begun)
        for step in range(30):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            if step == 25:
                other = torch.optim.SGD(model.parameters(), lr=0.05)
            loss.backward()
            optimizer.step()
        del other
    assert sampled[:26] == [True] * 20 + [False] * 6, "from the next one on it is watched as a second training"


@pytest.mark.parametrize("critics", [1, 5])
def test_each_network_of_a_gan_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, critics: int) -> None:
    """However often it has its turn: the generator of a WGAN steps once in six updates."""
    monkeypatch.setattr("neuraldbg.capture.torch.core.LONG_STEP_NS", 0)
    models, looked = (net(), net()), [0, 0]
    with watching(tmp_path, budget=QUIET) as capture:
        optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
        for step in range(20):
            mine = int(step % (critics + 1) == critics)
            looked[mine] += capture.core.looking
            optimizers[mine].zero_grad()
            models[mine](torch.randn(8, 4)).square().mean().backward()
            optimizers[mine].step()
    assert looked[1] >= 3
    assert looked[0] >= 4
    assert critics > 1 or sum(looked) < 14


def marks_of_steps(folder: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None, steps: int) -> list[int]:
    """How often the clock of a device that is said to be there is read in each step."""
    monkeypatch.setattr(DeviceQueue, "ticks", True)
    read, counts = [0], list[int]()

    def mark() -> object:
        read[0] += 1
        return object()

    with watching(folder, budget=budget) as capture:
        monkeypatch.setattr(capture.core.device, "mark", mark)
        monkeypatch.setattr(capture.passes, "quick_begins", lambda _: False)

        def after(_: int) -> None:
            counts.append(read[0])
            read[0] = 0

        train(net(), steps, after)
    return counts


def test_where_every_step_is_measured_layers_of_a_device_are_timed_in_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = marks_of_steps(tmp_path, monkeypatch, None, 13)
    leaves = sum(1 for module in net().modules() if not list(module.children()))
    timed = [index for index, count in enumerate(counts) if count]
    assert timed == [0, 1, 2, 4, 8, 12]
    assert {counts[step] for step in timed} == {2 * leaves}, "and none of the container"


def test_under_a_budget_every_step_that_is_measured_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(marks_of_steps(tmp_path, monkeypatch, QUIET, 10))


def test_both_networks_of_a_gan_are_looked_at(tmp_path: Path) -> None:
    looked = set()
    with watching(tmp_path) as capture:

        def after(step: int) -> None:
            if step > 20 and capture.core.looking:
                looked.add(capture.core.recorder.step % 2)

        train(net(), 120, after)
    assert looked == {0, 1}


def test_a_look_that_nobody_takes_does_not_keep_everybody_awake(tmp_path: Path) -> None:
    with watching(tmp_path, budget=QUIET) as capture:
        train(net(), 30)
        capture.core.moments.backward_begun = []
        capture.core.steady.backward_begun = []
        capture.core.look_at = 0
        train(net(), 1)
        assert capture.core.look_at == math.inf


def test_units_that_began_equal_are_looked_at_again_also_in_long_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuraldbg.capture.torch.core.LONG_STEP_NS", 0)
    model = net()
    nn.init.constant_(model[0].weight, 0.5)
    with watching(tmp_path, budget=QUIET):
        train(model, 40)
    assert len(facts(tmp_path, "rows_later")) == 2


def test_a_weight_that_begins_with_an_infinity_is_told_as_such(tmp_path: Path) -> None:
    model = net()
    with torch.no_grad():
        model[0].weight[0, 0] = math.inf
    with watching(tmp_path):
        model(torch.ones(2, 4))
    (first,) = [fact for fact in facts(tmp_path, "start") if fact["path"] == "0" and fact["name"] == "weight"]
    assert first["high"] == first["gain"] == math.inf


def test_a_weight_without_elements_has_no_size() -> None:
    assert _norm(torch.empty(0, 3)) == 0.0
    assert _norm(torch.full((2, 2), 3.0)) == 6.0
    assert math.isnan(_norm(torch.tensor([math.inf, 1.0])))


class _Poisoned(torch.autograd.Function):
    """The loss stays a number, and its gradient is none once `now` is set."""

    now = False

    @staticmethod
    def forward(_: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient * math.nan if _Poisoned.now else gradient


@pytest.mark.parametrize("line", [0, 1])
def test_a_bad_gradient_is_told_with_the_line_of_its_own_backward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    """Of backwards at lines that have long been usual nobody is told in quiet steps."""
    monkeypatch.setattr(_Poisoned, "now", False)
    lines = []
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path, budget=QUIET) as capture:
        for step in range(80):
            _Poisoned.now = step >= 70 and step % 2 == line
            optimizer.zero_grad()
            loss = _Poisoned.apply(model(torch.ones(4, 4))).square().mean()
            if step % 2:
                loss.backward()
            else:
                loss.backward()
            lines.append(capture.core.recorder.line_of_source(capture.backward.source))
            optimizer.step()
            if _Poisoned.now:
                break
        assert capture.backward.smooth
    assert facts(tmp_path, "origin")[-1]["backward_source"] == lines[-1] != lines[-2]


def test_a_steep_loss_beside_a_smooth_one_is_told_of_every_backward(tmp_path: Path) -> None:
    """What is held of its graph is let go of again, also where the other loss has nothing to hold."""
    alive: list[weakref.ref[Tensor]] = []
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, budget=QUIET):
        for _ in range(80):
            optimizer.zero_grad()
            model(torch.ones(4, 4)).square().mean().backward()
            root = torch.sqrt(model(torch.ones(4, 4)).square() + 1)
            alive.append(weakref.ref(root))
            root.mean().backward()
            optimizer.step()
            del root
        assert sum(ref() is not None for ref in alive) <= 1


def test_the_factor_of_one_loss_is_not_told_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Poisoned, "now", False)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, budget=QUIET):
        for step in range(76):
            optimizer.zero_grad()
            (model(torch.ones(4, 4)).square().mean() * 128.0).backward()
            _Poisoned.now = step == 75
            _Poisoned.apply(model(torch.ones(4, 4))).square().mean().backward()
            optimizer.step()
    assert facts(tmp_path, "origin")[-1]["loss_factor"] is None
