"""What C does in place of Python code of every step: the same, as Python's own version of each shows, and no frame."""

from __future__ import annotations

import gc
import math
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from watching import net, trace_of, train, watching

from neuraldbg.capture.guard import Guard
from neuraldbg.capture.kernels import frameless, host
from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.capture.torch.core import quick_shield, undisturbed
from neuraldbg.capture.torch.recorder import Recorder
from neuraldbg.errors import StoppedOnNaN
from neuraldbg.records import Call
from neuraldbg.trace.tables import TABLES

PARTS = ("Rows", "Fetches", "shield", "tell", "hang")
BY = ["python", pytest.param("c", marks=pytest.mark.skipif(frameless.shield is None, reason="built without it"))]
compiled = pytest.mark.skipif(frameless.shield is None, reason="built without a compiler, or not on Linux")


@pytest.fixture(params=BY)
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything by C, and everything by Python."""
    if request.param == "python":
        without_c(monkeypatch)
    return str(request.param)


def without_c(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in PARTS:
        monkeypatch.setattr(frameless, part, None)


class Sink:
    """Takes what the flush thread would write."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {name: np.zeros(0, kind) for name, kind in TABLES.items()}

    def append(self, table: str, rows: Any) -> int:
        self.rows[table] = np.concatenate([self.rows[table], rows])
        return 0

    def fact(self, type: str, **fields: Any) -> None: ...


# -- rows --------------------------------------------------------------------------------------------------------------


def ledger(recorder: Recorder) -> list[Any]:
    """Calls and series in every way that they are given; their rows without the time of the day."""
    recorder.step = 7
    given = [
        recorder.call(Call.ZERO_GRAD),
        recorder.call(Call.STEP, 3, value=0.5, aux=2, source=4, duration_ns=2**40),
        recorder.call(Call.BATCH, -1, digest=2**64 - 1, at_step=2**33, pass_id=9),
    ]
    recorder.scalar("loss", 1.5)
    recorder.scalar("loss", math.nan, step=3, pass_id=2)
    recorder.scalar("lr", np.float64(0.1))
    sink = Sink()
    recorder.staging.drain(sink)
    for row in (*sink.rows["calls"], *sink.rows["scalars"]):
        given.append(
            [repr(value) for name, value in zip(row.dtype.names, row.item(), strict=True) if name != "wall_ns"]
        )
    return [*given, dict(recorder.latest, loss=None)]


@compiled
def test_rows_are_those_that_python_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    by_c = ledger(Recorder(lambda: None))
    without_c(monkeypatch)
    assert by_c == ledger(Recorder(lambda: None))


def test_a_row_is_dated(by: str) -> None:
    recorder, sink = Recorder(lambda: None), Sink()
    before = recorder.next_seq()
    assert [recorder.call(Call.STEP), recorder.call(Call.STEP)] == [before + 1, before + 2]
    recorder.scalar("loss", 1.0)
    recorder.staging.drain(sink)
    dates = [*sink.rows["calls"]["wall_ns"], *sink.rows["scalars"]["wall_ns"]]
    assert dates == sorted(dates)
    assert abs(dates[0] - np.datetime64("now").astype("datetime64[ns]").astype(int)) < 60e9


@compiled
def test_rows_that_nobody_takes_are_dropped_and_counted() -> None:
    recorder, sink = Recorder(lambda: None), Sink()
    for _ in range(100_003):
        recorder.call(Call.STEP)
    recorder.staging.drain(sink)
    assert (len(sink.rows["calls"]), recorder.dropped()["calls"]) == (100_000, 3)
    recorder.call(Call.STEP)
    recorder.staging.drain(sink)
    assert len(sink.rows["calls"]) == 100_001


@pytest.mark.parametrize("wrong", [{"site": "x"}, {"value": "x"}, {"nothing": 1}, {"digest": -1}])
@compiled
def test_what_is_no_row_is_refused_and_leaves_none(wrong: dict[str, Any]) -> None:
    recorder, sink = Recorder(lambda: None), Sink()
    with pytest.raises((TypeError, OverflowError)):
        recorder.call(Call.STEP, **wrong)
    with pytest.raises(TypeError):
        recorder.call("step")
    recorder.staging.drain(sink)
    assert len(sink.rows["calls"]) == 0


def test_lines_are_the_users_own_each_with_its_number(by: str) -> None:
    recorder = Recorder(lambda: None)
    first = [recorder.source() for _ in range(3)]
    second, third = recorder.source(), recorder.source()
    here = sys._getframe().f_lineno - 1
    assert first == [0, 0, 0]
    assert second == third == 1
    assert recorder.line_of_source(1) == f"{recorder.frames.display(__file__)}:{here}"


# -- observers ---------------------------------------------------------------------------------------------------------


class Seen(TorchDispatchMode):
    """A mode of the user's that must not see what is ours."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


def guarded(**how: Any) -> Guard:
    return Guard(undisturbed=undisturbed, quick=quick_shield, **how)


def test_an_observer_gets_what_it_is_given_and_its_result_comes_back(by: str) -> None:
    guard = guarded()
    assert guard.shield("a place")(lambda *args, **names: (args, names))(1, 2, x=3) == ((1, 2), {"x": 3})


def test_an_observer_that_fails_is_left_out_after_one_word(by: str) -> None:
    said: list[str] = []
    calls: list[Any] = []

    def fails(what: str) -> None:
        calls.append(what)
        raise ValueError("of ours")

    guard = guarded(report=said.append)
    observe = guard.shield("looking", lambda what: what)(fails)
    assert [observe("a"), observe("a"), observe("b"), observe("a")] == [None] * 4
    assert calls == ["a", "b"]
    assert [line.partition(";")[0] for line in said] == [
        f"stopped watching looking of {x}: ValueError: of ours" for x in "ab"
    ]


@pytest.mark.parametrize("error", [StoppedOnNaN("the loss is not finite", 3, None), KeyboardInterrupt()])
def test_what_is_not_a_failure_of_ours_goes_through(by: str, error: BaseException) -> None:
    def stops() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        guarded().shield("a place")(stops)()
    assert raised.value is error
    assert torch._C._is_torch_function_enabled()


def test_in_tests_failures_of_ours_go_through(by: str) -> None:
    with pytest.raises(ZeroDivisionError):
        guarded(strict=True).shield("a place")(lambda: 1 / 0)()


def test_the_users_modes_and_subclasses_do_not_see_what_is_ours(by: str) -> None:
    observe = guarded().shield("a place")(lambda: (torch.ones(2) + 1, torch._C._is_torch_function_enabled()))
    assert observe()[1] is False
    with Seen() as mode:
        observe()
    assert mode.operations == 0
    assert torch._C._is_torch_function_enabled()


def test_other_surroundings_are_entered_from_when_they_are_set(by: str) -> None:
    entered: list[int] = []

    class Around:
        def __enter__(self) -> None:
            entered.append(1)

        def __exit__(self, *_: Any) -> None: ...

    guard = guarded()
    observe = guard.shield("a place")(lambda: len(entered))
    assert observe() == 0
    guard.undisturbed = Around
    assert observe() == 1


@compiled
def test_an_observer_has_no_frame_of_ours_above_it() -> None:
    assert guarded().shield("a place")(lambda: sys._getframe(1).f_code)() is sys._getframe().f_code


def test_all_are_told_also_one_that_comes_while_they_are(by: str) -> None:
    told: list[Any] = []
    notices: list[Any] = [
        lambda *given: told.append(given),
        lambda *_: notices.append(told.append) if len(notices) < 3 else None,
    ]
    Guard().teller(str)(notices, 5)
    assert told == [(5,), 5]


# -- calls of the user's -----------------------------------------------------------------------------------------------


@compiled
def test_a_warning_that_torch_gives_names_the_users_line() -> None:
    capture = TorchCapture(lambda: None, Options(strict=True))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.ones(1, requires_grad=True).__float__()
            torch.ones(3, requires_grad=True).sum().mul(2).tolist()
            [warnings.warn(str(float(torch.ones(1, requires_grad=True))), stacklevel=1)]
    finally:
        capture.close()
    assert {one.filename for one in caught} == {__file__}


def test_values_that_the_user_fetches_are_counted_with_their_line(by: str, tmp_path: Path) -> None:
    with watching(tmp_path / "run"):
        train(net(), 2)
        x = torch.ones(2)
        for _ in range(5):
            x.sum().item()
        line = sys._getframe().f_lineno - 1
        assert (float(x[0]), int(x[1]), bool(x[0]), x.cpu().tolist()) == (1.0, 1, True, [1.0, 1.0])
        assert repr(x) == "tensor([1., 1.])"
        with pytest.raises(RuntimeError):
            x.item()
    with trace_of(tmp_path / "run") as trace:
        (fact,) = trace.facts("host_fetches")
    assert fact["calls"] == 14  # two by the loop
    assert fact["lines"][0][0].endswith(f"test_frameless.py:{line}")
    assert fact["seconds"] > 0


def test_the_methods_of_tensors_are_theirs_again_and_look_it_meanwhile(by: str) -> None:
    before = torch.Tensor.item
    capture = TorchCapture(lambda: None, Options(strict=True))
    assert torch.Tensor.item is not before
    assert (torch.Tensor.item.__name__, torch.Tensor.item.__doc__) == ("item", before.__doc__)
    capture.close()
    assert torch.Tensor.item is before


# -- hooks on tensors --------------------------------------------------------------------------------------------------


@compiled
def test_a_hook_is_called_as_if_torch_had_hung_it() -> None:
    arrived: list[Any] = []
    leaf = torch.ones(2, requires_grad=True)
    inner = leaf * 3
    inner.register_hook(lambda gradient: arrived.append(("first", gradient.tolist())))
    assert frameless.hang(inner, lambda gradient: arrived.append(("ours", gradient.tolist())))
    inner.register_hook(lambda gradient: arrived.append(("last", gradient.tolist())))
    alone = inner * 2
    assert frameless.hang(alone, lambda gradient: arrived.append(("alone", gradient.tolist())))
    assert not frameless.hang(leaf, print)
    alone.sum().backward()
    assert arrived == [("alone", [1, 1]), ("first", [2, 2]), ("ours", [2, 2]), ("last", [2, 2])]


# -- a run -------------------------------------------------------------------------------------------------------------


def one_run(folder: Path) -> dict[str, Any]:
    gc.collect()  # a model of the run before would be a copy of this one
    torch.manual_seed(3)
    model = net()
    with watching(folder):
        train(model, 40)
    with trace_of(folder) as trace:
        calls, scalars = trace.table("calls"), trace.table("scalars")
        timed = {site.id for site in trace.sites if site.path.endswith(("_s", "_bytes"))}
        kept = [not each for each in map(timed.__contains__, scalars["site"].tolist())]
        columns = ("step", "site", "pass_id", "call", "value", "aux", "digest", "source")
        facts = [(fact["type"], sorted(fact)) for fact in trace.facts() if fact["type"] != "overhead"]
        return {
            "calls": [repr(calls[name].tolist()) for name in columns],
            "scalars": [repr(scalars[name][kept].tolist()) for name in ("step", "site", "value")],
            "facts": facts,
            "weights": [parameter.tolist() for parameter in model.parameters()],
        }


@compiled
def test_a_run_leaves_the_same_with_and_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_c = one_run(tmp_path / "c")
    without_c(monkeypatch)
    by_python = one_run(tmp_path / "python")
    for name in by_c:
        assert by_c[name] == by_python[name], name


def test_nothing_of_a_capture_outlives_it(by: str) -> None:
    capture = TorchCapture(lambda: None, Options(strict=True))
    train(net(), 3)
    watched = [weakref.ref(capture), weakref.ref(capture.core.recorder), weakref.ref(capture.core)]
    capture.close()
    del capture
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3


# -- gradients of what is held weakly ----------------------------------------------------------------------------------


def with_gradient(gradient: torch.Tensor | None) -> torch.Tensor:
    leaf = torch.zeros(6 if gradient is None else gradient.shape, requires_grad=True)
    leaf.grad = gradient
    return leaf


@compiled
@pytest.mark.parametrize(
    ("gradient", "finite"),
    [
        (torch.ones(6), True),
        (torch.tensor([1.0, math.nan]), False),
        (torch.tensor([1.0, -math.inf]), False),
        (torch.full((300,), 1e30), True),
        (torch.zeros(0), True),
        (None, None),
        (torch.sparse_coo_tensor([[0]], [math.nan], (3,), check_invariants=True), None),
        (torch.ones(4, 3).t(), None),
    ],
)
def test_gradients_are_finite_or_not_or_read_by_others(gradient: torch.Tensor | None, finite: bool | None) -> None:
    fine, leaf = with_gradient(torch.ones(3)), with_gradient(gradient)
    assert host.all_finite([weakref.ref(fine), weakref.ref(leaf)]) is finite


@compiled
def test_of_a_parameter_that_is_gone_nothing_is_said() -> None:
    gone = weakref.ref(with_gradient(torch.ones(3)))
    assert host.all_finite([gone]) is None
