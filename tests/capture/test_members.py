"""Modules and parameters of a model: those that torch names, in its order, as the model is now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuraldbg.capture.torch import members


class Sharing(nn.Module):
    """One module in two places, one parameter in two modules, a place that is empty, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.ModuleDict({"norm": nn.BatchNorm1d(4), "again": self.first})
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight
        self.empty = None
        self.register_parameter("nothing", None)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.zeros(2))


class Adapter(nn.Module):
    """Names only a part of its parameters, as adapters on a frozen model do."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.added = nn.Linear(2, 2), nn.Linear(2, 2)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.added.named_parameters(*args, **kwargs)


class Secretive(nn.Module):
    """Does not tell what is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(2, 2)

    def named_modules(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Module]]:  # type: ignore[override]
        yield "", self


def patched() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    last = model[1]
    model.parameters = lambda recurse=True: last.parameters(recurse)  # type: ignore[method-assign]
    return model


MODELS = {
    "one layer": lambda: nn.Linear(2, 3),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.LSTM(2, 3, 2), nn.BatchNorm1d(3)),
    "shared": Sharing,
    "class with a way of its own": Adapter,
    "object with a way of its own": patched,
    "part with a way of its own": lambda: nn.Sequential(nn.Linear(2, 2), Secretive(), nn.Linear(2, 2)),
    "empty": nn.Module,
}


def same(found: list[Any], expected: Any) -> bool:
    theirs = list(expected)
    pairs = zip(found, theirs, strict=False)
    return len(found) == len(theirs) and all(one is other or alike(one, other) for one, other in pairs)


def alike(one: Any, other: Any) -> bool:
    return isinstance(one, tuple) and one[0] == other[0] and one[1] is other[1]


def check(model: nn.Module) -> None:
    assert same(members.named_modules_of(model), model.named_modules())
    assert same(members.modules_of(model), model.modules())
    assert same(members.parameters_of(model), model.parameters())
    assert same(members.named_parameters_of(model), model.named_parameters())
    assert same(members.every_named_parameter(model), model.named_parameters(remove_duplicate=False))
    assert same(members.named_buffers_of(model), model.named_buffers())
    for module in model.modules():
        assert same(members.own_parameters(module), module.parameters(recurse=False))


@pytest.mark.parametrize("of", MODELS)
def test_they_are_those_that_torch_names(of: str) -> None:
    check(MODELS[of]())


def test_what_changes_between_two_looks_is_seen() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    check(model)
    model[0].weight = nn.Parameter(torch.zeros(2, 2))
    check(model)
    model.append(Sharing())
    check(model)
    model[1] = nn.Identity()
    check(model)
    del model[2].first
    check(model)
    kept: list[Tensor] = members.parameters_of(model)
    assert kept[0] is model[0].weight


def test_a_module_inside_of_itself_ends_as_it_does_for_torch() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].parent = model
    with pytest.raises(RecursionError):
        members.every_named_parameter(model)
    assert members.named_modules_of(model) == list(model.named_modules())
