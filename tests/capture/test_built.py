"""Modules are known from the moment they are made: no search through all objects of the process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from neuraldbg.capture.guard import Guard
from neuraldbg.capture.torch import built
from neuraldbg.capture.torch.built import BuiltModules
from neuraldbg.capture.torch.core import undisturbed
from neuraldbg.capture.torch.patches import Patches


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)


class OwnWay(Net):
    def __deepcopy__(self, _: Any) -> OwnWay:
        other = OwnWay.__new__(OwnWay)
        other.__dict__.update(self.__dict__)
        return other


@pytest.fixture
def patches() -> Iterator[Patches]:
    ours = Patches()
    yield ours
    ours.close()


def _watching(patches: Patches) -> BuiltModules:
    guard = Guard(strict=True, report=lambda _: None, undisturbed=undisturbed)
    core: Any = SimpleNamespace(on=True, closed=False, guard=guard)
    return BuiltModules(core, patches)


@pytest.fixture
def from_the_start(patches: Patches, monkeypatch: pytest.MonkeyPatch) -> BuiltModules:
    monkeypatch.setattr(torch.__spec__, "_initializing", True, raising=False)
    return _watching(patches)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(built, "instances_of", lambda kinds, exact: calls.append(kinds) or [])
    return calls


def test_those_that_are_built_copied_and_unpickled_are_known(from_the_start: BuiltModules, searched: list[Any]) -> None:
    one = Net()
    alike = copy.deepcopy(one)
    read = pickle.loads(pickle.dumps(one))
    assert {id(module) for module in from_the_start.of({Net})} == {id(one), id(alike), id(read)}
    assert not searched


def test_a_single_layer_is_a_module_as_well(from_the_start: BuiltModules, searched: list[Any]) -> None:
    one = nn.Linear(2, 2)
    assert from_the_start.of({nn.Linear}) == [one]
    assert not searched


def test_those_that_are_gone_are_forgotten(from_the_start: BuiltModules, searched: list[Any]) -> None:
    Net()
    assert from_the_start.of({Net}) == []


def test_a_class_that_copies_itself_in_its_own_way_is_searched_for(
    from_the_start: BuiltModules, searched: list[Any]
) -> None:
    copy.deepcopy(OwnWay())
    from_the_start.of({OwnWay})
    assert searched == [(OwnWay,)]


def test_who_comes_later_searches_and_changes_nothing(patches: Patches, searched: list[Any]) -> None:
    before = nn.Module.__setstate__
    late = _watching(patches)
    late.of({Net})
    assert searched == [(Net,)]
    assert nn.Module.__setstate__ is before


def test_closing_leaves_nothing(from_the_start: BuiltModules, patches: Patches) -> None:
    assert "neuraldbg" in nn.Module.__setstate__.__code__.co_filename
    patches.close()
    assert "neuraldbg" not in nn.Module.__setstate__.__code__.co_filename
