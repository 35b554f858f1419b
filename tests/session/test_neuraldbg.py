"""`with NeuralDbg(model) as dbg:` as its README promises it, and every question one may ask of it."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn

import neuraldbg
from neuraldbg import NeuralDbg, open_trace
from neuraldbg.errors import NeuralDbgError, NotRecorded, RunDirectoryError, UnknownLayer, UnknownName, UsageError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are recorded under the working directory."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def batches(count: int = 10, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 16, 10, generator=generator)
    return [(x, x.sum(1, keepdim=True) / 3) for x in inputs]


def readme_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 1))


def steps(model: nn.Module, data: Any, then: Callable[[int], Any] = lambda step: None, **how: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=how.get("lr", 0.01))
    for step, (inputs, targets) in enumerate(data):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        then(step)


@pytest.fixture
def trained() -> Iterator[NeuralDbg]:
    """Ten steps of the README's model, captured one by one; still open."""
    model = readme_model()
    with NeuralDbg(model, budget="full") as dbg:
        steps(model, batches(), dbg.capture_step)
        yield dbg


# -- the README --------------------------------------------------------------------------------------------------------


def test_the_readme_example_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    dataloader = batches()
    # Your existing model and training setup
    model = nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.MSELoss()

    # Wrap your training loop
    with NeuralDbg(model) as dbg:
        for step, (inputs, targets) in enumerate(dataloader):
            optimizer.zero_grad()

            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()

            # Capture state after each training step
            dbg.capture_step(step)

            # Check for gradient issues
            if dbg.has_vanishing_gradients():
                print(f"Vanishing gradients detected at step {step}")
                # Inspect the problematic layer
                gradient_info = dbg.inspect_layer("linear1")
                break
        gradient_info = dbg.inspect_layer("linear1")
    assert gradient_info.type == "Linear"
    assert capsys.readouterr().out == ""
    assert dbg.step == 10


def test_the_inspection_api_runs_as_written() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 4, 3)
            self.fc1 = nn.Linear(4 * 36, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc1(self.conv1(x).relu().flatten(1))

    model = Net()
    with NeuralDbg(model, budget="full") as dbg:
        steps(model, [(torch.randn(2, 1, 8, 8), torch.zeros(2, 1)) for _ in range(50)], dbg.capture_step)
        # Query tensor state at specific step
        tensor_state = dbg.inspect(layer_name="conv1", step=42)

        # Get gradient history for a layer
        gradients = dbg.get_gradient_history("fc1")

        # Check gradient health
        health_report = dbg.analyze_gradient_health()
    assert (tensor_state.step, tuple(tensor_state.tensor.shape)) == (42, (2, 4, 6, 6))
    assert gradients.steps == list(range(50))
    assert health_report["overall"] == health_report.overall == "healthy"


# -- the step just done ------------------------------------------------------------------------------------------------


def test_a_captured_step_knows_loss_lr_and_gradients() -> None:
    model = readme_model()
    seen = []
    with NeuralDbg(model) as dbg:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        loss = nn.functional.mse_loss(model(batches()[0][0]), batches()[0][1])
        loss.backward()
        optimizer.step()
        seen.append(dbg.capture_step(0))
    [record] = seen
    assert (record.step, record.lr) == (0, 0.25)
    assert record.loss == pytest.approx(loss.item())
    norms = [parameter.grad.norm().item() for parameter in model.parameters()]
    assert record.grad_norm == pytest.approx(math.sqrt(sum(norm**2 for norm in norms)), rel=1e-5)
    assert record["gradients"]["0"]["norm"] == pytest.approx(math.hypot(norms[0], norms[1]), rel=1e-5)


def test_steps_without_a_number_count_themselves() -> None:
    model, seen = readme_model(), []
    with NeuralDbg(model) as dbg:
        steps(model, batches(5), lambda _: seen.append(dbg.capture_step().step))
    assert seen == [0, 1, 2, 3, 4]


def test_capturing_is_optional() -> None:
    model = readme_model()
    with NeuralDbg(model, budget="full") as dbg:
        steps(model, batches(5))
        assert dbg.step == 5
        assert dbg.get_gradient_history("0").steps == [0, 1, 2, 3, 4]
        assert not dbg.has_vanishing_gradients()
        assert not dbg.has_exploding_gradients()


def test_the_users_own_step_numbers_are_understood() -> None:
    """Resumed from a checkpoint: the first step here is number 1000."""
    model = readme_model()
    with NeuralDbg(model, budget="full") as dbg:
        steps(model, batches(5), lambda step: dbg.capture_step(1000 + step))
        state = dbg.inspect("0", step=1003)
        assert state.step == 1003
        outputs = [event.output for event in dbg.events if event.layer_name == "0"]
        assert torch.equal(state.tensor, outputs[3])
        with pytest.raises(NotRecorded, match="1000 to 1004"):
            dbg.inspect("0", step=7000)


def test_gradients_cleared_before_the_question_are_not_lost() -> None:
    """Some loops end with zero_grad: the step just done is still the one asked about."""
    model = readme_model()
    with NeuralDbg(model, budget="full") as dbg:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in batches(3):
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            record = dbg.capture_step()
        assert record.grad_norm is not None
        assert record.grad_norm > 0
        assert not dbg.has_vanishing_gradients()


def test_a_loss_of_the_users_own_is_recorded() -> None:
    model = readme_model()
    with NeuralDbg(model) as dbg:
        for value in (3.0, torch.tensor(2.0), torch.tensor(1.0, requires_grad=True)):
            dbg.record_loss(value)
        site = next(site.id for site in dbg.trace.sites if site.path == "loss.user")
        assert dbg.trace.table("scalars", columns=["value"], site=site)["value"].tolist() == [3.0, 2.0, 1.0]


# -- the past ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["0", "linear1", "fc1", "Linear_0", "Linear_1", "Dense_1"])
def test_a_layer_answers_to_every_name_people_use(trained: NeuralDbg, name: str) -> None:
    report = trained.inspect_layer(name)
    assert report.layer == "0"
    assert len(trained.get_gradient_history(name)) == 10
    assert trained.inspect(name).layer == "0"


def test_a_layer_report_says_what_is_known(trained: NeuralDbg) -> None:
    report = trained.inspect_layer("0")
    assert (report.type, report.step, report.health, report.first_bad_step) == ("Linear", 9, "healthy", None)
    assert report.output["count"] == 16 * 5
    assert report.weight["count"] == 50
    assert report.gradient["l2"] > 0
    assert report.grad_norm == pytest.approx(trained.get_gradient_history("0")[-1].norm)
    assert "linear1" in report.aliases


def _keep(output: torch.Tensor, seen: list[torch.Tensor]) -> None:
    output.retain_grad()
    seen.append(output)


@pytest.mark.parametrize("what", ["output", "input", "gradient"])
def test_a_tensor_of_the_past_is_the_very_one(what: str) -> None:
    model, truth, seen = readme_model(), [], []
    model[0].register_forward_hook(lambda _module, _inputs, output: _keep(output, seen))
    with NeuralDbg(model, budget="full") as dbg:
        for step, (inputs, targets) in enumerate(batches(4)):
            model.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            truth.append({"input": inputs, "output": seen[-1].detach().clone(), "gradient": seen[-1].grad.clone()})
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.01 * parameter.grad)
            dbg.capture_step(step)
        state = dbg.inspect("0", step=2, what=what)
    assert torch.equal(state.tensor, truth[2][what])
    assert state.stats["shape"] == tuple(truth[2][what].shape)
    assert (state.what, state.source) == (what, "stored")


def test_gradient_history_agrees_with_the_gradients() -> None:
    model, truth = readme_model(), []
    with NeuralDbg(model, budget="full") as dbg:
        steps(model, batches(6), lambda _: truth.append(math.hypot(*[p.grad.norm() for p in model[2].parameters()])))
        history = dbg.get_gradient_history("2")
    assert history.norms == pytest.approx(truth, rel=1e-5)
    assert history[0].max >= history[0].std
    assert history.layer == "2"


def test_events_hold_input_output_and_gradient(trained: NeuralDbg) -> None:
    events = [event for event in trained.events if event.layer_name == "2"]
    assert [event.step for event in events] == list(range(10))
    assert all(event.input is not None and event.output is not None and event.gradient is not None for event in events)
    assert not events[0].output.requires_grad


def test_the_ring_of_tensors_is_bounded_in_bytes() -> None:
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1))
    with NeuralDbg(model, budget="full", record=False) as dbg:
        dbg._ring.limit_bytes = 2_000_000
        steps(model, [(torch.randn(100, 1000), torch.zeros(100, 1)) for _ in range(12)])
        kept = {id(t): t.numel() * 4 for e in dbg.events for t in (e.input, e.output, e.gradient) if t is not None}
        assert 0 < sum(kept.values()) <= 2_000_000
        assert dbg.events[-1].step == 11
        with pytest.raises(NotRecorded, match="in memory"):
            dbg.inspect("0", step=0)


@pytest.mark.parametrize("grad", [True, False])
def test_evicted_tensors_are_really_freed(grad: bool) -> None:
    model = nn.Linear(1000, 1)
    with NeuralDbg(model, budget="full") as dbg, torch.set_grad_enabled(grad):
        dbg._ring.limit_bytes = 2_000_000
        model(torch.randn(100, 1000))
        first = weakref.ref(dbg.events[0].input)
        for _ in range(20):
            model(torch.randn(100, 1000))
        gc.collect()
        assert first() is None


# -- results -----------------------------------------------------------------------------------------------------------


def results(dbg: NeuralDbg) -> dict[str, Any]:
    return {
        "capture_step": dbg.capture_step(),
        "inspect_layer": dbg.inspect_layer("0"),
        "history": dbg.get_gradient_history("0")[0],
        "health": dbg.analyze_gradient_health(),
        "diagnose": dbg.diagnose(),
    }


def test_results_read_as_attributes_and_as_dicts(trained: NeuralDbg) -> None:
    for name, result in results(trained).items():
        assert list(result), name
        for key in result:
            assert result[key] is getattr(result, key)
        assert dict(result).keys() == result.to_dict().keys()
        with pytest.raises(KeyError):
            result["no such thing"]
        with pytest.raises(AttributeError):
            result.step = 3


def test_results_become_json(trained: NeuralDbg) -> None:
    for result in results(trained).values():
        assert json.loads(json.dumps(result.to_dict(), allow_nan=False))


def test_a_healthy_run_has_no_causes_and_an_honest_verdict(trained: NeuralDbg) -> None:
    health = trained.analyze_gradient_health()
    assert (health.overall, health.score, health.vanishing_layers, health.nan_layers) == ("healthy", 1.0, (), ())
    assert set(health.layers) == {"0", "2"}
    assert trained.explain_failure() == trained.get_root_causes() == []
    assert trained.explain_failure("vanishing_gradients") == []
    assert trained.diagnose().state in ("healthy", "undecided")
    assert trained.diagnose().headline


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_an_unknown_layer_is_answered_with_the_nearest(trained: NeuralDbg) -> None:
    for ask in (trained.inspect_layer, trained.get_gradient_history, trained.inspect):
        with pytest.raises(UnknownLayer, match="linear1"):
            ask("liner1")


def test_an_unknown_failure_is_answered_with_the_nearest(trained: NeuralDbg) -> None:
    with pytest.raises(UnknownName, match="vanishing_gradients"):
        trained.explain_failure("vanishing_gradiens")


def test_an_unknown_tensor_is_answered_with_the_nearest(trained: NeuralDbg) -> None:
    with pytest.raises(UnknownName, match="gradient"):
        trained.inspect("0", what="gradients")


@pytest.mark.parametrize(
    "ask",
    ["capture_step", "has_vanishing_gradients", "has_exploding_gradients", "analyze_gradient_health", "diagnose"],
)
def test_a_question_before_the_start_says_how_to_start(ask: str) -> None:
    with pytest.raises(UsageError, match="has not started"):
        getattr(NeuralDbg(readme_model()), ask)()


def test_properties_before_the_start_say_so_too() -> None:
    for name in ("run_dir", "step", "trace", "events"):
        with pytest.raises(UsageError, match="has not started"):
            getattr(NeuralDbg(readme_model()), name)


@pytest.mark.parametrize("wrong", [42, "model", [nn.Linear(1, 1)]])
def test_something_that_is_no_model_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"nn\.Module"):
        NeuralDbg(wrong)


def test_other_wrong_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NeuralDbgError):
        NeuralDbg(readme_model(), budget="lots")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="not empty"):
        NeuralDbg(readme_model(), out=tmp_path / "mine").start()
    with pytest.raises(UsageError, match="optimizer"):
        neuraldbg.watch(readme_model(), "adam")


def test_nothing_trained_yet_is_answered_without_inventing() -> None:
    model = readme_model()
    with NeuralDbg(model) as dbg:
        record = dbg.capture_step()
        assert (record.loss, record.grad_norm, dict(record.gradients)) == (None, None, {})
        assert not dbg.has_vanishing_gradients()
        assert dbg.analyze_gradient_health().score is None
        assert dbg.events == []


def test_the_run_is_where_it_was_asked_for(tmp_path: Path) -> None:
    model = readme_model()
    with NeuralDbg(model, out=tmp_path / "here", budget="full") as dbg:
        steps(model, batches(3))
    assert dbg.run_dir == tmp_path / "here"
    with open_trace(tmp_path / "here") as trace:
        assert trace.ended
        assert trace.steps.tolist() == [0, 1, 2]
