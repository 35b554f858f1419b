"""Attaching changes nothing a program can see, and leaving takes everything away again."""

from __future__ import annotations

import gc
import logging
import multiprocessing.spawn
import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.clip_grad
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules import module as torch_module
from torch.optim import lr_scheduler
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, dataloader
from watching import calls, facts, net, train, watching

from neuraldbg.capture.torch.passes import PassRecord, RngState
from neuraldbg.capture.torch.probes.sample import MOST_SAMPLES
from neuraldbg.records import Call

OWNERS = [
    torch.autograd, torch.nn.utils, torch.nn.utils.clip_grad, torch.optim.Optimizer, nn.Module, GradScaler, DataLoader,
    dataloader._BaseDataLoaderIter, torch_module, torch_optimizer, multiprocessing.spawn, torch.Tensor,
    *[value for value in vars(lr_scheduler).values() if isinstance(value, type)],
]  # fmt: skip


def world() -> dict[tuple[int, str], Any]:
    """Every attribute of everything we patch, by identity; of hook tables their size."""
    seen: dict[tuple[int, str], Any] = {}
    for position, owner in enumerate(OWNERS):
        for name, value in vars(owner).items():
            if "hooks" in name and hasattr(value, "__len__"):
                seen[position, name] = len(value)
            elif callable(value) or isinstance(value, staticmethod | classmethod):
                seen[position, name] = value
    return seen


def difference(before: dict[tuple[int, str], Any], after: dict[tuple[int, str], Any]) -> list[str]:
    names = sorted(before.keys() | after.keys())
    return [f"{OWNERS[at].__name__}.{name}" for at, name in names if before.get((at, name)) != after.get((at, name))]


def test_attaching_touches_known_places_and_closing_restores_them_all(tmp_path: Path) -> None:
    before = world()
    with watching(tmp_path):
        assert "torch.autograd.backward" in difference(before, world())
        train(net())
    assert difference(before, world()) == []


def test_closing_twice_and_closing_unused_are_harmless(tmp_path: Path) -> None:
    before = world()
    with watching(tmp_path) as capture:
        capture.close()
        capture.close()
    assert difference(before, world()) == []


def test_sessions_may_follow_one_another_and_stand_inside_one_another(tmp_path: Path) -> None:
    before = world()
    for name in "ab":
        with watching(tmp_path / name):
            train(net(), 2)
    with watching(tmp_path / "outer"):
        train(net(), 1)
        with watching(tmp_path / "inner"):
            train(net(), 2)
        train(net(), 1)
    assert difference(before, world()) == []
    counts = {name: calls(tmp_path / name).count(Call.STEP) for name in ("a", "b", "outer", "inner")}
    assert counts == {"a": 2, "b": 2, "outer": 4, "inner": 2}


def test_sessions_closed_in_the_wrong_order_leave_nothing_either(tmp_path: Path) -> None:
    before = world()
    with watching(tmp_path / "first") as first, watching(tmp_path / "second"):
        first.close()
        train(net(), 2)
    assert difference(before, world()) == []
    assert calls(tmp_path / "second").count(Call.STEP) == 2


def test_what_the_user_patched_on_top_stays_and_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    original = torch.autograd.backward
    with watching(tmp_path):
        ours = torch.autograd.backward

        def theirs(*args: Any, **kwargs: Any) -> None:
            seen.append("backward")
            ours(*args, **kwargs)

        monkeypatch.setattr(torch.autograd, "backward", theirs)
        train(net(), 1)
    assert torch.autograd.backward is theirs
    train(net(), 1)
    assert seen == ["backward", "backward"]
    monkeypatch.undo()  # back to ours, which is off by now and would stay for ever
    torch.autograd.backward = original


@pytest.mark.parametrize(
    "place", ["torch.autograd.backward", "torch.autograd.grad", "torch.optim.Optimizer.__init__",
              "torch.optim.Optimizer.zero_grad", "torch.nn.Module.load_state_dict", "torch.nn.utils.clip_grad_norm_"]
)  # fmt: skip
def test_patched_functions_look_like_the_originals(tmp_path: Path, place: str) -> None:
    """Frameworks read names, signatures and docstrings of torch's functions."""
    import inspect
    from operator import attrgetter

    get = attrgetter(place.removeprefix("torch."))

    def look() -> tuple[Any, ...]:
        function = get(torch)
        return function.__name__, function.__doc__, str(inspect.signature(function))

    before = look()
    with watching(tmp_path):
        assert look() == before


# -- never hurt the training -------------------------------------------------------------------------------------------


def test_results_and_generators_are_the_same_with_and_without(tmp_path: Path) -> None:
    def run() -> tuple[Any, ...]:
        random.seed(1)
        np.random.seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        torch.manual_seed(1)
        losses = train(model, 5)
        rng = RngState.take()
        return losses, rng.torch_cpu.tolist(), rng.python, rng.numpy[1].tolist()

    torch.manual_seed(7)
    plain = run()
    torch.manual_seed(7)
    with watching(tmp_path):
        watched = run()
    assert watched == plain


@pytest.mark.parametrize("place", ["on_layer", "on_gradient"])
def test_a_failing_observer_is_reported_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("observer fault")

    torch.manual_seed(3)
    plain = train(net(), 4)
    torch.manual_seed(3)
    with caplog.at_level(logging.WARNING, "neuraldbg"), watching(tmp_path, strict=False, **{place: (broken,)}):
        assert train(net(), 4) == plain
    [record] = caplog.records
    assert "observer fault" in record.getMessage()
    assert "training continues" in record.getMessage()
    assert [fact["level"] for fact in facts(tmp_path, "note")] == ["warning"]
    assert calls(tmp_path).count(Call.STEP) == 4


def test_an_exception_of_the_user_passes_through_untouched(tmp_path: Path) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()
            self.fails = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x)
            if self.fails:
                raise ValueError("mine")
            return out

    model = Failing()
    with watching(tmp_path) as capture:
        for _ in range(2):
            with pytest.raises(ValueError, match="mine"):
                model(torch.ones(2, 4))
            assert capture.core.here.local.stack == []
        model.fails = False
        model(torch.ones(2, 4))
    assert calls(tmp_path).count(Call.PASS) == 3, "every call was a pass of its own"


def test_an_interrupted_forward_is_forgotten_at_the_next_update(tmp_path: Path) -> None:
    model = net()
    handle = model[1].register_forward_hook(_interrupt)
    with watching(tmp_path):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(2, 4))
        handle.remove()
        train(model, 3)
    assert calls(tmp_path).count(Call.PASS) >= 3
    assert calls(tmp_path).count(Call.STEP) == 3


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_updates_are_counted_again_after_one_that_failed(tmp_path: Path, error: type[BaseException]) -> None:
    """A closure may raise, and people catch it and go on."""
    model = net()

    def closure() -> float:
        raise error("in the closure")

    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(error):
            optimizer.step(closure)
        train(model, 3)
        optimizer.step()
    assert calls(tmp_path).count(Call.STEP) == 4


def test_backwards_are_counted_again_after_one_that_failed(tmp_path: Path) -> None:
    model = net()
    with watching(tmp_path):
        out = model(torch.ones(2, 4)).sum()
        out.backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.backward()
        train(model, 2)
    assert calls(tmp_path).count(Call.PASS) == 3


# -- nothing is kept alive ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["trained", "forward only", "never called"])
@pytest.mark.parametrize("attached", [True, False])
def test_a_dropped_model_is_freed(tmp_path: Path, use: str, attached: bool) -> None:
    def made() -> weakref.ref[nn.Module]:
        model = net()
        if use == "trained":
            train(model, 2)
        elif use == "forward only":
            model(torch.ones(2, 4))  # in grad mode, and no update ever comes
        return weakref.ref(model)

    with watching(tmp_path):
        model = made()
        if attached:
            gc.collect()
            assert model() is None
    gc.collect()
    assert model() is None


def _alive(kind: type) -> int:
    gc.collect()
    return sum(type(item) is kind for item in gc.get_objects())


def test_a_graph_the_user_keeps_does_not_keep_our_records(tmp_path: Path) -> None:
    model, kept = net(), []
    before = _alive(PassRecord)
    with watching(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            loss = model(torch.randn(8, 4)).sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            kept.append(loss)
        assert _alive(PassRecord) - before <= MOST_SAMPLES, "but a few batches that are kept for experiments"


@pytest.mark.parametrize("keep_outputs", [True, False])
def test_passes_without_an_update_do_not_pile_up(tmp_path: Path, keep_outputs: bool) -> None:
    """Acting in an environment, or plain inference without no_grad: many passes, and no update for a long time."""
    model, kept = net(), []
    before = _alive(PassRecord)
    with watching(tmp_path):
        for _ in range(300):
            out = model(torch.randn(8, 4))
            kept += [out] if keep_outputs else []
        assert _alive(PassRecord) - before <= 64


def test_a_closed_capture_is_freed(tmp_path: Path) -> None:
    def used() -> weakref.ref[Any]:
        with watching(tmp_path) as capture:
            train(net())
            return weakref.ref(capture)

    capture = used()
    gc.collect()
    assert capture() is None
