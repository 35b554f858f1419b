"""Modules of a pass that C sees are called without torch's way through hooks: with the same rows, and only where there
is nothing on that way that somebody else wants."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from quick_layers import STEPS, nothing_was_compiled, seen_by_c, table  # noqa: F401
from torch import Tensor, nn
from watching import net, train, watching

from neuraldbg.capture.torch.dispatch import ShortWay

pytestmark = [seen_by_c, pytest.mark.usefixtures("nothing_was_compiled")]
LONG_WAY = nn.Module._call_impl.__code__


def standing() -> Any:
    return vars(nn.Module)["_compiled_call_impl"]


@contextmanager
def long_ways() -> Iterator[list[str]]:
    """The classes of modules whose call goes through torch's function that looks for hooks."""
    found: list[str] = []

    def noticed(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is LONG_WAY:
            found.append(type(frame.f_locals["self"]).__name__)

    sys.setprofile(noticed)
    try:
        yield found
    finally:
        sys.setprofile(None)


class Around(nn.Module):
    """Does something with its layer before it calls it."""

    def __init__(self, does: Callable[[nn.Module], Any], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1) if inner is None else inner
        self.does, self.results = does, []

    def forward(self, x: Tensor) -> Tensor:
        self.results.append(self.does(self.inner))
        out: Tensor = self.inner(x)
        return out


def test_only_the_model_itself_goes_the_long_way(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        train(model, 2)
        with long_ways() as found:
            train(model, 1)
    assert found == ["Sequential"]
    assert standing() is None


def test_the_rows_are_those_of_the_long_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    first, seen = net(), []
    for folder in ("short", "long"):
        model = copy.deepcopy(first)
        torch.manual_seed(2)
        with watching(tmp_path / folder):
            train(model, 5)
        shown = {name: table(tmp_path / folder, name, 3) for name in ("stats", "spans")}
        left_out = ("seq", "wall_ns", "start_ns", "duration_ns")
        seen.append([{key: row[key] for key in row if key not in left_out} for rows in shown.values() for row in rows])
        monkeypatch.setattr(ShortWay, "open", lambda *_: None)
    assert seen[0] == seen[1]
    assert len(seen[0]) > 20


def test_it_stands_there_while_a_measured_pass_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And in so many of them only: Python keeps a version of a class for each change, up to a number."""
    monkeypatch.setattr("neuraldbg.capture.torch.dispatch.MOST_SHORT_WAYS", 3)
    model = Around(lambda _: standing() is not None)
    with watching(tmp_path):
        for _ in range(5):
            model(torch.ones(2, 4))
            assert standing() is None
    assert model.results == [True] * 3 + [False] * 2


def test_a_pass_that_is_not_measured_needs_none(tmp_path: Path) -> None:
    model = Around(lambda _: standing() is not None)
    with watching(tmp_path, budget=1e-9):
        train(model, STEPS)
    assert model.results == [step < 20 for step in range(STEPS)]


def test_two_captures_leave_nothing_behind(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path / "a"):
        with watching(tmp_path / "b"):
            train(model, 2)
        train(model, 2)
        with long_ways() as found:
            train(model, 1)
    assert found == ["Sequential"]
    assert standing() is None


def test_who_keeps_what_was_to_be_called_goes_the_long_way_with_it(tmp_path: Path) -> None:
    model, fired = Around(lambda layer: layer._compiled_call_impl), []
    with watching(tmp_path):
        model(torch.ones(2, 4))
    model.inner.register_forward_hook(lambda *_: fired.append(1))
    assert model.results[0](torch.ones(2, 4)).shape == (2, 1)
    assert fired == [1]


def on_layer(layer: nn.Module) -> Any:
    return layer.register_forward_hook(lambda *_: None)


def on_inputs(layer: nn.Module) -> Any:
    return layer.register_forward_pre_hook(lambda *_: None)


def on_gradients(layer: nn.Module) -> Any:
    return layer.register_full_backward_hook(lambda *_: None)


def on_all(_: nn.Module) -> Any:
    return nn.modules.module.register_module_forward_hook(lambda *_: None)


@pytest.mark.parametrize("hang", [on_layer, on_inputs, on_gradients, on_all])
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_that_are_hung_in_mid_pass_are_called(tmp_path: Path, hang: Callable[[nn.Module], Any]) -> None:
    model = Around(hang)
    with watching(tmp_path), long_ways() as found:
        model(torch.ones(2, 4)).sum().backward()
    model.results[0].remove()
    assert found == ["Around", "Linear"]


class OwnWay(nn.Linear):
    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return super()._call_impl(*args, **kwargs) * 0 + 7


def test_a_class_that_is_called_in_a_way_of_its_own_is_called_so(tmp_path: Path) -> None:
    model = Around(lambda _: None, OwnWay(4, 1))
    with watching(tmp_path):
        assert model(torch.ones(2, 4)).tolist() == [[7.0], [7.0]]


def in_its_place(layer: Any) -> None:
    layer._call_impl = lambda x: x[:, :1] * 0 + 7


def compiled_by_hand(layer: Any) -> None:
    layer._compiled_call_impl = lambda x: x[:, :1] * 0 + 7


@pytest.mark.parametrize("change", [in_its_place, compiled_by_hand])
def test_a_module_that_is_called_in_a_way_of_its_own_is_called_so(tmp_path: Path, change: Any) -> None:
    model = Around(change)
    with watching(tmp_path):
        assert model(torch.ones(2, 4)).tolist() == [[7.0], [7.0]]


def with_the_same_things(layer: nn.Module) -> Any:
    other = object.__new__(type(layer))
    other.__dict__ = dict(layer.__dict__) | {"_parameters": {"weight": nn.Parameter(torch.ones(1, 4)), "bias": None}}
    return other


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, with_the_same_things])
def test_a_copy_that_is_made_in_mid_pass_is_called_as_itself(tmp_path: Path, copied: Any) -> None:
    def changed(layer: nn.Module) -> Any:
        twin = copied(layer)
        twin._parameters = {"weight": nn.Parameter(torch.ones(1, 4)), "bias": None}
        return twin(torch.ones(2, 4)).tolist()

    model = Around(changed)
    with watching(tmp_path):
        model(torch.ones(2, 4))
    assert model.results == [[[4.0], [4.0]]]


def test_a_module_that_is_pickled_in_mid_pass_has_nothing_of_ours(tmp_path: Path) -> None:
    model = Around(lambda layer: pickle.dumps(layer))
    with watching(tmp_path):
        model(torch.ones(2, 4))
    assert b"neuraldbg" not in model.results[0]


def test_named_arguments_and_calls_within_calls(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, *, by: float = 1.0, times: int = 0) -> Tensor:
            out: Tensor = self(x, by=by, times=times - 1) if times else x * by
            return out

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scaled = nn.Linear(4, 1), Scaled()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.scaled(self.inner(x), by=2.0, times=3)
            return out

    model = Model()
    expected = model(torch.ones(2, 4)).tolist()
    with watching(tmp_path), long_ways() as found:
        assert model(torch.ones(2, 4)).tolist() == expected
    assert found == ["Model"]
    spans = [row for row in table(tmp_path, "spans", 0) if row["path"] == "scaled"]
    assert len(spans) == 4


def test_an_error_of_a_forward_goes_through_as_it_is(tmp_path: Path) -> None:
    class Refuses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("not today")

    model = nn.Sequential(nn.Linear(4, 4), Refuses())
    with watching(tmp_path) as capture:
        for _ in range(2):
            with pytest.raises(ValueError, match="not today"):
                model(torch.ones(2, 4))
        assert capture.passes.quick.c.error is None
        with long_ways() as found:
            model[0](torch.ones(2, 4))
        assert found == ["Linear"]  # a pass of its own


def test_another_thread_in_mid_pass_goes_the_long_way(tmp_path: Path) -> None:
    results: list[Any] = []

    def beside(layer: nn.Module) -> None:
        thread = threading.Thread(target=lambda: results.append(layer(torch.ones(2, 4)).shape))
        thread.start()
        thread.join()

    model = Around(beside)
    with watching(tmp_path):
        model(torch.ones(2, 4))
    assert results == [(2, 1)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_layer_that_is_traced_in_mid_pass_is_traced(tmp_path: Path) -> None:
    model = Around(lambda layer: torch.jit.trace(nn.Sequential(layer), torch.ones(2, 4)))
    with watching(tmp_path):
        model(torch.ones(2, 4))
    assert "Linear" in str(model.results[0].graph)


COMPILES = """
import warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
train()
with torch.no_grad():
    called = {how}
    print(called(torch.ones(2, 4)).tolist())
for _ in range(20):
    train()
with torch.no_grad():
    print(called(torch.ones(2, 4)).tolist(), model(torch.ones(2, 4)).tolist())
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
BY_DYNAMO = 'torch._dynamo.optimize("eager", nopython=True)(model)'
EXPORTED = "torch.export.export(model, (torch.ones(2, 4),), strict=True).module()"
COMPILED = 'torch.compile(model, backend="eager", fullgraph=True)'


@pytest.mark.parametrize("how", [BY_DYNAMO, EXPORTED, COMPILED])
def test_dynamo_finds_nothing_of_ours(tmp_path: Path, how: str) -> None:
    """Nor is anything compiled anew when few steps are measured any more."""
    script = tmp_path / "train.py"
    script.write_text(COMPILES.replace("{how}", how))
    watched = ("-m", "neuraldbg", "debug", "--headless", "--budget", "0.0001%", "--out", str(tmp_path / "run"))
    said = []
    for options in ((), watched):
        command = [sys.executable, *options, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
