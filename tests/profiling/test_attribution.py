"""Time is charged to whom it belongs, checked against programs that know how long they slept where."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sleeping import Books, Net, train  # noqa: E402
from torch import nn  # noqa: E402

from neuraldbg import Trace, open_trace  # noqa: E402
from neuraldbg.analysis.profile_report import profile_of  # noqa: E402
from neuraldbg.capture.torch.attach import Options, TorchCapture  # noqa: E402
from neuraldbg.trace import TraceWriter, create_run  # noqa: E402
from neuraldbg.trace.rundir import new_run_info  # noqa: E402

STEPS, WARM = 14, 3  # of the timed steps the first two do not count, and the first of all has no beginning


def profiled(folder: Path, books: Books, model: nn.Module, **given: Any) -> dict[str, Any]:
    """The profile of a run whose books hold the very steps that count."""
    run = create_run(new_run_info(("train.py",), script="train.py", budget="full"), out=folder / "run")
    with TraceWriter(run) as writer:
        capture = TorchCapture(lambda: writer, Options(budget=None, strict=True, profile=True))
        try:
            train(model, books, WARM, **given)
            books.forget()
            before_ns = capture.core.budget.own_ns
            train(model, books, STEPS, **given)
            books.ours_s = (capture.core.budget.own_ns - before_ns) / 1e9
        finally:
            capture.close()
    with open_trace(run) as trace:
        books.told = {name: curve(trace, name) for name in ("time.outside", "step_time_s")}
        return profile_of(trace)


def curve(trace: Trace, name: str) -> dict[int, float]:
    site = next(one.id for one in trace.sites if one.path == name)
    table = trace.table("scalars", ("step", "site", "value"))
    mine = table["site"] == site
    return dict(zip(table["step"][mine].tolist(), table["value"][mine].tolist(), strict=True))


def undisturbed(test: Callable[[Path], None]) -> Callable[[Path], None]:
    """Somebody else's work on the same cores falls between the sleeps and is nobody's in the books: of four runs one
    has to be as it should."""

    @wraps(test)
    def again(tmp_path: Path) -> None:
        for attempt in range(4):
            (tmp_path / str(attempt)).mkdir()
            try:
                return test(tmp_path / str(attempt))
            except AssertionError:
                if attempt == 3:
                    raise
        return None

    return again


def layers(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["path"]: one for one in told["layers"]}


def step_ms(books: Books) -> float:
    """A step as the program timed it, less what the debugger took in it."""
    return (sum(books.steps) - books.ours_s) / STEPS * 1e3


def ms(books: Books, *names: str) -> float:
    """A step's share of what was slept under these names."""
    return sum(books.seconds[name] for name in names) / STEPS * 1e3


@undisturbed
def test_the_phases_are_the_step(tmp_path: Path) -> None:
    books = Books()
    told = profiled(tmp_path, books, Net(books), data_s=0.009, loss_s=0.007)
    phases = told["phases_ms"]
    timed_apart = step_ms(books)
    assert sum(phases.values()) == pytest.approx(timed_apart, rel=0.05)
    assert sum(phases.values()) == pytest.approx(told["step_ms"]["mean"], rel=0.05)
    assert phases["data"] == pytest.approx(ms(books, "data"), rel=0.10)
    assert phases["loss"] == pytest.approx(ms(books, "loss"), rel=0.15)
    forward = ms(books, "block.first", "block.second", "block", "head")
    assert phases["forward"] == pytest.approx(forward, rel=0.08)
    backward = ms(books, *(f"{name} backward" for name in ("block.first", "block.second", "block", "head")))
    assert phases["backward"] == pytest.approx(backward, rel=0.12)
    assert told["input_wait_share"] == pytest.approx(phases["data"] / timed_apart, rel=0.05)


def typical_ms(books: Books, name: str) -> float:
    """Of one step, untouched by steps in which the machine was busy with something else."""
    return float(np.median([row.get(name, 0.0) for row in books.rows[1:]])) * 1e3


@undisturbed
def test_glue_is_outside_and_makes_no_layer_grow(tmp_path: Path) -> None:
    books = Books()
    told = profiled(tmp_path, books, Net(books, glue_s=0.013))
    steps = range(WARM + 1, WARM + STEPS)
    outside = [books.told["time.outside"][step] for step in steps]
    whole = [books.told["step_time_s"][step] for step in steps]
    glue = [row["glue"] + row["glue backward"] for row in books.rows[1:]]
    assert np.median(np.array(glue) / whole) > 0.1  # about 30 % on a machine that has nothing else to do
    assert np.median(np.array(outside) / whole) == pytest.approx(np.median(np.array(glue) / whole), abs=0.03)
    for path in ("block.first", "block.second", "head"):
        row = layers(told)[path]
        assert row["forward_ms"]["p50"] == pytest.approx(typical_ms(books, path), rel=0.1), path
        assert row["backward_ms"]["p50"] == pytest.approx(typical_ms(books, f"{path} backward"), rel=0.12), path


@undisturbed
def test_a_module_has_its_own_time_and_that_of_the_layers_inside(tmp_path: Path) -> None:
    books = Books()
    told = layers(profiled(tmp_path, books, Net(books)))
    block = told["block"]
    inside = sum(told[f"block.{name}"]["self_ms"] for name in ("first", "second"))
    assert block["self_ms"] == pytest.approx(ms(books, "block", "block backward"), rel=0.15, abs=1.0)
    assert block["total_ms"] == pytest.approx(block["self_ms"] + inside, rel=0.02)
    backward = sum(told[path]["self_backward_ms"] for path in ("block", "block.first", "block.second"))
    assert block["backward_ms"]["mean"] == pytest.approx(backward, rel=0.02)  # with the layers inside, as its forward
    whole = ms(books, *(f"block{part}{way}" for part in ("", ".first", ".second") for way in ("", " backward")))
    assert block["total_ms"] == pytest.approx(whole, rel=0.15)


def test_calls_are_counted_and_told_with_their_spread(tmp_path: Path) -> None:
    books = Books()
    told = layers(profiled(tmp_path, books, Net(books)))
    head = told["head"]["forward_ms"]
    assert told["head"]["calls"] == WARM + STEPS - 2
    assert head["min"] <= head["p50"] <= head["p95"] <= head["p99"] <= head["max"]
    assert head["mean"] == pytest.approx(head["total"] / told["head"]["calls"])
    assert head["min"] >= 9.0  # it sleeps for as long


class Nothing(nn.Module):
    """A model without layers: it is the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        time.sleep(0.003)
        return x * self.weight


@undisturbed
def test_a_model_without_layers_is_one(tmp_path: Path) -> None:
    told = profiled(tmp_path, Books(), Nothing())
    assert told["phases_ms"]["forward"] > 2.9
    assert told["phases_ms"]["forward"] > 3 * told["phases_ms"]["outside"]
    assert told["layers"] == []


@undisturbed
def test_evaluation_is_told_apart(tmp_path: Path) -> None:
    books = Books()

    class WithEvaluation(Net):
        def forward(self, x: Any) -> Any:
            if torch.is_grad_enabled():
                with torch.no_grad():
                    pass
            return super().forward(x)

    model = WithEvaluation(books)
    run = create_run(new_run_info(("train.py",), script="train.py", budget="full"), out=tmp_path / "run")
    with TraceWriter(run) as writer:
        capture = TorchCapture(lambda: writer, Options(budget=None, strict=True, profile=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        try:
            for _ in range(6):
                model(torch.ones(1, 4)).mean().backward()
                optimizer.step()
                with torch.no_grad():
                    model(torch.ones(1, 4))
        finally:
            capture.close()
    with open_trace(run) as trace:
        told = profile_of(trace)
    assert told["phases_ms"]["eval"] > 25.9 * 5 / 6  # before the first update there is none
    assert told["phases_ms"]["forward"] < 1.6 * told["phases_ms"]["eval"]
    assert layers(told)["head"]["calls"] == 6


def test_profiling_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    def result() -> list[bytes]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 4))
        train(model, Books(), 6)
        return [parameter.detach().numpy().tobytes() for parameter in model.parameters()]

    bare = result()
    run = create_run(new_run_info(("train.py",), script="train.py", budget="full"), out=tmp_path / "run")
    with TraceWriter(run) as writer:
        capture = TorchCapture(lambda: writer, Options(budget=None, strict=True, profile=True, memory=True))
        try:
            assert result() == bare
        finally:
            capture.close()


def test_a_quiet_run_is_timed_on_some_steps_only_and_told_so(tmp_path: Path) -> None:
    books = Books()
    run = create_run(new_run_info(("train.py",), script="train.py", budget="1%"), out=tmp_path / "run")
    with TraceWriter(run) as writer:
        capture = TorchCapture(lambda: writer, Options(budget=1e-9, strict=True, profile=True))
        try:
            train(nn.Sequential(nn.Linear(4, 4)), books, 60)
        finally:
            capture.close()
    with open_trace(run) as trace:
        told = profile_of(trace)
    assert (told["steps"], told["all_steps"]) == (18, 60)


class DeviceClock:
    """A device that is as fast as the host: its marks are moments, delivered when it is asked."""

    used = True

    def __init__(self, real: Any) -> None:
        self._real, self.waiting = real, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def mark(self) -> float:
        return time.perf_counter()

    def elapsed(self, start: float, end: float, deliver: Any) -> None:
        self.waiting.append(lambda: deliver(int((end - start) * 1e9)))

    def poll(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


@undisturbed
def test_on_a_device_the_phases_are_between_its_own_marks(tmp_path: Path) -> None:
    books = Books()
    model = Net(books, glue_s=0.009)
    run = create_run(new_run_info(("train.py",), script="train.py", budget="full"), out=tmp_path / "run")
    with TraceWriter(run) as writer:
        capture = TorchCapture(lambda: writer, Options(budget=None, strict=True, profile=True))
        capture.core.device = DeviceClock(capture.core.device)  # type: ignore[assignment]
        timing = capture.watchers[0]
        timing.on_device = True
        try:
            train(model, books, WARM)
            books.forget()
            train(model, books, STEPS, data_s=0.007)
        finally:
            capture.close()
    with open_trace(run) as trace:
        phases = profile_of(trace)["phases_ms"]
        curves = [curve(trace, f"time.{phase}") for phase, spent in phases.items() if spent]
    assert phases["data"] == pytest.approx(ms(books, "data"), rel=0.15)
    forward = ms(books, "block.first", "block.second", "block", "head")
    assert phases["forward"] == pytest.approx(forward, rel=0.25, abs=1.0)
    assert phases["outside"] >= 0.9 * ms(books, "glue", "glue backward")
    # a device goes on while we take notes: what is ours is part of it, and the whole is what the program saw
    whole = [sum(one.get(WARM + step, 0.0) for one in curves) for step in range(1, STEPS)]
    assert np.median(np.array(whole) / books.steps[1:]) == pytest.approx(1.0, abs=0.05)
